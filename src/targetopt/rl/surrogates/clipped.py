"""The clipped importance ratio."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.rl.surrogates.base import Reading, Term
from targetopt.types import BadArgument


@dataclass(frozen=True)
class Clipped(Term):
    """−min(A ρ, A clip(ρ, 1 − ε, 1 + ε)) + A: no reward for moving a ratio further than ε.

    It bounds itself and needs no divergence; what is beyond the clip has no gradient, so nothing pulls it back.

    Args:
        epsilon: ε.

    Reference: Schulman et al., *Proximal policy optimization algorithms*, 2017, eq. 7.
    """

    epsilon: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.epsilon < 1.0:
            raise BadArgument(f"Clipped: epsilon={self.epsilon!r} must lie between 0 and 1")

    def entries(self, at: Reading) -> Tensor:
        a, away = at.visits.advantages, torch.expm1(at.log_ratio)
        return -torch.minimum(a * away, a * away.clamp(-self.epsilon, self.epsilon))

    def slopes(self, at: Reading) -> Tensor:
        a, away = at.visits.advantages, at.ratio - 1.0
        clipped = torch.where(a > 0, away > self.epsilon, away < -self.epsilon)
        return torch.where(clipped, 0.0, -a * at.ratio).unsqueeze(1) * at.score
