"""Inner solvers: each decreases a surrogate over the parameters, calling no oracle. One a file."""

from targetopt.inner.armijo import Armijo
from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.exact import Exact
from targetopt.inner.gauss_newton import GaussNewton
from targetopt.inner.gradient_descent import GradientDescent
from targetopt.inner.lbfgs import LBFGS
from targetopt.inner.objective import Objective
from targetopt.inner.stopping import Stopping
from targetopt.inner.torch_optimiser import Torch

__all__ = [
    "LBFGS",
    "Armijo",
    "Exact",
    "GaussNewton",
    "GradientDescent",
    "Inner",
    "InnerResult",
    "Objective",
    "Stopping",
    "Torch",
]
