"""How far a policy step goes: who chooses η, before the inner solve and after it. One rule a file."""

from targetopt.rl.steps.armijo import ArmijoStep
from targetopt.rl.steps.base import Landing, StepSize, Verdict
from targetopt.rl.steps.constant import ConstantStep
from targetopt.rl.steps.held_kl import HeldKL
from targetopt.rl.steps.trust_ratio import TrustRatio

__all__ = [
    "ArmijoStep",
    "ConstantStep",
    "HeldKL",
    "Landing",
    "StepSize",
    "TrustRatio",
    "Verdict",
]
