"""Rivals of SSO as ordinary torch optimisers, and the step sizes that theory gives them.

SGD, Adam and Adagrad are torch's own; `linear_smoothness` gives SGD's step ``1/(2 L_θ)``.
"""

from targetopt.baselines.adagrad_norm import AdaGradNorm
from targetopt.baselines.sls import SLS
from targetopt.baselines.smoothness import batch_smoothness, linear_smoothness, theoretical_step
from targetopt.baselines.svrg import SVRG

__all__ = [
    "SLS",
    "SVRG",
    "AdaGradNorm",
    "batch_smoothness",
    "linear_smoothness",
    "theoretical_step",
]
