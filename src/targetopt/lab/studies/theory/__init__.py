"""The theory figures and the survey of the paper's inequalities."""
