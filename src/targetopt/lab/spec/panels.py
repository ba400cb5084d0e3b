"""The name of the figure that every method is in, for those who read results and those who make them."""

MAIN = "main"
"""The figure with every method that no further panel is about."""
