"""KL(π ‖ p): the policy is to do only what the expert may do."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor

from targetopt.distributions.base import Distribution, Family, same_length
from targetopt.losses import Loss


class ReverseKL(Loss):
    """ℓ_i(z) = KL(π_{z_i} ‖ p_i): large where the policy may do what the expert never does.

    For a Gaussian of fixed σ it is quadratic with the expert's precision, L = 1/min σ_p². In logits it is not convex
    and L depends on the expert's rarest choice (see `Categorical`); with σ among the targets there is no finite L.

    Args:
        family: how targets are read.
        expert: the distributions p, one for each row.

    Example:
        >>> import torch
        >>> from targetopt.distributions import Gaussian, GaussianRows
        >>> expert = GaussianRows(torch.zeros(1, 1), torch.zeros(1))
        >>> loss = ReverseKL(Gaussian(1, std=2.0), expert)
        >>> loss.gradient(torch.ones(1, 1)), loss.smoothness  # (z − m)/σ_p²
        (tensor([[1.]]), 1.0)
    """

    def __init__(self, family: Family, expert: Distribution) -> None:
        self.family = family
        self.expert = expert
        self.smoothness = family.divergence_smoothness(expert)

    def _checked(self, z: Tensor) -> Any:
        same_length("ReverseKL", self.family.checked(z), len(self.expert))
        return self.expert.to(z)

    def value(self, z: Tensor) -> Tensor:
        expert = self._checked(z)
        policy: Any = self.family.from_targets(z)
        return policy.kl(expert)  # type: ignore[no-any-return]

    def gradient(self, z: Tensor) -> Tensor:
        return self.family.divergence_gradient(z, self._checked(z))

    def curvature(self, z: Tensor) -> Tensor:
        return self.family.divergence_curvature(z, self._checked(z))

    def rows(self, index: Tensor) -> Self:
        part = copy.copy(self)
        part.expert = self.expert.rows(index)
        return part
