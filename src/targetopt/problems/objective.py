"""The objective of a linear problem as a function of one parameter array, with its derivatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch

from targetopt.problems.base import Array, is_sparse

if TYPE_CHECKING:
    from targetopt.problems.linear import LinearProblem

_DENSE_PARAMETERS = 1500
_RANK_TOLERANCE = 1e-13  # eigenvalues of H below this part of the largest count as zero
_CG_STEPS = 20_000


class LinearObjective:
    """h(θ) = (1/n) Σ ℓ_i(x_iᵀθ) + ½ l2 ‖θ‖²; a bias is the last row of θ.

    θ has shape ``(d,)``, or ``(d, outputs)``.
    """

    def __init__(self, problem: LinearProblem) -> None:
        data = problem.linear
        self.loss, self.labels, self.l2 = problem.loss, data.y, data.l2
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
        return float(self.loss.value(targets).mean()) + 0.5 * self.l2 * float(np.vdot(theta, theta))

    def gradient(self, theta: Array) -> Array:
        """∇h(θ), shaped like θ."""
        targets = torch.from_numpy(self.design @ theta)
        slope = self.design.T @ self.loss.gradient(targets).numpy()
        return np.asarray(slope / self.n + self.l2 * theta)

    def gap(self, theta: Array) -> float:
        """How far h(θ) is above its infimum: ‖∇h‖²/(2 l2) bounds it where l2 > 0.

        With l2 = 0 it is half the Newton decrement: exact for the squared loss, and accurate
        near the optimum for the others.
        """
        gradient = self.gradient(theta)
        if self.l2 > 0:
            return float(np.vdot(gradient, gradient)) / (2 * self.l2)
        return 0.5 * float(np.vdot(gradient, self.newton_direction(theta, gradient)))

    def separating_margin(self, theta: Array) -> float:
        """A number that no margin falls short of, rounding errors included; −inf for regression.

        The margin is y_i z_i, or z_{i,y_i} − max_{c≠y_i} z_{i,c}. If all are positive, h(sθ) → 0
        for s → ∞, hence inf h = 0 when l2 = 0.
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

    def newton_direction(self, theta: Array, gradient: Array, tolerance: float = 1e-6) -> Array:
        """H(θ)⁻¹ · gradient: by factorisation where H is small, else by conjugate gradients.

        Args:
            tolerance: relative residual at which conjugate gradients stop.
        """
        targets = torch.from_numpy(self.design @ theta)
        curvature = self.loss.curvature(targets).numpy() / self.n
        if theta.size <= _DENSE_PARAMETERS:
            return self._solve_dense(curvature, gradient)
        return self._solve_iteratively(curvature, gradient, tolerance)

    def _solve_dense(self, curvature: Array, gradient: Array) -> Array:
        X, k = self.design, self.outputs
        X = X.toarray() if is_sparse(X) else X  # small: at most _DENSE_PARAMETERS columns
        d = X.shape[1]
        hessian = np.empty((d, k, d, k))
        for a in range(k):
            for b in range(a + 1):
                weights = curvature if k == 1 else curvature[:, a, b]
                hessian[:, a, :, b] = hessian[:, b, :, a] = (X.T * weights) @ X
        matrix = hessian.reshape(d * k, d * k)
        matrix[np.diag_indices(d * k)] += self.l2
        if self.l2 > 0:
            right = gradient.ravel()
            return np.asarray(scipy.linalg.solve(matrix, right, assume_a="pos")).reshape(
                gradient.shape
            )
        # H is singular for redundant columns (one-hot groups, softmax): g has no part there
        eigenvalues, vectors = scipy.linalg.eigh(matrix, driver="evd")
        kept = eigenvalues > _RANK_TOLERANCE * eigenvalues[-1]
        coordinates = vectors[:, kept].T @ gradient.ravel() / eigenvalues[kept]
        return np.asarray(vectors[:, kept] @ coordinates).reshape(gradient.shape)

    def _solve_iteratively(self, curvature: Array, gradient: Array, tolerance: float) -> Array:
        X, l2 = self.design, self.l2

        def product(v: Array) -> Array:
            image = X @ v
            if self.outputs > 1:
                image = np.einsum("iab,ib->ia", curvature, image)
            else:
                image = curvature * image
            return np.asarray(X.T @ image + l2 * v)

        x, r = np.zeros_like(gradient), gradient.copy()
        p, square = r.copy(), float(np.vdot(r, r))
        enough = tolerance**2 * square
        for _ in range(_CG_STEPS):
            if square <= enough:
                break
            image = product(p)
            curve = float(np.vdot(p, image))
            if curve <= 0:  # the rounding of a flat direction
                break
            step = square / curve
            x += step * p
            r -= step * image
            previous, square = square, float(np.vdot(r, r))
            p = r + (square / previous) * p
        return x


def _with_bias(X: Any) -> Any:
    ones = np.ones((X.shape[0], 1))
    if is_sparse(X):
        return sp.hstack([X, sp.csr_array(ones)], format="csr")
    return np.hstack([X, ones])
