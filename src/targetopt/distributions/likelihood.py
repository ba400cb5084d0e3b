"""−log π(a): the policy is to do what was done."""

from __future__ import annotations

from torch import Tensor

from targetopt.distributions.base import Family
from targetopt.distributions.cross_entropy import FromMoments
from targetopt.losses.base import checked_labels


class Likelihood(FromMoments):
    """ℓ_i(z) = −log π_{z_i}(a_i): imitate actions, where nothing else is known of the expert.

    For choices this is the cross-entropy. L is as for `ForwardKL`.

    Args:
        family: how targets are read.
        actions: what the expert did, one row each: ``(n, k)`` numbers, ``(n,)`` or ``(n, j)`` choices from 0.

    Example:
        >>> import torch
        >>> from targetopt.distributions import Categorical
        >>> Likelihood(Categorical(2), torch.tensor([1])).gradient(torch.zeros(1, 2))
        tensor([[ 0.5000, -0.5000]])
    """

    def __init__(self, family: Family, actions: Tensor) -> None:
        super().__init__(family, family.moments(checked_labels("Likelihood", actions)))

    def value(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy(z, self._checked(z))
