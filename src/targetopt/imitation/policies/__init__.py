"""Policies: networks as arrays and as modules, what acts, and the files they are kept in."""
