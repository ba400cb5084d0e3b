"""Testbeds with known optimal values, in which policy steps are exact."""

from targetopt.rl.tabular.exact import Solution, exact_oracle, solve
from targetopt.rl.tabular.mdp import MDP
from targetopt.rl.tabular.worlds import cliff_world, deep_sea

__all__ = ["MDP", "Solution", "cliff_world", "deep_sea", "exact_oracle", "solve"]
