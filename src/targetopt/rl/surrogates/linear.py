"""The linear surrogate: the policy gradient itself, in target space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from targetopt.rl.surrogates.base import Reading, Term


@dataclass(frozen=True)
class Linear(Term):
    """−A ⟨∇ log π_t(a), z − z_t⟩: all that an answer in gradients says, and SSO's own surrogate.

    It has no minimum by itself and must be held by a divergence.

    Example:
        >>> import targetopt as to
        >>> to.rl.Linear()
        Linear()

    Reference: Vaswani et al., *A general class of surrogate functions for stable and efficient reinforcement
    learning*, AISTATS 2022, eq. 5; Lavington et al., ICML 2023, eq. 3.
    """

    in_logits: ClassVar[bool] = True

    def entries(self, at: Reading) -> Tensor:
        seen = at.visits
        return -seen.advantages * (seen.scores * (at.z - seen.anchor)).sum(dim=1)

    def slopes(self, at: Reading) -> Tensor:
        return -at.visits.advantages.unsqueeze(1) * at.visits.scores
