"""The logistic loss."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from targetopt.losses.base import Evaluation, Pointwise, Scalar, check_signs, sum_outputs

RAREST = 1e-9
"""The smallest share or mean that a fit's starting constant is made for."""


def value(z: float, y: float) -> float:
    margin = y * z
    return float(max(-margin, 0.0) + np.log1p(np.exp(-abs(margin))))


def slope(z: float, y: float) -> float:
    e = np.exp(-abs(z))
    return float(-y * (e if y * z > 0.0 else 1.0) / (1.0 + e))


def curvature(z: float, y: float) -> float:
    e = np.exp(-abs(z))
    return float(e / ((1.0 + e) * (1.0 + e)))


class Logistic(Pointwise):
    """ℓ_i(z) = log(1 + exp(−y_i z_i)), labels ±1; L = ¼.

    Example:
        >>> loss = Logistic(torch.tensor([1.0, -1.0]))
        >>> loss.gradient(torch.zeros(2))
        tensor([-0.5000,  0.5000])
    """

    smoothness = 0.25
    scalar: ClassVar[Scalar | None] = Scalar(value, slope, curvature)

    def __init__(self, y: Tensor) -> None:
        super().__init__(y)
        check_signs("Logistic", self.y)

    def value(self, z: Tensor) -> Tensor:
        return sum_outputs(-F.logsigmoid(self._matched(z) * z))  # softplus is linear above 20

    def gradient(self, z: Tensor) -> Tensor:
        y = self._matched(z)
        return -y * torch.sigmoid(-y * z)

    def curvature(self, z: Tensor) -> Tensor:
        self._matched(z)
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def evaluate(self, z: Tensor) -> Evaluation:
        """All three from both probabilities: with the smaller one q, the loss is −log(1 − q) + max(−yz, 0)."""
        y = self._matched(z)
        margin = torch.mul(y, z, out=self.room(z))
        wrong = torch.neg(margin, out=self.room(z)).sigmoid_()
        right = torch.sigmoid(margin, out=self.room(z))
        gradient = torch.mul(wrong, y, out=self.room(z)).neg_()
        values = torch.minimum(wrong, right, out=self.room(z)).neg_().log1p_().neg_()
        values.sub_(margin.clamp_(max=0.0))
        return Evaluation(sum_outputs(values), gradient, right.mul_(wrong))

    def conjugate(self, slopes: Tensor) -> Tensor:
        """sup_z gz − ℓ(z) for slopes g that the loss has: minus the entropy of |g|."""
        p = slopes.abs()
        return torch.xlogy(p, p) + torch.xlogy(1.0 - p, 1.0 - p)

    def best_constant(self, weights: Tensor) -> Tensor:
        """The log-odds of the positive label, for one output."""
        balance = (weights @ self.y.to(weights)).clamp(RAREST - 1.0, 1.0 - RAREST)
        return torch.log1p(balance) - torch.log1p(-balance)
