"""A linear problem small enough to know everything about: minimiser, batches, expected steps.

For targets z = Xθ every variant of SSO whose inner solver is exact or gradient descent is *linear in the
oracle's answer*: θ_{t+1} = θ_t − η_t R_B g_B with a matrix R_B that depends on the batch B alone. So
whole runs for hundreds of seeds are table look-ups, and expectations over batches are exact sums.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from targetopt import losses
from targetopt.theory.conditions import OutsideAssumptions
from targetopt.theory.constants import (
    ParameterConstants,
    TargetConstants,
    loss_constants,
    parameter_constants,
)
from targetopt.types import BadArgument

Array = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class ExactProblem:
    """h(θ) = (1/n) Σ ℓ_i(x_iᵀθ), with one target per example.

    Args:
        X: shape (n, d), float64.
        loss: a `targetopt.losses` loss of n examples with a closed-form curvature.

    Example:
        >>> X = np.array([[1.0], [2.0]])
        >>> problem = ExactProblem(X, losses.Squared(torch.tensor([1.0, -0.5])))  # Prop. 4.4
        >>> problem.minimiser
        array([0.])
    """

    X: Array
    loss: losses.Loss

    def __post_init__(self) -> None:
        X = np.asarray(self.X, dtype=np.float64)
        if X.ndim != 2 or 0 in X.shape or not np.isfinite(X).all():
            raise BadArgument(f"X must be a finite matrix (examples, features); got {X.shape}")
        object.__setattr__(self, "X", X)
        try:
            fits = self.loss.value(torch.zeros(self.n, dtype=torch.float64)).shape == (self.n,)
        except BadArgument:
            fits = False
        if not fits:
            raise BadArgument(
                f"loss={type(self.loss).__name__} must have one label per row of X, shape ({self.n},), and one "
                "target per example. Take the labels of the same rows, as a vector."
            )

    @classmethod
    def of(cls, problem: Any) -> ExactProblem:
        """The linear problem behind a ``targetopt.lab.problems`` problem (its ``.linear``), or itself."""
        if isinstance(problem, ExactProblem):
            return problem
        linear = getattr(problem, "linear", None)
        if linear is None:
            raise OutsideAssumptions(
                "exact theory",
                (f"linear targets z = Xθ; {type(problem).__name__} has no .linear data",),
            )
        if linear.outputs != 1:
            raise OutsideAssumptions(
                "exact theory", (f"one target per example; the problem has {linear.outputs}",)
            )
        if linear.weight_decay:
            raise OutsideAssumptions(
                "exact theory",
                (
                    f"no penalty on θ: Thm 4.2 is about ℓ(z) alone; the problem has weight_decay={linear.weight_decay}",
                ),
            )
        X = linear.X.toarray() if hasattr(linear.X, "toarray") else np.asarray(linear.X)
        if linear.bias:
            X = np.hstack([X, np.ones((X.shape[0], 1))])
        return cls(X.astype(np.float64), linear.loss(torch.as_tensor(np.asarray(linear.y))))

    @property
    def n(self) -> int:
        """Examples."""
        return int(self.X.shape[0])

    @property
    def d(self) -> int:
        """Parameters."""
        return int(self.X.shape[1])

    def values(self, z: Array) -> Array:
        """ℓ_i(z_i), for targets of shape (…, n)."""
        return self._elementwise("value", z)

    def gradient(self, z: Array) -> Array:
        """g_i = ∂ℓ_i/∂z_i, for targets of shape (…, n)."""
        return self._elementwise("gradient", z)

    def curvature(self, z: Array) -> Array:
        """∂²ℓ_i/∂z_i², for targets of shape (…, n)."""
        return self._elementwise("curvature", z)

    def objective(self, theta: Array) -> Array:
        """h(θ), for θ of shape (…, d)."""
        mean: Array = self.values(theta @ self.X.T).mean(axis=-1)
        return mean

    @cached_property
    def minimiser(self) -> Array:
        """θ*, by Newton's method with backtracking, to the last digits (the shortest of several)."""
        theta = np.zeros(self.d)
        floor = 1e-24 * abs(float(self.objective(theta))) + 1e-300
        for _ in range(200):
            step, slope = self._newton_step(theta)
            value, decrease = float(self.objective(theta)), float(slope @ step)
            if decrease <= 1e-12 * abs(value) + floor:
                return self._polished(theta)
            size = 1.0
            while float(self.objective(theta - size * step)) > value - 1e-4 * size * decrease:
                size /= 2
                if size < 1e-12:
                    return self._polished(theta)
            theta = theta - size * step
        raise OutsideAssumptions("exact theory", ("a minimiser; Newton's method found none",))

    def _newton_step(self, theta: Array) -> tuple[Array, Array]:
        """The Newton direction (H⁺∇h) and ∇h."""
        z = self.X @ theta
        g, root = self.gradient(z) / self.n, np.sqrt(self.curvature(z) / self.n)
        scaled = np.divide(g, root, out=np.zeros(self.n), where=root > 0)
        return np.asarray(np.linalg.pinv(root[:, None] * self.X) @ scaled), self.X.T @ g

    def _polished(self, theta: Array) -> Array:
        """A few full steps: below the noise floor of h the gradient still improves."""
        best, least = theta, math.inf
        for _ in range(4):
            step, slope = self._newton_step(theta)
            length = float(np.linalg.norm(slope))
            if length < least:
                best, least = theta, length
            theta = theta - step
        self._check_minimum(best)
        return best

    def _check_minimum(self, theta: Array) -> None:
        """Refuse a point where only the curvature's decay made the gradient small."""
        columns, sizes, _ = np.linalg.svd(self.X, full_matrices=False)
        columns = columns[:, sizes > sizes[0] * 1e-12]
        weights = self.curvature(self.X @ theta)
        least = float(np.linalg.eigvalsh(columns.T @ (weights[:, None] * columns))[0])
        if least < 1e-10 * loss_constants(self.loss)[0]:
            raise OutsideAssumptions(
                "exact theory",
                ("a minimiser: the objective falls for ever in some direction (separable data)",),
            )

    @cached_property
    def solution(self) -> Array:
        """z* = Xθ*, the minimiser of ℓ over the targets that the model can produce."""
        return np.asarray(self.X @ self.minimiser)

    def target_constants(self, batch_size: int) -> TargetConstants:
        """L, μ and κ in target space for batches of this size."""
        L, mu = loss_constants(self.loss)
        return TargetConstants(L, mu, self.n, batch_size)

    def parameter_constants(self) -> ParameterConstants:
        """L_θ, μ_θ, κ_θ."""
        return parameter_constants(self.X, *loss_constants(self.loss))

    def restricted(self, rows: Rows) -> ExactProblem:
        """The problem of one batch."""
        return ExactProblem(self.X[rows], self.loss.rows(torch.as_tensor(rows)))

    def _elementwise(self, what: str, z: Array) -> Array:
        z = np.asarray(z, dtype=np.float64)
        if z.shape[-1:] != (self.n,):
            raise BadArgument(f"targets must have shape (…, {self.n}); got {z.shape}")
        repeats = z.size // self.n
        loss = self._repeated.get(repeats)
        if loss is None:
            loss = self.loss.rows(torch.arange(self.n).repeat(repeats))
            self._repeated[repeats] = loss
        found = getattr(loss, what)(torch.from_numpy(np.ascontiguousarray(z).reshape(-1)))
        return np.asarray(found.numpy().reshape(z.shape))

    @cached_property
    def _repeated(self) -> dict[int, losses.Loss]:
        """The loss on several copies of the data, by the number of copies: one call for all seeds."""
        return {}


