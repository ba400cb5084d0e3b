"""Metrics M ≈ ∂²F for the full-batch Newton solver: exact factors where they are cheap.

A metric turns the gradient into a search direction, u = −M⁻¹∇F. It need not be up to date: the solver
minimises over a subspace with curvature that is. So a metric is renewed only when the steps left at
the present rate would cost more than renewing it. Costs are nanoseconds on one core of a current
machine; only their ratios matter, and only for speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack

from targetopt.linear.newton.objective import Array, PenalisedLoss, is_sparse

PER_ENTRY = 1.0  # one stored entry of X in a product with a vector
PER_TARGET = 15.0  # one target in the loss and the line search
PER_STEP = 2e5  # the interpreter's part of a step
PER_FLOP = 0.05  # multiply-and-add in a dense symmetric product
PER_DENSE = 5.0  # one entry of the rows handed to it: gathered, made dense, weighted, read
WORTH_FACTORING = 40  # an exact metric may cost this many steps
ENOUGH_RENEWALS = 4  # a well-behaved fit needs no more
STEPS_OF_SAMPLES = (
    8  # a quadratic takes about as many steps with samples; one is enough with all rows
)
LARGEST_FACTOR = 4096  # order of the largest matrix factored, 128 MB
BLOCK_ENTRIES = 1 << 20  # sparse rows are made dense for BLAS a block at a time, 8 MB
SMALLEST = 1e-290  # a diagonal entry below is zero: its inverse would overflow
JITTERS = (1e-15, 1e-13, 1e-11)  # added to a diagonal of ones: the first with which it is definite


class Metric(ABC):
    """M, renewed from the curvature at some iterate and then used for several."""

    patience: int  # steps before a renewal is considered

    def __init__(self, objective: PenalisedLoss) -> None:
        self.objective = objective
        self._age: int | None = None
        self._renewals = 0

    def update(self, curvature: Array, steps_left: float) -> None:
        """Called once a step, before :meth:`solve`; renews M if that pays."""
        if self._age is not None:
            self._age += 1
            cost, step = self.cost(self.objective), step_cost(self.objective)
            worth = self._age >= self.patience and cost < steps_left * step
            if not worth and cost > step / 3:  # what hardly costs anything is always done
                return
        self._age = 0
        self.renew(curvature)
        self._renewals += 1

    @property
    def exact(self) -> bool:
        """Whether M, when renewed, is the Hessian itself: of all rows, outputs together."""
        return False

    @staticmethod
    @abstractmethod
    def cost(objective: PenalisedLoss) -> float:
        """What :meth:`renew` costs."""

    @abstractmethod
    def renew(self, curvature: Array) -> None:
        """Take the Hessian for this curvature of the loss."""

    @abstractmethod
    def solve(self, gradient: Array) -> Array:
        """M⁻¹∇F."""

    def _weights(self, curvature: Array) -> Array:
        """ω_i times the diagonal of W_i, shaped like the targets."""
        return self.objective.weighted(self.objective.loss.diagonal(curvature))

    @cached_property
    def squares(self) -> Any:
        """(X∘X)ᵀ."""
        return _squared(self.objective.X).T

    def diagonal(self, curvature: Array) -> Array:
        """The diagonal of the Hessian of F's data part, shaped like θ."""
        weighted = self._weights(curvature)
        diagonal: Array = self.squares @ weighted
        if self.objective.intercept:
            return np.concatenate([diagonal, weighted.sum(axis=0)[None]])
        return diagonal

    def last_diagonal(self, curvature: Array) -> Array:
        """As :meth:`diagonal`, for the curvature that M was renewed from."""
        return self.diagonal(curvature)


def cheapest_metric(objective: PenalisedLoss) -> Metric:
    """The first exact Hessian whose factor costs no more than some steps, else a diagonal."""
    if objective.ridge.ndim == 2 and _worth_factoring(Joint, objective, objective.ridge.size):
        return Joint(objective)
    side = Dual if Dual.possible(objective) else Primal
    if _worth_factoring(side, objective, min(objective.weights.size, objective.ridge.shape[0])):
        return side(objective)
    return Diagonal(objective)


