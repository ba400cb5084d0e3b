"""−log π(a): the policy is to do what was done."""

from __future__ import annotations

import copy
from typing import Self

from torch import Tensor

from targetopt.distributions.base import Family, same_length
from targetopt.losses import Loss
from targetopt.losses.base import checked_labels


class Likelihood(Loss):
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
        self.family = family
        self._moments = family.moments(checked_labels("Likelihood", actions))
        self.smoothness = family.cross_entropy_smoothness(self._moments)

    def _checked(self, z: Tensor) -> Tensor:
        same_length("Likelihood", self.family.checked(z), len(self._moments))
        return self._moments.to(z)

    def value(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy(z, self._checked(z))

    def gradient(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy_gradient(z, self._checked(z))

    def curvature(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy_curvature(z, self._checked(z))

    def rows(self, index: Tensor) -> Self:
        part = copy.copy(self)
        part._moments = self._moments[index]
        return part
