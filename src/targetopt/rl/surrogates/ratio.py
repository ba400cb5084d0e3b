"""The importance-ratio surrogate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.rl.surrogates.base import Reading, Term


@dataclass(frozen=True)
class Ratio(Term):
    """−A (ρ − 1), ρ = π_z(a)/π_t(a): what π_z would earn in the states that π_t visits.

    Reference: Kakade, Langford, *Approximately optimal approximate reinforcement learning*, ICML 2002; Schulman et
    al., *Trust region policy optimization*, ICML 2015, eq. 14; Tomar et al., *Mirror descent policy optimization*,
    ICLR 2022.
    """

    def entries(self, at: Reading) -> Tensor:
        return -at.visits.advantages * torch.expm1(at.log_ratio)

    def slopes(self, at: Reading) -> Tensor:
        return (-at.visits.advantages * at.ratio).unsqueeze(1) * at.score