def _worth_factoring(kind: type[Metric], objective: PenalisedLoss, order: int) -> bool:
    worth = kind.cost(objective) <= WORTH_FACTORING * step_cost(objective)
    return order <= LARGEST_FACTOR and worth


def step_cost(objective: PenalisedLoss) -> float:
    """What one step of the solver costs: a product with X, one with Xᵀ, and the line search."""
    entries = 2 * PER_ENTRY * _entries(objective.X) + PER_TARGET * objective.weights.size
    return PER_STEP + _outputs(objective) * entries


class Diagonal(Metric):
    """Between diag(∂²F) and its mean: (h(h̄ + h/100))^½ for h = diag(∂²F), h̄ the mean of h.

    The diagonal itself takes features that occur together for independent ones. Its geometric mean
    with a constant took 35 steps where it took 46 on the RCV1-v2 subset (alpha 1e-6, to 3e-6); the
    second term keeps columns of a far larger scale than the rest from ruling the direction.
    """

    patience = 8

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        return PER_ENTRY * _entries(objective.X) * _outputs(objective)

    def renew(self, curvature: Array) -> None:
        h = self.diagonal(curvature) + self.objective.ridge
        self._inverse = _inverse(np.sqrt(h * (h.mean() + 0.01 * h)))

    def solve(self, gradient: Array) -> Array:
        return self._inverse * gradient


class Primal(Metric):
    """Cholesky factors of Xᵀ diag(ω W) X + diag(λ), one for each output, nothing between outputs.

    If there are many more rows than columns, the factor is that of a sample of rows drawn in
    proportion to ω W, which makes the cost of a factor independent of n. Where that does not lead
    to fast convergence the samples grow, until they are all rows.
    """

    patience = 2

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        n, d = objective.weights.size, int(objective.ridge.shape[0])
        n = min(n, _sample_size(objective, d))
        return _outputs(objective) * (PER_FLOP * (n * d**2 + d**3) + PER_DENSE * n * d)

    @property
    def exact(self) -> bool:
        d, rows = self.objective.ridge.shape[0], self.objective.weights.size
        return self.objective.ridge.ndim == 1 and _all_rows(
            rows, _sample_size(self.objective, d, self._renewals)
        )

    def renew(self, curvature: Array) -> None:
        weighted = _columns(self._weights(curvature))
        ridges = _columns(self.objective.ridge)
        self._factors, diagonals = [], []
        for weights, ridge in zip(weighted, ridges, strict=True):
            H = _hessian(self.objective, weights, self._renewals)
            diagonals.append(H.diagonal().copy())
            H[np.diag_indices_from(H)] += ridge
            self._factors.append(_factor(H))
        self._diagonal = _like(self.objective.ridge, diagonals)

    def last_diagonal(self, curvature: Array) -> Array:
        return self._diagonal if self.exact else self.diagonal(curvature)

    def solve(self, gradient: Array) -> Array:
        columns = [
            _solve(factor, g) for factor, g in zip(self._factors, _columns(gradient), strict=True)
        ]
        return _like(gradient, columns)


