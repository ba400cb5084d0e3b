"""The log-ratio surrogate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from targetopt.rl.surrogates.base import Reading, Term


@dataclass(frozen=True)
class LogRatio(Term):
    """−A log ρ, ρ = π_z(a)/π_t(a): linear in the logarithm of the policy.

    With the forward KL it projects π_t(1 + ηA) onto the policies there are: softmax policy mirror ascent.

    Reference: Asad et al., *Fast convergence of softmax policy mirror ascent*, AISTATS 2025; Vaswani et al., AISTATS
    2022, §4.2 (the softmax representation).
    """

    in_logits: ClassVar[bool] = True

    def entries(self, at: Reading) -> Tensor:
        return -at.visits.advantages * at.log_ratio

    def slopes(self, at: Reading) -> Tensor:
        return -at.visits.advantages.unsqueeze(1) * at.score
