"""What is to be compared: experiments from TOML or Python, checked, and the runs they stand for."""
