"""What the full-batch Newton solver minimises, and a point with everything known about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from targetopt.losses import Evaluation, OnArrays

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PenalisedLoss:
    """F(θ) = Σ_i ω_i ℓ_i(z_i) + ½ Σ_j λ_j (θ_j − c_j)² with z = Xθ (+ intercept) and Σ_i ω_i = 1.

    Args:
        X: A float64 array or CSR matrix.
        loss: The losses ℓ_i, counted from their lower bounds.
        weights: ω.
        ridge: λ, shaped like θ: ``(d,)``, or ``(d, outputs)``.
        center: c, shaped like θ, or a number.
        intercept: Whether the last row of θ is an intercept.
    """

    X: Any
    loss: OnArrays
    weights: Array
    ridge: Array
    center: Array | float
    intercept: bool

    @cached_property
    def sparse(self) -> bool:
        """Whether X is."""
        return is_sparse(self.X)

    @cached_property
    def squares(self) -> Any:
        """(X∘X)ᵀ of sparse X, which shares its indices."""
        X = self.X
        return sp.csr_array((X.data**2, X.indices, X.indptr), shape=X.shape).T

    @cached_property
    def pairs(self) -> float:
        """Pairs of entries in a row of sparse X, on average: the mean square of its count."""
        counts = np.diff(self.X.indptr).astype(np.float64)
        return float(np.dot(counts, counts)) / max(1, int(counts.size))

    def forward(self, theta: Array) -> Array:
        """z = Xθ, shape ``(n,)`` or ``(n, k)``."""
        if self.intercept and not theta[:-1].any():  # where most fits begin
            return np.repeat(theta[-1:], self.weights.size, axis=0)
        if self.intercept:
            z: Array = self.X @ theta[:-1]
            z += theta[-1]
            return z
        return np.asarray(self.X @ theta)

    def adjoint(self, u: Array) -> Array:
        """Xᵀu, with the intercept's row."""
        out: Array = self.transposed @ u
        return np.concatenate([out, column_sums(u)[None]]) if self.intercept else out

    @cached_property
    def transposed(self) -> Any:
        """Xᵀ as a view; making one anew costs as much as a small product."""
        return self.X.T

    def weighted(self, u: Array) -> Array:
        """ω_i u_i; ``u`` has examples on its first axis."""
        weights = self.weights[:, None] if u.ndim == 2 else self.weights
        return np.multiply(weights, u, out=self.loss.spare.take(u.shape))

    def curved(self, metric: Array, u: Array) -> Array:
        """ω_i W_i u_i for the ``metric`` of an evaluation; ``u`` may have leading axes."""
        if metric.ndim == 1:  # numbers, with which the product is linear in W as well
            return self.loss.curve(self.weighted(metric), u)
        product = self.loss.curve(metric, u)
        product *= self.weights[:, None]
        return product

    def pull(self, theta: Array) -> Array:
        """The gradient of the penalty."""
        return self.ridge * (theta - self.center)

    def gradient(self, point: Point) -> Array:
        """∇F."""
        return self.adjoint(self.weighted(point.at.gradient)) + self.pull(point.theta)

    @cached_property
    def free_intercept(self) -> bool:
        """Whether there is an intercept without a penalty."""
        return self.intercept and not self.ridge[-1].any()

    def proven_gap(self, gradient: Array) -> float:
        """½ ∇F·Λ⁻¹∇F, which F − min F does not exceed; inf where something is not penalised.

        An intercept without a penalty is left out: the bound then holds where no other intercept has a smaller F (see
        :mod:`targetopt.linear.newton.intercepts`), for the minimum over the intercept is as convex in w as F is.
        """
        features = slice(0, -1) if self.free_intercept else slice(None)
        ridge, gradient = self.ridge[features], gradient[features]
        if not np.minimum.reduce(ridge, axis=None, initial=np.inf) > 0:
            return np.inf
        return 0.5 * float(np.sum(gradient * gradient / ridge))

    def at(self, theta: Array) -> Point:
        """F at θ, with all that the loss says there."""
        n, outputs = self.weights.size, theta.shape[1:]
        return self.at_targets(
            theta, self.forward(theta) if theta.any() else np.zeros((n, *outputs))
        )

    def at_targets(self, theta: Array, z: Array) -> Point:
        """F at θ whose targets are known."""
        at = self.loss.evaluate(z)
        penalty = 0.5 * float(np.vdot(self.pull(theta), theta - self.center))
        return Point(theta, z, at, float(self.weights @ at.values) + penalty)


@dataclass(frozen=True)
class Point:
    """θ, its targets, what the loss says of them, and F."""

    theta: Array
    z: Array
    at: Evaluation
    value: float


def column_sums(u: Array) -> Any:
    """The sum over rows; numpy's own goes through the columns of a row one by one, several times as slow."""
    return np.add.reduce(u) if u.ndim == 1 else np.ones(len(u)) @ u


def is_sparse(X: Any) -> bool:
    """``scipy.sparse.issparse`` for objects whose type stays unknown to the type checker."""
    return bool(sp.issparse(X))