def all_batches(n: int, batch_size: int, limit: int = 20_000) -> Rows:
    """Every batch of b out of n examples, so that an average over them is the expectation.

    Example:
        >>> all_batches(3, 2).tolist()
        [[0, 1], [0, 2], [1, 2]]
    """
    if not 1 <= batch_size <= n:
        raise BadArgument(f"batch_size={batch_size} must lie between 1 and n={n}")
    count = math.comb(n, batch_size)
    if count > limit:
        raise BadArgument(
            f"there are {count} batches of {batch_size} out of {n}, more than limit={limit}. Use "
            "sampled_batches."
        )
    return np.array(list(itertools.combinations(range(n), batch_size)), dtype=np.intp)


def sampled_batches(n: int, batch_size: int, count: int, rng: np.random.Generator) -> Rows:
    """Independent uniform batches, each without replacement."""
    if not 1 <= batch_size <= n:
        raise BadArgument(f"batch_size={batch_size} must lie between 1 and n={n}")
    if batch_size == n:
        return np.arange(n, dtype=np.intp)[None]
    return np.stack([rng.choice(n, batch_size, replace=False) for _ in range(count)])


def batch_grams(X: Array, rows: Rows) -> Array:
    """X_BᵀX_B/b of each batch, shape (batches, d, d)."""
    chosen = X[rows]
    grams: Array = np.einsum("kbi,kbj->kij", chosen, chosen) / rows.shape[1]
    return grams


