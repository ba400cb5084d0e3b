"""½‖m − m_e‖²: the mean action alone, whatever the spreads are."""

from __future__ import annotations

import copy
from typing import Self

import torch
from torch import Tensor

from targetopt.distributions.base import same_length
from targetopt.distributions.gaussian import Gaussian
from targetopt.losses import Loss
from targetopt.losses.base import checked_labels
from targetopt.types import BadArgument


class MeanSquared(Loss):
    """ℓ_i(z) = ½‖m(z_i) − a_i‖²: the mean of a Gaussian is to be the expert's action; L = 1.

    Where log σ is among the targets it has no part in this loss and keeps its value.

    Args:
        family: a `Gaussian`.
        actions: the expert's mean actions, shape ``(n, k)``.

    Example:
        >>> MeanSquared(Gaussian(1), torch.zeros(1, 1)).gradient(torch.tensor([[2.0, -1.0]]))
        tensor([[2., 0.]])
    """

    smoothness = 1.0

    def __init__(self, family: Gaussian, actions: Tensor) -> None:
        if not isinstance(family, Gaussian):
            raise BadArgument(
                f"MeanSquared: family={family!r} has no mean action; use ForwardKL or Likelihood for choices"
            )
        self.family = family
        self.actions = checked_labels("MeanSquared", actions)
        if self.actions.ndim != 2 or self.actions.shape[1] != family.actions:
            raise BadArgument(
                f"MeanSquared: actions must have shape (n, {family.actions}); got {tuple(self.actions.shape)}"
            )
        self.strong_convexity = 1.0 if family.std is not None else 0.0

    def _away(self, z: Tensor) -> Tensor:
        same_length("MeanSquared", self.family.checked(z), len(self.actions))
        return z[:, : self.family.actions] - self.actions.to(z)

    def value(self, z: Tensor) -> Tensor:
        return 0.5 * self._away(z).square().sum(dim=1)

    def gradient(self, z: Tensor) -> Tensor:
        return torch.cat([self._away(z), torch.zeros_like(z[:, self.family.actions :])], dim=1)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.cat(
            [torch.ones_like(self._away(z)), torch.zeros_like(z[:, self.family.actions :])], dim=1
        )

    def rows(self, index: Tensor) -> Self:
        part = copy.copy(self)
        part.actions = self.actions[index]
        return part
