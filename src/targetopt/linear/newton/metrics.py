"""Metrics M ≈ ∂²F for the full-batch Newton solver: exact factors where they are cheap.

A metric turns the gradient into a search direction, u = −M⁻¹∇F. It need not be up to date: the solver
minimises over a subspace with curvature that is. So a metric is renewed only when the steps left at
the present rate would cost more than renewing it, or in every step if it costs no more than two of
them. Costs are nanoseconds on one core of a current machine; only their ratios matter, and only for speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from targetopt.linear.newton.gram import (
    BLOCK_ENTRIES,
    PER_FLOP,
    SMALLEST,
    Factor,
    factor,
    factor_cost,
    gram,
    gram_cost,
    inverse,
    joint_cost,
    joint_gram,
    on_diagonal,
    solve,
)
from targetopt.linear.newton.objective import Array, PenalisedLoss, column_sums, is_sparse
from targetopt.linear.newton.samples import (
    FEWER,
    STEPS_OF_SAMPLES,
    far_sample,
    few,
    rows_of,
    sample,
    sample_size,
)

PER_ENTRY = {True: 0.8, False: 0.2}  # one stored entry of X in a product, sparse or dense
PER_SQUARE = {True: 1.2, False: 0.4}  # the same in the diagonal of a Hessian
PER_TARGET = 25.0  # one target in the loss, the subspace and the line search
PER_STEP = 2e5  # the interpreter's part of a step
WORTH_RENEWING = (
    4.0  # a Hessian that costs so many steps is renewed in each: steps become half as many
)
ENOUGH_RENEWALS = 4  # a well-behaved fit needs no more


class Metric(ABC):
    """M, renewed from the curvature at some iterate and then used for several."""

    patience: int  # steps before a renewal is considered
    of_rows = False  # M is a sum over rows, of which a sample can be taken
    outputs = 1  # problems that this metric serves, which share its price

    def __init__(self, objective: PenalisedLoss) -> None:
        self.objective = objective
        self.step = step_cost(objective)
        self._age: int | None = None
        self._renewals = 0
        self.far = False  # the minimum is: a sample will do, where there is one (`samples`)

    def update(
        self, curvature: Array, steps_left: float, *, always: bool = False, settled: bool = False
    ) -> None:
        """Called once a step, before :meth:`solve`; renews M if that pays, which is rarely so once F has settled."""
        if self._age is not None and not always:
            self._age += 1
            cost, step = self.price, self.step
            worth = self._age >= self.patience and cost < steps_left * step
            if not worth and (settled or cost > step / 3):  # what costs little is done until then
                return
        self._age = 0
        self.renew(curvature)
        self._renewals += 1

    @property
    def exact(self) -> bool:
        """Whether M, when renewed, is the Hessian itself: of all rows, outputs together."""
        return False

    @cached_property
    def fresh(self) -> bool:
        """Whether M is the Hessian of F at every step, since it costs so little."""
        return self.exact and self.price <= WORTH_RENEWING * self.step

    @cached_property
    def price(self) -> float:
        """What :meth:`renew` costs."""
        return self.cost(self.objective)

    @cached_property
    def samples(self) -> bool:
        """Whether the Hessian of a sample of the rows will do while the minimum is far."""
        rows = self.objective.weights.size
        return self.of_rows and self.fresh and FEWER * far_sample(self.objective) <= rows

    @property
    def far_price(self) -> float:
        """What the Hessian of such a sample costs."""
        return self.price * far_sample(self.objective) / self.objective.weights.size

    @property
    def price_again(self) -> float:
        """What every renewal but the first costs."""
        return self.price

    @property
    def ready(self) -> bool:
        """Whether M was renewed before; that of a quadratic stays as it is."""
        return self._age is not None

    @cached_property
    def _first_sample(self) -> int:
        return self.first_sample(self.objective)

    @property
    def _size(self) -> int:
        """How many rows a sample has now: twice as many each time after ENOUGH_RENEWALS were not enough."""
        if self.far:
            return far_sample(self.objective)
        return self._first_sample << max(0, min(self._renewals - ENOUGH_RENEWALS, 30))

    @property
    def _all_rows(self) -> bool:
        return few(self.objective.weights.size, self._size)

    @staticmethod
    def first_sample(objective: PenalisedLoss) -> int:
        """How many rows the first Hessian is computed from."""
        return int(objective.weights.size)

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

    def diagonal(self, curvature: Array) -> Array:
        """The diagonal of the Hessian of F's data part, shaped like θ."""
        weighted = self._weights(curvature)
        diagonal = _square_sums(self.objective, weighted)
        if self.objective.intercept:
            return np.concatenate([diagonal, column_sums(weighted)[None]])
        return diagonal

    def last_diagonal(self, curvature: Array) -> Array:
        """As :meth:`diagonal`, for the curvature that M was renewed from."""
        return self.diagonal(curvature)


