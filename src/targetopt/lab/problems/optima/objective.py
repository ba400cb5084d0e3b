"""The objective of a linear problem as a function of one parameter array, with its derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch

from targetopt.lab.problems.base import Array, is_sparse
from targetopt.linear.newton import PenalisedLoss
from targetopt.losses import OnArrays

if TYPE_CHECKING:
    from targetopt.lab.problems.linear import LinearProblem


class LinearObjective:
    """h(θ) = (1/n) Σ ℓ_i(x_iᵀθ) + ½ λ ‖θ‖²; a bias is the last row of θ.

    θ has shape ``(d,)``, or ``(d, outputs)``.
    """

    def __init__(self, problem: LinearProblem) -> None:
        data = problem.linear
        self.loss, self.labels, self.weight_decay = problem.loss, data.y, data.weight_decay
        self.design: Any = _with_bias(data.X) if data.bias else data.X
        self.outputs = problem.outputs
        self.n = problem.n

    def start(self) -> Array:
        """θ = 0."""
        columns = self.design.shape[1]
        return np.zeros(columns if self.outputs == 1 else (columns, self.outputs))

    def value(self, theta: Array) -> float:
        """h(θ)."""
        targets = torch.from_numpy(self.design @ theta)
        return float(self.loss.value(targets).mean()) + 0.5 * self.weight_decay * float(
            np.vdot(theta, theta)
        )

    def gradient(self, theta: Array) -> Array:
        """∇h(θ), shaped like θ."""
        targets = torch.from_numpy(self.design @ theta)
        slope = self.design.T @ self.loss.gradient(targets).numpy()
        return np.asarray(slope / self.n + self.weight_decay * theta)

    def newton_objective(self) -> PenalisedLoss:
        """h for the full-batch Newton solver; its values are counted from the losses' lower bounds."""
        weights = np.full(self.n, 1.0 / self.n)
        ridge = np.full_like(self.start(), self.weight_decay)
        return PenalisedLoss(self.design, OnArrays(self.loss), weights, ridge, 0.0, intercept=False)

    def proven_gap(self, theta: Array) -> float:
        """‖∇h‖²/(2λ), which h(θ) is not further above its minimum than; inf without weight decay."""
        if not self.weight_decay > 0:
            return np.inf
        gradient = self.gradient(theta)
        return float(np.vdot(gradient, gradient)) / (2 * self.weight_decay)

    def separating_margin(self, theta: Array) -> float:
        """A number that no margin falls short of, rounding errors included; −inf for regression.

        The margin is y_i z_i, or z_{i,y_i} − max_{c≠y_i} z_{i,c}. If all are positive, h(sθ) → 0
        for s → ∞, hence inf h = 0 when weight_decay = 0.
        """
        z = self.design @ theta
        longest = int(np.diff(self.design.indptr).max()) if is_sparse(self.design) else z.size
        terms = min(longest, self.design.shape[1]) + 2
        rounding = terms * np.finfo(np.float64).eps * (abs(self.design) @ np.abs(theta))
        if self.outputs == 1:
            return float((self.labels * z - rounding).min())
        own = np.arange(self.n), self.labels
        low, high = (z - rounding)[own], z + rounding
        high[own] = -np.inf
        return float((low - high.max(axis=1)).min())


def _with_bias(X: Any) -> Any:
    ones = np.ones((X.shape[0], 1))
    if is_sparse(X):
        return sp.hstack([X, sp.csr_array(ones)], format="csr")
    return np.hstack([X, ones])
