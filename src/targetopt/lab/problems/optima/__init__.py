"""Reference optima of linear problems: what is minimised, and how its infimum is found and certified."""