def sso_steps(
    X: Array, rows: Rows, inner_steps: float = math.inf, *, relative_step: float | None = None
) -> Array:
    """R_B of SSO (the same batch for gradient and regulariser), shape (batches, d, b).

    m steps of gradient descent with α = η·a on g̃ give ::

        R_B = (I − (I − aM)^m) M⁺ X_Bᵀ/b,   M = X_BᵀX_B/b;   m = ∞: R_B = X_B⁺

    and m = 1 gives SGD with step α.

    Args:
        X, rows: data and batches.
        inner_steps: m, or ``math.inf``.
        relative_step: a = α/η; by default 1/max_B λ_max(M), so that α = 1/L_g.
    """
    if math.isinf(inner_steps):
        return np.asarray(np.linalg.pinv(X[rows]))
    grams = batch_grams(X, rows)
    return np.asarray(_descended(grams, inner_steps, relative_step) @ _adjoint(X, rows))


def unbiased_steps(
    X: Array, rows: Rows, inner_steps: float = math.inf, *, relative_step: float | None = None
) -> Array:
    """R_B of the analysis surrogate q̃: gradient on the batch, regulariser on all data (η' = ηn).

    As `sso_steps`, with M = XᵀX/n for every batch; its average over batches is the full-batch step.
    """
    gram = (X.T @ X / X.shape[0])[None]
    if math.isinf(inner_steps):
        return np.asarray(np.linalg.pinv(gram, hermitian=True) @ _adjoint(X, rows))
    return np.asarray(_descended(gram, inner_steps, relative_step) @ _adjoint(X, rows))


def _adjoint(X: Array, rows: Rows) -> Array:
    return np.asarray(np.swapaxes(X[rows], 1, 2) / rows.shape[1])


def _descended(grams: Array, inner_steps: float, relative_step: float | None) -> Array:
    """(I − (I − aM)^m) M⁺, with a·m in the null space of M (where it multiplies nought)."""
    values, vectors = np.linalg.eigh(grams)
    a = 1 / float(values.max()) if relative_step is None else relative_step
    small = values <= values.max() * 1e-14
    safe = np.where(small, 1.0, values)
    # 1 − (1 − aλ)^m without cancellation for small aλ; GD with aλ > 1 alternates in sign
    within = a * values < 1
    gain = np.where(
        within,
        -np.expm1(inner_steps * np.log1p(-a * np.where(within, values, 0.0))),
        1 - (1 - a * values) ** inner_steps,
    )
    scaled = np.where(small, a * inner_steps, gain / safe)
    product: Array = np.einsum("kij,kj,klj->kil", vectors, scaled, vectors)
    return product


@dataclass(frozen=True)
class Runs:
    """What many runs of one method did, in the mean norm of the targets.

    Attributes:
        distance: ‖z_t − z*‖, shape (T+1, seeds), t = 1 … T+1.
        projection_error: ε_{t+1} = ‖z_{t+1} − z̄_{t+1}‖, shape (T, seeds).
        theta: the last parameters, shape (seeds, d).
    """

    distance: Array
    projection_error: Array
    theta: Array


def simulate(
    problem: ExactProblem,
    rows: Rows,
    steps: Array,
    etas: ArrayLike,
    *,
    start: ArrayLike,
    seeds: int,
    rng: np.random.Generator,
) -> Runs:
    """θ_{t+1} = θ_t − η_t R_B g_B for many seeds at once, batches drawn independently each step.

    Args:
        problem: what is minimised.
        rows: the batches, drawn uniformly; ``all_batches`` makes the draws exact.
        steps: R, from `sso_steps` or `unbiased_steps` on the same rows.
        etas: η_1 … η_T in the library's (mean) convention.
        start: θ_1, shape (d,).
        seeds: number of runs.
        rng: where the batches come from.
    """
    X, solution = problem.X, problem.solution
    exact = unbiased_steps(X, rows)
    multipliers = np.atleast_1d(np.asarray(etas, dtype=np.float64))
    theta = np.tile(np.asarray(start, dtype=np.float64), (seeds, 1))
    distance = np.empty((len(multipliers) + 1, seeds))
    error = np.empty((len(multipliers), seeds))
    drawn = rng.integers(len(rows), size=(len(multipliers), seeds))
    per_mean = 1 / math.sqrt(problem.n)
    for t, eta in enumerate(multipliers):
        z = theta @ X.T
        distance[t] = np.linalg.norm(z - solution, axis=1) * per_mean
        batch = drawn[t]
        answer = np.take_along_axis(problem.gradient(z), rows[batch], axis=1)
        move = np.einsum("sdb,sb->sd", steps[batch], answer)
        ideal = np.einsum("sdb,sb->sd", exact[batch], answer)
        error[t] = eta * np.linalg.norm((move - ideal) @ X.T, axis=1) * per_mean
        theta = theta - eta * move
    distance[-1] = np.linalg.norm(theta @ X.T - solution, axis=1) * per_mean
    return Runs(distance, error, theta)
