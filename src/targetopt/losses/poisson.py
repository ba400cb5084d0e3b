"""The negative log-likelihood of counts."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from targetopt.losses.base import Evaluation, Pointwise, Scalar, sum_outputs
from targetopt.losses.logistic import RAREST
from targetopt.types import BadArgument


def value(z: float, y: float) -> float:
    return float(np.exp(z) - y * z)


def slope(z: float, y: float) -> float:
    return float(np.exp(z) - y)


def curvature(z: float, y: float) -> float:
    return float(np.exp(z))


class Poisson(Pointwise):
    """ℓ_i(z) = exp(z_i) − y_i z_i: negative log-likelihood of counts up to a constant; no finite L.

    exp(z) has no finite value above z = 88 in float32 and 709 in float64; an answer from there is
    refused as not finite. Scale the features, or clamp what the forward gives.

    Example:
        >>> Poisson(torch.tensor([2.0])).gradient(torch.tensor([0.0]))
        tensor([-1.])
    """

    scalar: ClassVar[Scalar | None] = Scalar(value, slope, curvature)

    def __init__(self, y: Tensor) -> None:
        super().__init__(y)
        if (self.y < 0).any():
            raise BadArgument(
                f"Poisson: counts must not be negative; found {self.y.min().item()!r}"
            )

    def value(self, z: Tensor) -> Tensor:
        return sum_outputs(z.exp() - self._matched(z) * z)

    def gradient(self, z: Tensor) -> Tensor:
        return z.exp() - self._matched(z)

    def curvature(self, z: Tensor) -> Tensor:
        self._matched(z)
        return z.exp()

    def evaluate(self, z: Tensor) -> Evaluation:
        """All three from one exponential."""
        y, mean = self._matched(z), torch.exp(z, out=self.room(z))
        values = torch.addcmul(mean, y, z, value=-1, out=self.room(z))
        return Evaluation(sum_outputs(values), torch.sub(mean, y, out=self.room(z)), mean)

    def lower_bound(self) -> Tensor:
        """y − y log y, the loss at z = log y: what remains above it is half the deviance.

        Example:
            >>> Poisson(torch.tensor([1.0, 0.0])).lower_bound()
            tensor([1., 0.], dtype=torch.float64)
        """
        y = self.y.double()
        return sum_outputs(y - torch.xlogy(y, y))

    def best_constant(self, weights: Tensor) -> Tensor:
        """The logarithm of the mean count."""
        return (weights @ self.y.to(weights)).clamp(min=RAREST).log()
