"""What losses share whose derivatives are those of the cross-entropy H(p, π)."""

from __future__ import annotations

import copy
from typing import Self

from torch import Tensor

from targetopt.distributions.base import Family, same_length
from targetopt.losses import Loss


class FromMoments(Loss):
    """A loss that differs from H(p_i, π_{z_i}) by a constant: all it needs of p_i are the moments E_p[T(a)].

    Args:
        family: how targets are read.
        moments: of every row's p.
    """

    def __init__(self, family: Family, moments: Tensor) -> None:
        self.family = family
        self._moments = moments
        self.smoothness = family.cross_entropy_smoothness(moments)

    def _checked(self, z: Tensor) -> Tensor:
        same_length(type(self).__name__, self.family.checked(z), len(self._moments))
        return self._moments.to(z)

    def gradient(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy_gradient(z, self._checked(z))

    def curvature(self, z: Tensor) -> Tensor:
        return self.family.cross_entropy_curvature(z, self._checked(z))

    def rows(self, index: Tensor) -> Self:
        part = copy.copy(self)
        part._moments = self._moments[index]
        return part
