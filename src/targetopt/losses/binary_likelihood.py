"""Minus the logarithm of a probability, where the targets are the probabilities themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from targetopt.losses.base import Pointwise, check_signs, sum_outputs


class BinaryLikelihood(Pointwise):
    """ℓ_i(z) = −log z_i for label +1 and −log(1 − z_i) for −1; z is the probability of +1.

    This is the logistic loss for models that end in a sigmoid, whose targets are probabilities and not logits (the
    paper's first footnote). It is convex, but has no L: its curvature grows without bound where a label is thought
    impossible. ``MirrorDescent(NegativeEntropy())`` measures steps between probabilities. A label is never thought
    less probable than rounding, 2.2e-16 in float64, since 1 − z cannot be.

    Example:
        >>> loss = BinaryLikelihood(torch.tensor([1.0, -1.0]))
        >>> loss.gradient(torch.tensor([0.5, 0.2]))
        tensor([-2.0000,  1.2500])
    """

    smoothness = None

    def __init__(self, y: Tensor) -> None:
        super().__init__(y)
        check_signs("BinaryLikelihood", self.y)

    def _chance(self, z: Tensor) -> Tensor:
        """The probability of the label that each row has."""
        y = self._matched(z)
        return torch.where(y > 0, z, 1 - z).clamp_min(torch.finfo(z.dtype).eps)

    def value(self, z: Tensor) -> Tensor:
        return sum_outputs(-self._chance(z).log())

    def gradient(self, z: Tensor) -> Tensor:
        return -self._matched(z) / self._chance(z)

    def curvature(self, z: Tensor) -> Tensor:
        return self._chance(z).square().reciprocal()
