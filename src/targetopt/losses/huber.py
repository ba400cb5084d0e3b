"""Huber's loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from targetopt.losses.base import Evaluation, Pointwise, Scalar, sum_outputs
from targetopt.types import BadArgument


def value(z: float, y: float, delta: float) -> float:
    distance = abs(z - y)
    inside = min(distance, delta)
    return inside * (distance - 0.5 * inside)


def slope(z: float, y: float, delta: float) -> float:
    return min(max(z - y, -delta), delta)


def curvature(z: float, y: float, delta: float) -> float:
    return 1.0 if abs(z - y) <= delta else 0.0


class Huber(Pointwise):
    """ℓ_i(z) = ½r² where |r| ≤ δ, else δ(|r| − ½δ), r = z_i − y_i, summed over outputs; L = 1.

    Example:
        >>> Huber(torch.tensor([0.0]), delta=1.0).value(torch.tensor([3.0]))
        tensor([2.5000])
    """

    smoothness = 1.0
    majorises: ClassVar[bool] = True
    scalar: ClassVar[Scalar | None] = Scalar(value, slope, curvature)

    def __init__(self, y: Tensor, delta: float = 1.0) -> None:
        super().__init__(y)
        if not 0 < delta < float("inf"):
            raise BadArgument(f"Huber: delta={delta!r} must be positive and finite")
        self.delta = float(delta)

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.delta,)

    def value(self, z: Tensor) -> Tensor:
        r = (z - self._matched(z)).abs()
        inside = torch.clamp(r, max=self.delta)
        return sum_outputs(inside * (r - 0.5 * inside))

    def gradient(self, z: Tensor) -> Tensor:
        return (z - self._matched(z)).clamp(-self.delta, self.delta)

    def curvature(self, z: Tensor) -> Tensor:
        return ((z - self._matched(z)).abs() <= self.delta).to(z.dtype)

    def majorising_curvature(self, z: Tensor) -> Tensor:
        """δ/max(|r|, δ): the curvature of the parabola that touches the loss at z and lies above it.

        Example:
            >>> Huber(torch.zeros(2), delta=1.0).majorising_curvature(torch.tensor([0.5, 4.0]))
            tensor([1.0000, 0.2500])
        """
        return self.delta / (z - self._matched(z)).abs().clamp(min=self.delta)

    def newton_metric(self, z: Tensor) -> Tensor:
        """The majorising curvature.

        Beyond δ the second derivative is zero and says nothing of how far the straight part reaches. With
        the parabola above the loss every model is an upper bound, and none is flat.
        """
        return self.majorising_curvature(z)

    def evaluate(self, z: Tensor) -> Evaluation:
        """All three from one residual."""
        r = torch.sub(z, self._matched(z), out=self.room(z))
        distance = torch.abs(r, out=self.room(z))
        inside = torch.clamp(distance, max=self.delta, out=self.room(z))
        values = torch.sub(distance, inside, alpha=0.5, out=self.room(z)).mul_(inside)
        metric = distance.clamp_(min=self.delta).reciprocal_().mul_(self.delta)
        return Evaluation(sum_outputs(values), r.clamp_(-self.delta, self.delta), metric)

    def best_constant(self, weights: Tensor) -> Tensor:
        """The weighted median of the labels."""
        y = self.y.to(weights)
        order = torch.argsort(y)
        middle = int(torch.searchsorted(torch.cumsum(weights[order], dim=0), 0.5))
        return y[order[min(middle, y.shape[0] - 1)]]