class Joint(Metric):
    """The Cholesky factor of the whole Hessian for softmax, all outputs together.

    With W_i = diag(p_i) − p_i p_iᵀ it is the outputs' own blocks Xᵀ diag(ω p_c) X less BᵀB, where
    row i of B is ω_i^½ x_i ⊗ p_i.
    """

    patience = 2

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        n, d = objective.weights.size, objective.ridge.size
        n = min(n, _sample_size(objective, d))
        return PER_FLOP * (n * d**2 + d**3) + PER_DENSE * n * d

    @property
    def exact(self) -> bool:
        size = _sample_size(self.objective, self.objective.ridge.size, self._renewals)
        return _all_rows(self.objective.weights.size, size)

    def renew(self, curvature: Array) -> None:
        objective = self.objective
        chosen, weights = _sample(
            objective.weights,
            self._weights(curvature).sum(axis=1),
            _sample_size(objective, objective.ridge.size, self._renewals),
        )
        X, p = objective.X[chosen], curvature[chosen]
        d, k = objective.ridge.shape
        H = np.zeros((d * k, d * k))
        blocks = H.reshape(d, k, d, k)
        size = max(1, BLOCK_ENTRIES // (d * k))
        for start in range(0, weights.size, size):
            part = slice(start, start + size)
            rows = X[part].toarray() if is_sparse(X) else X[part]
            if objective.intercept:
                rows = np.column_stack([rows, np.ones(rows.shape[0])])
            rows = rows * np.sqrt(weights[part, None])
            spread = (rows[:, :, None] * p[part, None, :]).reshape(-1, d * k)
            H -= spread.T @ spread
            for c in range(k):
                blocks[:, c, :, c] += (rows.T * p[part, c]) @ rows
        # Softmax does not see what all outputs share. Where no penalty does either, H is singular
        # along it; gradients have no part there, so any curvature will do.
        for j in np.flatnonzero((objective.ridge == 0).all(axis=1)):
            blocks[j, :, j, :] += blocks[j, :, j, :].diagonal().mean() / k
        H[np.diag_indices(d * k)] += objective.ridge.ravel()
        self._factored = _factor(H)

    def solve(self, gradient: Array) -> Array:
        return _solve(self._factored, gradient.ravel()).reshape(gradient.shape)


class Dual(Metric):
    """The same inverse through the n × n matrix XΛ⁻¹Xᵀ, computed once, for more columns than rows.

    With S = diag(ω W)^½, Λ = diag(λ) and K = I + S XΛ⁻¹Xᵀ S the features' part is

        (Λ + XᵀSSX)⁻¹ = Λ⁻¹ − Λ⁻¹XᵀS K⁻¹ SXΛ⁻¹.

    An intercept has no penalty; it is eliminated. For s the diagonal of S its Schur complement is
    sᵀK⁻¹s, a sum without cancellation.
    """

    patience = 1

    def __init__(self, objective: PenalisedLoss) -> None:
        super().__init__(objective)
        ridge = objective.ridge if objective.ridge.ndim == 1 else objective.ridge[:, 0]
        self._scale = 1.0 / (ridge[:-1] if objective.intercept else ridge)
        self._kernel = _outer_gram(objective.X, self._scale)

    @staticmethod
    def possible(objective: PenalisedLoss) -> bool:
        """Fewer rows than columns, every feature penalised and the same in each output."""
        ridge = objective.ridge[:-1] if objective.intercept else objective.ridge
        return bool(
            objective.weights.size < objective.ridge.shape[0]
            and (ridge > 0).all()
            and (ridge.ndim == 1 or (ridge == ridge[:, :1]).all())
        )

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        n, d = objective.weights.size, int(objective.ridge.shape[0])
        return PER_FLOP * (n * n * d + _outputs(objective) * n**3)

    @property
    def exact(self) -> bool:
        return self.objective.ridge.ndim == 1

    def renew(self, curvature: Array) -> None:
        self._blocks = []
        for weights in _columns(self._weights(curvature)):
            root = np.sqrt(weights)
            matrix = root[:, None] * self._kernel * root
            matrix[np.diag_indices_from(matrix)] += 1.0
            factor = _factor(matrix)
            self._blocks.append((root, factor, _solve(factor, root)))

    def solve(self, gradient: Array) -> Array:
        columns = [
            self._solve_one(*block, g)
            for block, g in zip(self._blocks, _columns(gradient), strict=True)
        ]
        return _like(gradient, columns)

    def _solve_one(
        self, root: Array, factor: tuple[Array, Array], eliminated: Array, g: Array
    ) -> Array:
        X, intercept = self.objective.X, self.objective.intercept
        direct = self._scale * (g[:-1] if intercept else g)
        image = root * (X @ direct)
        inner = _solve(factor, image)
        if not intercept:
            return np.asarray(direct - self._scale * (X.T @ (root * inner)))
        # The Schur complement is zero only where all curvature has vanished.
        bias = (g[-1] - eliminated @ image) / max(float(root @ eliminated), SMALLEST)
        inner += bias * eliminated
        return np.append(direct - self._scale * (X.T @ (root * inner)), bias)


def _squared(X: Any) -> Any:
    """X∘X in X's format, sharing its indices."""
    if is_sparse(X):
        return sp.csr_array((X.data**2, X.indices, X.indptr), shape=X.shape)
    return X**2


def _inverse(diagonal: Array) -> Array:
    """1/diagonal, and 0 for a column that is empty and not penalised."""
    return np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > SMALLEST)


