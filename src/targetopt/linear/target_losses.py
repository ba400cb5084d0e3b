"""Losses in target space for the full-batch solver: value, gradient and curvature in one pass.

The formulas are those of :mod:`targetopt.losses` (the tests hold the two against each other). There,
each quantity is a call of its own on torch tensors, as the oracle seam wants it; here they share
their exponentials, because a line search asks for all of them at every trial.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RAREST = 1e-9  # the smallest share or mean a starting constant is made for
TINY = float(np.finfo(np.float64).tiny)


class Evaluation(NamedTuple):
    """ℓ_i(z_i), ∂ℓ_i/∂z_i, and what :meth:`TargetLoss.curve` needs to apply ∂²ℓ_i/∂z_i²."""

    values: Array
    gradient: Array
    curvature: Array


class TargetLoss(ABC):
    """ℓ_i(z_i) for each example i; targets have shape ``(n,)`` or ``(n, k)``."""

    @abstractmethod
    def evaluate(self, z: Array) -> Evaluation:
        """All of the loss at ``z``. Far away a loss may overflow to inf; it never gives nan."""

    @abstractmethod
    def best_constant(self, weights: Array) -> Array | float:
        """A target near the best one that is the same for all rows; Σω = 1. Where a fit begins."""

    def curve(self, weights: Array, curvature: Array, u: Array) -> Array:
        """ω_i ∂²ℓ_i/∂z_i² · u_i; ``u`` may have leading axes."""
        return (weights * curvature) * u

    def diagonal(self, curvature: Array) -> Array:
        """The diagonal of ∂²ℓ_i/∂z_i², shaped like the targets."""
        return curvature


class _Labelled(TargetLoss):
    def __init__(self, y: Array) -> None:
        self.y = y


class Squared(_Labelled):
    """½(z − y)².

    Example:
        >>> Squared(np.array([1.0])).evaluate(np.array([3.0])).values
        array([2.])
    """

    def evaluate(self, z: Array) -> Evaluation:
        r = z - self.y
        return Evaluation(0.5 * r * r, r, np.ones_like(r))

    def best_constant(self, weights: Array) -> float:
        return float(weights @ self.y)


class Logistic(_Labelled):
    """log(1 + exp(−yz)), labels ±1.

    Example:
        >>> Logistic(np.array([1.0, -1.0])).evaluate(np.zeros(2)).gradient
        array([-0.5,  0.5])
    """

    smoothness = 0.25

    def conjugate(self, slopes: Array) -> Array:
        """sup_z gz − ℓ(z) for slopes g the loss has: minus the entropy of |g|."""
        p = np.abs(slopes)
        return np.asarray(
            p * np.log(np.maximum(p, TINY)) + (1.0 - p) * np.log(np.maximum(1.0 - p, TINY))
        )

    def evaluate(self, z: Array) -> Evaluation:
        margin = self.y * z
        e = np.exp(-np.abs(margin))
        likely = 1.0 / (1.0 + e)
        unlikely = e * likely
        wrong = np.where(margin > 0, unlikely, likely)
        values = np.log1p(e) - np.minimum(margin, 0.0)
        return Evaluation(values, -self.y * wrong, likely * unlikely)

    def best_constant(self, weights: Array) -> float:
        balance = np.clip(weights @ self.y, -1 + RAREST, 1 - RAREST)
        return float(np.log1p(balance) - np.log1p(-balance))


class Softmax(TargetLoss):
    """logsumexp(z) − z_y, labels 0 … k−1 as integers; the curvature diag(p) − ppᵀ is kept as p.

    Example:
        >>> Softmax(np.array([0]), classes=2).evaluate(np.zeros((1, 2))).gradient
        array([[-0.5,  0.5]])
    """

    def __init__(self, labels: NDArray[np.intp], classes: int) -> None:
        self.labels, self.classes = labels, classes

    def evaluate(self, z: Array) -> Evaluation:
        own = (np.arange(self.labels.size), self.labels)
        shifted = z - z.max(axis=1, keepdims=True)
        values = -shifted[own]
        p = np.exp(shifted, out=shifted)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        values += np.log(total[:, 0])
        gradient = p.copy()
        gradient[own] -= 1.0
        return Evaluation(values, gradient, p)

    def best_constant(self, weights: Array) -> Array:
        shares = np.bincount(self.labels, weights, minlength=self.classes)
        logits = np.log(np.maximum(shares, RAREST))
        return np.asarray(logits - logits.mean())

    def curve(self, weights: Array, curvature: Array, u: Array) -> Array:
        weighted = (weights[:, None] * curvature) * u
        return np.asarray(weighted - curvature * weighted.sum(axis=-1, keepdims=True))

    def diagonal(self, curvature: Array) -> Array:
        return np.asarray(curvature * (1.0 - curvature))


class Huber(_Labelled):
    """½r² where |r| ≤ δ, else δ(|r| − ½δ), r = z − y.

    Beyond δ the second derivative is zero and says nothing of how far the straight part reaches, so
    the metric there is δ/|r|, the curvature of the parabola through the origin that lies above the
    loss: every surrogate is then an upper bound, and none is flat.

    Example:
        >>> Huber(np.array([0.0]), delta=1.0).evaluate(np.array([3.0])).values
        array([2.5])
    """

    def __init__(self, y: Array, delta: float) -> None:
        super().__init__(y)
        self.delta = delta

    def evaluate(self, z: Array) -> Evaluation:
        r = z - self.y
        size = np.abs(r)
        gradient = np.clip(r, -self.delta, self.delta)
        near = np.minimum(size, self.delta)
        return Evaluation(
            near * (size - 0.5 * near), gradient, self.delta / np.maximum(size, self.delta)
        )

    def best_constant(self, weights: Array) -> float:
        order = np.argsort(self.y)
        middle = int(np.searchsorted(np.cumsum(weights[order]), 0.5))
        return float(self.y[order[min(middle, self.y.size - 1)]])


class Poisson(_Labelled):
    """exp(z) − yz − (y − y log y), half the Poisson deviance: zero at z = log y.

    Example:
        >>> Poisson(np.array([1.0, 0.0])).evaluate(np.zeros(2)).values
        array([0., 1.])
    """

    def __init__(self, y: Array) -> None:
        super().__init__(y)
        self.least = y - y * np.log(np.where(y > 0, y, 1.0))

    def evaluate(self, z: Array) -> Evaluation:
        with np.errstate(over="ignore"):
            mean = np.exp(z)
        return Evaluation(mean - self.y * z - self.least, mean - self.y, mean)

    def best_constant(self, weights: Array) -> float:
        return float(np.log(max(float(weights @ self.y), RAREST)))