def step_cost(objective: PenalisedLoss) -> float:
    """What one step of the solver costs: a product with X, one with Xᵀ, and the line search."""
    entries = 2 * product_cost(objective.X) + PER_TARGET * objective.weights.size
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
        return PER_SQUARE[objective.sparse] * _entries(objective.X) * _outputs(objective)

    def renew(self, curvature: Array) -> None:
        self._diagonal = self.diagonal(curvature)
        h = self._diagonal + self.objective.ridge
        self._inverse = inverse(np.sqrt(h * (h.mean() + 0.01 * h)))

    def last_diagonal(self, curvature: Array) -> Array:
        return self._diagonal

    def solve(self, gradient: Array) -> Array:
        return self._inverse * gradient


class Flat(Diagonal):
    """The penalty alone, Λ: with it conjugate gradients stay in the span of the rows, which are fewer than the columns.

    The spectrum then has no more than n + 1 values, the same as that of XΛ⁻¹Xᵀ plus one.
    """

    def renew(self, curvature: Array) -> None:
        self._diagonal = self.diagonal(curvature)
        self._inverse = inverse(self.objective.ridge)


class Primal(Metric):
    """Cholesky factors of Xᵀ diag(ω W) X + diag(λ), one for each output, nothing between outputs.

    If there are many more rows than columns, the factor is that of a sample of rows drawn in
    proportion to ω W, which makes the cost of a factor independent of n. Where that does not lead
    to fast convergence the samples grow, until they are all rows.
    """

    patience = 2
    of_rows = True

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        d = int(objective.ridge.shape[0])
        n = min(objective.weights.size, Primal.first_sample(objective))
        return _outputs(objective) * (gram_cost(objective, n) + factor_cost(d))

    @staticmethod
    def first_sample(objective: PenalisedLoss) -> int:
        return sample_size(
            objective, gram_cost, int(objective.ridge.shape[0]), _affordable(objective)
        )

    @property
    def exact(self) -> bool:
        return self.objective.ridge.ndim == 1 and self._all_rows

    def renew(self, curvature: Array) -> None:
        objective = self.objective
        weighted = _columns(self._weights(curvature))
        ridges = _columns(objective.ridge)
        self._factors: list[Factor] = []  # those before are spare now
        diagonals = []
        for weights, ridge in zip(weighted, ridges, strict=True):
            chosen, weights = sample(weights, weights, self._size)
            H = gram(objective, rows_of(objective.X, chosen), weights)
            diagonals.append(H.diagonal().copy())
            on_diagonal(H)[:] += ridge
            self._factors.append(factor(H, objective.loss.spare))
        self._diagonal = _like(self.objective.ridge, diagonals)

    def last_diagonal(self, curvature: Array) -> Array:
        return self._diagonal if self.exact else self.diagonal(curvature)

    def solve(self, gradient: Array) -> Array:
        columns = [
            solve(factored, g)
            for factored, g in zip(self._factors, _columns(gradient), strict=True)
        ]
        return _like(gradient, columns)


