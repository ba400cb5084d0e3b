"""Any loss made strongly convex."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from targetopt.losses.base import Loss, ScalarForm, sum_outputs
from targetopt.types import BadArgument


class Ridged(Loss):
    """ℓ_i(z) + ½μ‖z_i‖²: any loss made μ-strongly convex in the targets.

    Thm 4.2 of the paper asks for a strongly convex ℓ, which the logistic loss is not; this is the
    loss to check the theorem on, and it works wherever a loss does.

    Example:
        >>> from targetopt.losses import Logistic
        >>> loss = Ridged(Logistic(torch.tensor([1.0])), 0.05)
        >>> loss.smoothness, loss.strong_convexity
        (0.3, 0.05)
    """

    def __init__(self, loss: Loss, mu: float) -> None:
        if not 0 < mu < math.inf:
            raise BadArgument(f"Ridged: mu={mu!r} must be positive and finite")
        self.loss = loss
        self.mu = float(mu)
        self.smoothness = None if loss.smoothness is None else loss.smoothness + self.mu
        self.strong_convexity = loss.strong_convexity + self.mu

    @property
    def y(self) -> Tensor:
        """The labels of the bare loss."""
        labels: Tensor = self.loss.y  # type: ignore[attr-defined]
        return labels

    def value(self, z: Tensor) -> Tensor:
        return self.loss.value(z) + 0.5 * self.mu * sum_outputs(z.square())

    def gradient(self, z: Tensor) -> Tensor:
        return self.loss.gradient(z) + self.mu * z

    def curvature(self, z: Tensor) -> Tensor:
        return self._curved(self.loss.curvature(z), z)

    def newton_metric(self, z: Tensor) -> Tensor:
        return self._curved(self.loss.newton_metric(z), z)

    def _curved(self, bare: Tensor, z: Tensor) -> Tensor:
        if bare.ndim == z.ndim:
            return bare + self.mu
        return bare + self.mu * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)

    def lower_bound(self) -> Tensor:
        return self.loss.lower_bound()

    def scalar_form(self) -> ScalarForm | None:
        """The bare loss's, with μ added to its ridge."""
        bare = self.loss.scalar_form() if type(self) is Ridged else None
        return None if bare is None else bare._replace(ridge=bare.ridge + self.mu)

    def rows(self, index: Tensor) -> Self:
        return self._around(self.loss.rows(index))

    def tables(self) -> dict[str, Tensor]:
        return self.loss.tables()

    def with_tables(self, tables: Mapping[str, Tensor]) -> Self:
        return self._around(self.loss.with_tables(tables))

    def _around(self, loss: Loss) -> Self:
        other = copy.copy(self)
        other.loss = loss
        return other
