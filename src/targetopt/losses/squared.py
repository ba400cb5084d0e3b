"""The squared loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from targetopt.losses.base import Evaluation, Pointwise, Scalar, sum_outputs


def value(z: float, y: float) -> float:
    return 0.5 * (z - y) * (z - y)


def slope(z: float, y: float) -> float:
    return z - y


def curvature(z: float, y: float) -> float:
    return 1.0


class Squared(Pointwise):
    """ℓ_i(z) = ½‖z_i − y_i‖², summed over outputs; L = μ = 1.

    Example:
        >>> loss = Squared(torch.tensor([0.0, 2.0]))
        >>> loss.value(torch.tensor([1.0, 2.0]))
        tensor([0.5000, 0.0000])
    """

    smoothness = 1.0
    strong_convexity = 1.0
    scalar: ClassVar[Scalar | None] = Scalar(value, slope, curvature)

    def value(self, z: Tensor) -> Tensor:
        return sum_outputs(0.5 * (z - self._matched(z)).square())

    def gradient(self, z: Tensor) -> Tensor:
        return z - self._matched(z)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def evaluate(self, z: Tensor) -> Evaluation:
        """All three from one residual."""
        r = torch.sub(z, self._matched(z), out=self.room(z))
        values = torch.mul(r, 0.5, out=self.room(z)).mul_(r)
        return Evaluation(sum_outputs(values), r, r.new_ones(()).expand(r.shape))

    def best_constant(self, weights: Tensor) -> Tensor:
        """The weighted mean of the labels."""
        return weights @ self.y.to(weights)
