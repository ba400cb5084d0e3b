"""Oracles that solve equations: structures, diffusion, waves. Each gives a value and its exact gradient."""