class Joint(Metric):
    """The Cholesky factor of the whole Hessian for softmax, all outputs together.

    With W_i = diag(p_i) − p_i p_iᵀ it is the outputs' own blocks Xᵀ diag(ω p_c) X less BᵀB, where
    row i of B is ω_i^½ x_i ⊗ p_i.
    """

    patience = 2
    of_rows = True

    @staticmethod
    def cost(objective: PenalisedLoss) -> float:
        n = min(objective.weights.size, Joint.first_sample(objective))
        return joint_cost(objective, n) + factor_cost(objective.ridge.size)

    @staticmethod
    def first_sample(objective: PenalisedLoss) -> int:
        return sample_size(objective, joint_cost, objective.ridge.size, _affordable(objective))

    @property
    def exact(self) -> bool:
        return self._all_rows

    def renew(self, curvature: Array) -> None:
        objective, (d, k) = self.objective, self.objective.ridge.shape
        importance = self._weights(curvature).sum(axis=1)
        chosen, weights = sample(objective.weights, importance, self._size)
        H = joint_gram(objective, rows_of(objective.X, chosen), weights, curvature[chosen])
        # Softmax does not see what all outputs share. Where no penalty does either, H is singular
        # along it; gradients have no part there, so any curvature will do.
        blocks = H.reshape(d, k, d, k)
        for j in np.flatnonzero((objective.ridge == 0).all(axis=1)):
            blocks[j, :, j, :] += blocks[j, :, j, :].diagonal().mean() / k
        on_diagonal(H)[:] += objective.ridge.ravel()
        self._factored: Factor | None = None  # the one before is spare now
        self._factored = factor(H, objective.loss.spare)

    def solve(self, gradient: Array) -> Array:
        assert self._factored is not None
        return solve(self._factored, gradient.ravel()).reshape(gradient.shape)


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

    @cached_property
    def _kernel(self) -> Array:
        return _outer_gram(self.objective.X, self._scale)

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
        return PER_FLOP * n * n * d + _outputs(objective) * factor_cost(n)

    @property
    def price_again(self) -> float:
        return _outputs(self.objective) * factor_cost(self.objective.weights.size)

    @property
    def exact(self) -> bool:
        return self.objective.ridge.ndim == 1

    def renew(self, curvature: Array) -> None:
        spare = self.objective.loss.spare
        self._blocks: list[tuple[Array, Factor, Array]] = []  # those before are spare now
        for weights in _columns(self._weights(curvature)):
            root = np.sqrt(weights)
            matrix = spare.take(self._kernel.shape).T
            np.multiply(self._kernel, root, out=matrix)
            matrix *= root[:, None]
            on_diagonal(matrix)[:] += 1.0
            factored = factor(matrix, spare)
            self._blocks.append((root, factored, solve(factored, root)))

    def solve(self, gradient: Array) -> Array:
        columns = [
            self._solve_one(*block, g)
            for block, g in zip(self._blocks, _columns(gradient), strict=True)
        ]
        return _like(gradient, columns)

    def _solve_one(self, root: Array, factored: Factor, eliminated: Array, g: Array) -> Array:
        X, intercept = self.objective.X, self.objective.intercept
        direct = self._scale * (g[:-1] if intercept else g)
        image = root * (X @ direct)
        inner = solve(factored, image)
        if not intercept:
            return np.asarray(direct - self._scale * (X.T @ (root * inner)))
        # The Schur complement is zero only where all curvature has vanished.
        bias = (g[-1] - eliminated @ image) / max(float(root @ eliminated), SMALLEST)
        inner += bias * eliminated
        return np.append(direct - self._scale * (X.T @ (root * inner)), bias)


def _square_sums(objective: PenalisedLoss, weighted: Array) -> Array:
    """(X∘X)ᵀ times the weights, one column of them for each output."""
    X = objective.X
    if objective.sparse:
        return np.asarray(objective.squares @ weighted)
    sums = np.zeros((X.shape[1], *weighted.shape[1:]))
    size = max(1, BLOCK_ENTRIES // max(1, X.shape[1]))
    buffer = objective.loss.spare.take((size, X.shape[1]))
    for start in range(0, X.shape[0], size):
        rows = X[start : start + size]
        squares = np.multiply(rows, rows, out=buffer[: rows.shape[0]])
        sums += squares.T @ weighted[start : start + size]
    return sums


def _outer_gram(X: Any, scale: Array) -> Array:
    """X diag(scale) Xᵀ."""
    if scale.size and (scale == scale[0]).all():  # half the work where X is dense: it is symmetric
        gram = X @ X.T
        return np.asarray(scale[0] * (gram.toarray() if is_sparse(X) else gram))
    if is_sparse(X):
        return np.asarray((X.multiply(scale[None, :]).tocsr() @ X.T).toarray())
    return np.asarray((X * scale) @ X.T)


def _affordable(objective: PenalisedLoss) -> float:
    """What the Hessian of all rows may cost."""
    steps = STEPS_OF_SAMPLES if objective.loss.quadratic else WORTH_RENEWING
    return steps * step_cost(objective)


def _columns(a: Array) -> Any:
    return a.T if a.ndim == 2 else a[None]


def _like(gradient: Array, columns: list[Array]) -> Array:
    return np.stack(columns, axis=1) if gradient.ndim == 2 else columns[0]


def _outputs(objective: PenalisedLoss) -> int:
    return int(objective.ridge.size // objective.ridge.shape[0])


def product_cost(X: Any) -> float:
    """What a product with X costs."""
    return PER_ENTRY[is_sparse(X)] * _entries(X)


def _entries(X: Any) -> float:
    return float(X.nnz if is_sparse(X) else X.size)
