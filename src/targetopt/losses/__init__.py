"""Losses in target space, one number per example, with derivatives in closed form. One loss a file.

A loss is made with its labels; ``value``, ``gradient`` and ``curvature`` take the targets. All but
`Poisson` (see there) are stable for targets as large as ±1e4. ``smoothness`` is L, the largest
curvature of one example's loss (``None`` when there is none), so ``1/(2L)`` is the paper's theoretical
target step.

A loss with one output per row is its class and, in the same file, three functions of one target:
value, slope and curvature. numba compiles these as they stand, so compiled loops and the class have
one home, and a loss of your own is compiled in the same way (docs/add-your-own.md).
"""

from targetopt.losses.arrays import OnArrays
from targetopt.losses.base import Evaluation, Loss, Pointwise, Scalar, ScalarForm
from targetopt.losses.binary_likelihood import BinaryLikelihood
from targetopt.losses.cross_entropy import CrossEntropy
from targetopt.losses.gaussian_kl import GaussianKL
from targetopt.losses.huber import Huber
from targetopt.losses.logistic import Logistic
from targetopt.losses.poisson import Poisson
from targetopt.losses.ridged import Ridged
from targetopt.losses.spare import Spare
from targetopt.losses.squared import Squared

__all__ = [
    "BinaryLikelihood",
    "CrossEntropy",
    "Evaluation",
    "GaussianKL",
    "Huber",
    "Logistic",
    "Loss",
    "OnArrays",
    "Pointwise",
    "Poisson",
    "Ridged",
    "Scalar",
    "ScalarForm",
    "Spare",
    "Squared",
]