def _sample_size(objective: PenalisedLoss, columns: int, renewals: int = 0) -> int:
    """All rows if they cost no more than a step, or the steps that a sample would take; else a good sample.

    Its eigenvalues are then off by a third or so. Samples become twice as large each time after
    ENOUGH_RENEWALS, for then the factors were not good enough.
    """
    rows = int(objective.weights.size)
    steps = STEPS_OF_SAMPLES if objective.loss.quadratic else 1
    if rows * columns * (PER_FLOP * columns + PER_DENSE) <= steps * step_cost(objective):
        return rows
    return max(1024, 8 * columns) << max(0, min(renewals - ENOUGH_RENEWALS, 30))


def _all_rows(rows: int, sample: int) -> bool:
    """Whether so many rows are all taken where a sample of that size would do."""
    return rows <= 2 * sample


def _sample(weights: Array, importance: Array, size: int) -> tuple[Any, Array]:
    """Rows in proportion to their importance, and weights for them with the same sums on average.

    Rows of large importance come several times. Few rows are all taken.
    """
    if _all_rows(weights.size, size) or not (total := float(importance.sum())) > 0:
        return slice(None), weights
    levels = (np.arange(size) + 0.5) * (total / size)
    chosen = np.minimum(np.searchsorted(np.cumsum(importance), levels), weights.size - 1)
    return chosen, weights[chosen] * (total / size) / importance[chosen]


def _hessian(objective: PenalisedLoss, weights: Array, renewals: int) -> Array:
    """Xᵀ diag(weights) X, with the intercept; of a sample of the rows."""
    d = objective.ridge.shape[0]
    chosen, weights = _sample(weights, weights, _sample_size(objective, d, renewals))
    X = objective.X[chosen]
    H = np.zeros((d, d))
    features = H[:-1, :-1] if objective.intercept else H
    equal = bool((weights == weights[0]).all())  # then rows need not be scaled
    root = np.sqrt(weights)
    block = max(1, BLOCK_ENTRIES // d)
    for start in range(0, weights.size, block):
        part = slice(start, start + block)
        rows = X[part].toarray() if is_sparse(X) else X[part]
        if not equal:
            rows = rows * root[part, None]
        features += rows.T @ rows
    if equal:
        features *= weights[0]
    if objective.intercept:
        H[-1, :-1] = H[:-1, -1] = X.T @ weights
        H[-1, -1] = weights.sum()
    return H


def _outer_gram(X: Any, scale: Array) -> Array:
    """X diag(scale) Xᵀ."""
    if scale.size and (scale == scale[0]).all():  # half the work where X is dense: it is symmetric
        gram = X @ X.T
        return np.asarray(scale[0] * (gram.toarray() if is_sparse(X) else gram))
    if is_sparse(X):
        return np.asarray((X.multiply(scale[None, :]).tocsr() @ X.T).toarray())
    return np.asarray((X * scale) @ X.T)


def _factor(matrix: Array) -> tuple[Array, Array]:
    """D and the Cholesky factor of DAD, where D makes the diagonal of DAD one."""
    diagonal = matrix.diagonal()
    scale = np.sqrt(_inverse(diagonal))
    scaled = matrix * scale * scale[:, None]
    for jitter in JITTERS:
        scaled[np.diag_indices_from(scaled)] = 1.0 + jitter
        factor, failed = lapack.dpotrf(scaled, lower=1, clean=0)
        if not failed:
            return scale, factor
    return scale, np.eye(scale.size, order="F")  # the diagonal alone is still a metric


def _solve(factor: tuple[Array, Array], g: Array) -> Array:
    scale, cholesky = factor
    solution, _ = lapack.dpotrs(cholesky, scale * g, lower=1)
    return np.asarray(scale * solution)


def _columns(a: Array) -> Any:
    return a.T if a.ndim == 2 else a[None]


def _like(gradient: Array, columns: list[Array]) -> Array:
    return np.stack(columns, axis=1) if gradient.ndim == 2 else columns[0]


def _outputs(objective: PenalisedLoss) -> int:
    return int(objective.ridge.size // objective.ridge.shape[0])


def _entries(X: Any) -> int:
    return int(X.nnz) if is_sparse(X) else int(X.size)
