"""targetopt: train models whose gradients are expensive, by surrogates in target space.

>>> import torch, targetopt as to
>>> w = torch.zeros(3, requires_grad=True)
>>> x, y = torch.eye(3), torch.tensor([1.0, -1.0, 1.0])
>>> opt = to.SSO([w], lr=2.0, rule=to.GradientStep(), inner=to.Armijo(max_steps=20))
>>> report = opt.step(lambda: x @ w, to.LossOracle(to.losses.Logistic(y)))  # one oracle call
>>> report.oracle_calls
1
"""

import importlib
from typing import TYPE_CHECKING, Any

from targetopt import baselines, linear, losses, schedules, theory
from targetopt._version import __version__
from targetopt.divergence import Divergence, NegativeEntropy, SquaredEuclidean
from targetopt.inner import (
    LBFGS,
    Armijo,
    Exact,
    GaussNewton,
    GradientDescent,
    Inner,
    InnerResult,
    Stopping,
    Torch,
)
from targetopt.linear import Linear
from targetopt.optim import SSO
from targetopt.oracle import GradientOracle, LossOracle, Oracle
from targetopt.rules import (
    FTRL,
    AdaGrad,
    AdaGradNorm,
    GradientStep,
    LineSearch,
    MirrorDescent,
    Newton,
    Proposal,
    Rule,
)
from targetopt.surrogate import EntropicProximal, Quadratic, Surrogate
from targetopt.types import (
    BadAnswer,
    BadArgument,
    BadForward,
    Counts,
    Diverged,
    MissingCapability,
    Query,
    StepReport,
    TargetoptError,
    TargetPoint,
)

if TYPE_CHECKING:
    from targetopt.problems import imitation

__all__ = [
    "FTRL",
    "LBFGS",
    "SSO",
    "AdaGrad",
    "AdaGradNorm",
    "Armijo",
    "BadAnswer",
    "BadArgument",
    "BadForward",
    "Counts",
    "Diverged",
    "Divergence",
    "EntropicProximal",
    "Exact",
    "GaussNewton",
    "GradientDescent",
    "GradientOracle",
    "GradientStep",
    "Inner",
    "InnerResult",
    "LineSearch",
    "Linear",
    "LossOracle",
    "MirrorDescent",
    "MissingCapability",
    "NegativeEntropy",
    "Newton",
    "Oracle",
    "Proposal",
    "Quadratic",
    "Query",
    "Rule",
    "SquaredEuclidean",
    "StepReport",
    "Stopping",
    "Surrogate",
    "TargetPoint",
    "TargetoptError",
    "Torch",
    "__version__",
    "baselines",
    "imitation",
    "linear",
    "losses",
    "schedules",
    "theory",
]


def __getattr__(name: str) -> Any:
    """``to.imitation``, imported when first used: it needs the extra ``[rl]``."""
    if name == "imitation":
        return importlib.import_module("targetopt.problems.imitation")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
