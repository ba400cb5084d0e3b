"""A linear problem that ends its process when the weights get too long, for tests of the engine."""

import os

import numpy as np

from targetopt.lab.problems import LinearProblem, register
from targetopt.losses import Logistic


class Trap(LinearProblem):
    limit = 1e9

    def metrics_at(self, weight, bias=None):
        if np.linalg.norm(weight) > self.limit:
            os._exit(5)
        return super().metrics_at(weight, bias)


@register("trap", "400 points in 20 dimensions, for tests")
def trap(limit: float = 1e9) -> LinearProblem:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 20))
    y = np.sign(X @ rng.normal(size=20) + rng.normal(size=400))
    problem = Trap("trap", X, y, Logistic, bias=False, weight_decay=0.0, classification=True)
    problem.limit = limit
    return problem
