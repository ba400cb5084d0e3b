"""KL(p ‖ π): the policy is to cover what the expert does."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from targetopt.distributions.base import Distribution, Family
from targetopt.distributions.cross_entropy import FromMoments


class ForwardKL(FromMoments):
    """ℓ_i(z) = KL(p_i ‖ π_{z_i}) = H(p_i, π_{z_i}) − H(p_i): imitate an expert's whole distribution.

    It is large where the expert may do what the policy never does. L is ½ for logits, 1/min σ² for a Gaussian of fixed
    σ, and not finite otherwise.

    Args:
        family: how targets are read.
        expert: the distributions p, one for each row; of a Gaussian the spread may differ from the policy's.

    Example:
        >>> import torch
        >>> from targetopt.distributions import Gaussian, GaussianRows
        >>> expert = GaussianRows(torch.zeros(1, 1), torch.zeros(1))
        >>> loss = ForwardKL(Gaussian(1, std=2.0), expert)
        >>> loss.gradient(torch.ones(1, 1)), loss.smoothness  # (z − m)/σ², 1/σ²
        (tensor([[0.2500]]), 0.25)
    """

    def __init__(self, family: Family, expert: Distribution) -> None:
        super().__init__(family, family.moments(expert).detach())
        self.expert = expert

    def value(self, z: Tensor) -> Tensor:
        self._checked(z)
        expert: Any = self.expert.to(z)
        return expert.kl(self.family.from_targets(z))  # type: ignore[no-any-return]

    def rows(self, index: Tensor) -> Self:
        part = super().rows(index)
        part.expert = self.expert.rows(index)
        return part
