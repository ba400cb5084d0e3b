"""From theory to practice: η, m and the batch size for an oracle of a given cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from targetopt import losses
from targetopt.theory.conditions import OutsideAssumptions
from targetopt.theory.constants import loss_constants
from targetopt.theory.costs import best_inner_steps
from targetopt.theory.exact_problem import (
    Array,
    ExactProblem,
    Rows,
    batch_grams,
    sampled_batches,
    sso_steps,
)
from targetopt.theory.measure import gradient_noise
from targetopt.types import BadArgument

_LARGEST = 400  # parameters; a rehearsal keeps a matrix per batch
_SEEDS = 8
_WORTH_KNOWING = 30  # times the best cost
_MOST_STEPS = 5_000


@dataclass(frozen=True, eq=False)
class Measurements:
    """What one full-batch oracle call says of a problem: enough to rehearse it without the oracle.

    The problem is taken as ½ mean_i w_i (x_iᵀθ − y_i)², y_i = z_i − g_i/w_i: exact for the squared loss; for
    others the better, the nearer θ is to a minimum.

    Args:
        X: Jacobian ∂z/∂θ at θ, shape (n, d); the data themselves for a linear model.
        targets: z = f(θ), shape (n,).
        gradients: g, one per example.
        curvature: w = ∂²ℓ_i/∂z_i² > 0; for a loss whose curvature is not known, its L.
        smoothness: L.
    """

    X: ArrayLike
    targets: ArrayLike
    gradients: ArrayLike
    curvature: ArrayLike
    smoothness: float

    def __post_init__(self) -> None:
        X = np.asarray(self.X, dtype=np.float64)
        if X.ndim != 2:
            raise BadArgument(f"X must have shape (examples, parameters); got {X.shape}")
        if X.shape[1] > _LARGEST:
            raise BadArgument(
                f"X has {X.shape[1]} parameters; advice is computed up to {_LARGEST}. Pass the most "
                "important columns, or a last layer."
            )
        rows = {"X": X}
        for name in ("targets", "gradients", "curvature"):
            rows[name] = np.asarray(getattr(self, name), dtype=np.float64)
            if rows[name].shape != X.shape[:1]:
                raise BadArgument(
                    f"{name} must have one number per example, shape {X.shape[:1]}; got "
                    f"{rows[name].shape}"
                )
        for name, value in rows.items():
            if not np.isfinite(value).all():
                raise BadArgument(f"{name} must be finite")
            object.__setattr__(self, name, value)
        if not (rows["curvature"] > 0).all():
            raise BadArgument(
                f"curvature must be positive; its least is {rows['curvature'].min():.3g}. Use the loss's L "
                "for examples whose curvature vanishes."
            )
        if not self.smoothness >= float(rows["curvature"].max()) * (1 - 1e-9):
            raise BadArgument(
                f"smoothness={self.smoothness} is below the largest curvature, {rows['curvature'].max():.6g}"
            )

    @classmethod
    def of(cls, problem: Any, theta: ArrayLike | None = None) -> Measurements:
        """Measure a linear problem at ``theta`` (the origin by default)."""
        linear = ExactProblem.of(problem)
        L, _ = loss_constants(linear.loss)
        z = linear.X @ (np.zeros(linear.d) if theta is None else np.asarray(theta))
        curvature = np.maximum(linear.curvature(z), 1e-3 * L)  # flat examples: no Newton step
        return cls(linear.X, z, linear.gradient(z), curvature, L)

    def quadratic(self) -> tuple[ExactProblem, Array]:
        """The quadratic model, and θ − θ_0 at which its targets are those measured."""
        X, z = np.asarray(self.X), np.asarray(self.targets)
        weights = np.asarray(self.curvature)
        labels = z - np.asarray(self.gradients) / weights
        theta, *_ = np.linalg.lstsq(X, z, rcond=None)
        offset = z - X @ theta  # a non-linear model's targets need not lie in the span of X
        loss = _WeightedSquares(torch.from_numpy(labels - offset), torch.from_numpy(weights))
        loss.smoothness = self.smoothness
        return ExactProblem(X, loss), np.asarray(theta)


class _WeightedSquares(losses.Squared):
    """½ w_i (z_i − y_i)²."""

    def __init__(self, y: torch.Tensor, weights: torch.Tensor) -> None:
        super().__init__(y)
        self.weights = weights
        self.strong_convexity = float(weights.min())

    def value(self, z: torch.Tensor) -> torch.Tensor:
        return self.weights * super().value(z)

    def gradient(self, z: torch.Tensor) -> torch.Tensor:
        return self.weights * super().gradient(z)

    def curvature(self, z: torch.Tensor) -> torch.Tensor:
        return self.weights

    def rows(self, index: torch.Tensor) -> _WeightedSquares:
        return _WeightedSquares(self.y[index], self.weights[index])


@dataclass(frozen=True)
class Advice:
    """A suggestion and why.

    Attributes:
        lr: η for `to.SSO` and `to.linear.fit`.
        inner_steps: m.
        inner_step_size: α for `to.GradientDescent`; `to.Armijo` finds its own.
        batch_size: b.
        oracle_calls: outer steps expected until the accuracy is reached.
        cost: what they cost, in inner gradients of one example.
        sgd_cost: what the best m = 1 costs (infinite beyond 30 times ``cost``).
        reasons: the reasoning, line by line; ``str(advice)`` joins them.
    """

    lr: float
    inner_steps: int
    inner_step_size: float
    batch_size: int
    oracle_calls: int
    cost: float
    sgd_cost: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.reasons)


@dataclass(frozen=True)
class _Plan:
    batch_size: int
    inner_steps: int
    eta: float
    relative_step: float
    steps: int
    cost: float


def advise(
    problem: Any,
    *,
    tau: float,
    accuracy: float = 0.01,
    batch_sizes: Sequence[int] | None = None,
    theta: ArrayLike | None = None,
    seed: int = 0,
    show: bool = True,
) -> Advice:
    """Suggest η, m and b for an oracle that costs τ surrogate gradients, and print why.

    The plan is *rehearsed*: SSO is run with each candidate (b, m, η), on the problem itself if its loss
    is at hand, on the quadratic model of `Measurements` (no oracle call at all) if not, until the
    objective's distance to its minimum is ``accuracy`` times the first one; the cheapest wins. A step
    costs b(τ + m). Candidates for m come from `best_inner_steps`, for η from 1/L down (smaller η,
    smaller floor of noise and bias: Thm 4.2, Prop. 4.3). Data without a minimiser (separable) are
    refused; pass ``Measurements.of(problem)`` for them.

    Args:
        problem: a linear problem (`targetopt.lab.problems` or `ExactProblem`), or `Measurements`.
        tau: cost of the oracle on one example over that of one inner gradient on one example.
        accuracy: wanted (h(θ) − h*)/(h(θ_0) − h*).
        batch_sizes: allowed b; by default n, n/4, n/16, ….
        theta: where to measure a problem; the origin by default.
        seed: of the rehearsal's batches.
        show: print the reasoning.

    Example:
        >>> import torch, targetopt as to
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(64, 4)) * [1.0, 1.0, 0.1, 0.1]
        >>> twin = ExactProblem(X, to.losses.Squared(torch.from_numpy(rng.normal(size=64))))
        >>> cheap, dear = (advise(twin, tau=t, show=False) for t in (0.0, 1000.0))
        >>> cheap.inner_steps < dear.inner_steps
        True
    """
    if not 0 <= tau < math.inf:
        raise BadArgument(f"tau={tau!r} must be at least 0 and finite: the oracle's relative cost")
    if not 0 < accuracy < 1:
        raise BadArgument(f"accuracy={accuracy!r} must lie between 0 and 1")
    if isinstance(problem, Measurements):
        exact, start = problem.quadratic()
    else:
        exact = ExactProblem.of(problem)
        start = np.zeros(exact.d) if theta is None else np.asarray(theta, dtype=np.float64)
        if exact.d > _LARGEST:
            raise BadArgument(
                f"the problem has {exact.d} parameters; advice is computed up to {_LARGEST}"
            )
    L, _ = loss_constants(exact.loss)
    rehearsal = _Rehearsal(exact, start, accuracy, seed)
    n = exact.n
    sizes = _geometric(n) if batch_sizes is None else sorted(set(batch_sizes), reverse=True)
    if not sizes or not all(1 <= b <= n for b in sizes):
        raise BadArgument(f"batch_sizes={batch_sizes!r} must be whole numbers from 1 to n={n}")
    best: _Plan | None = None
    sgd: _Plan | None = None
    for b in sizes:
        steps = best_inner_steps(tau, rehearsal.inner_condition(b))
        for m in sorted({1, max(1, steps // 4), steps, 4 * steps}, reverse=True):
            for shrink in (0.5, 1, 4, 16):
                limit = math.inf if best is None else best.cost
                if m == 1:  # worth knowing, even where it loses
                    limit = _WORTH_KNOWING * limit if sgd is None else max(sgd.cost, limit)
                plan = rehearsal.run(b, m, 0.5 / L / shrink, tau, limit)
                if plan is None:
                    continue
                if best is None or plan.cost < best.cost:
                    best = plan
                if m == 1 and (sgd is None or plan.cost < sgd.cost):
                    sgd = plan
    if best is None:
        raise OutsideAssumptions(
            "advise",
            (
                f"a plan that reaches accuracy={accuracy} in {_MOST_STEPS} steps; none of batch sizes "
                f"{list(sizes)} does. Allow larger batches or a larger accuracy",
            ),
        )
    advice = Advice(
        lr=best.eta,
        inner_steps=best.inner_steps,
        inner_step_size=best.relative_step * best.eta,
        batch_size=best.batch_size,
        oracle_calls=best.steps,
        cost=best.cost,
        sgd_cost=math.inf if sgd is None else sgd.cost,
        reasons=_reasons(rehearsal, tau, accuracy, best, sgd),
    )
    if show:
        print(advice)
    return advice


def _geometric(n: int) -> list[int]:
    sizes: list[int] = []
    b = n
    while b >= 1 and len(sizes) < 6:
        sizes.append(b)
        b //= 4
    return sizes


class _Rehearsal:
    """Runs of SSO on a problem that is known exactly, stopped when good enough or too dear."""

    def __init__(self, problem: ExactProblem, start: Array, accuracy: float, seed: int) -> None:
        self.problem = problem
        self.start = start
        self.least = float(problem.objective(problem.minimiser))
        self.wanted = accuracy * (float(problem.objective(start)) - self.least)
        self.rng = np.random.default_rng(seed)
        self._rows: dict[int, Rows] = {}
        self._spectra: dict[int, Array] = {}
        self._table: tuple[tuple[int, int], Array] | None = None

    def spectra(self, b: int) -> Array:
        """Eigenvalues of X_BᵀX_B/b for some batches."""
        if b not in self._rows:
            entries = self.problem.d * max(b, self.problem.d)
            count = int(np.clip(8_000_000 // entries, 32, 512))
            self._rows[b] = sampled_batches(self.problem.n, b, count, self.rng)
            grams = batch_grams(self.problem.X, self._rows[b])
            self._spectra[b] = np.asarray(np.linalg.eigvalsh(grams), dtype=np.float64)
        return self._spectra[b]

    def inner_condition(self, b: int) -> float:
        """κ_g on the span of the batch's rows: largest curvature over the median batch's least."""
        spectra = self.spectra(b)
        floor = spectra.max() * 1e-10
        least = np.where(spectra > floor, spectra, np.inf).min(axis=1)
        return max(1.0, float(spectra.max() / np.median(least)))

    def run(self, b: int, m: int, eta: float, tau: float, limit: float) -> _Plan | None:
        """Rehearse one plan; ``None`` when it costs more than ``limit`` or never arrives."""
        problem, relative = self.problem, 1 / float(self.spectra(b).max())
        rows = self._rows[b]
        if self._table is None or self._table[0] != (b, m):
            self._table = ((b, m), sso_steps(problem.X, rows, m, relative_step=relative))
        table = self._table[1]
        per_step = b * (tau + m)
        rng = np.random.default_rng(0)
        theta = np.tile(self.start, (_SEEDS if b < problem.n else 1, 1))
        lowest, lowest_at = math.inf, 0
        for t in range(1, int(min(_MOST_STEPS, limit / per_step)) + 1):
            k = rng.integers(len(rows), size=len(theta))
            answers = np.take_along_axis(problem.gradient(theta @ problem.X.T), rows[k], axis=1)
            theta = theta - eta * np.einsum("sdb,sb->sd", table[k], answers)
            if t & (t - 1) and t % max(1, t // 32):
                continue  # the objective is looked at some 32 times per doubling of t
            gap = float(problem.objective(theta).mean()) - self.least
            if gap <= self.wanted:
                return _Plan(b, m, eta, relative, t, t * per_step)
            if gap < 0.99 * lowest:
                lowest, lowest_at = gap, t
            elif not gap < math.inf or t > 2 * lowest_at + 200:
                return None  # at its floor, or on its way out
        return None


def _reasons(
    rehearsal: _Rehearsal, tau: float, accuracy: float, best: _Plan, sgd: _Plan | None
) -> tuple[str, ...]:
    problem = rehearsal.problem
    L, _ = loss_constants(problem.loss)
    weights = problem.curvature(problem.solution)
    spectrum = np.linalg.eigvalsh(problem.X.T @ (weights[:, None] * problem.X))
    positive = spectrum[spectrum > spectrum[-1] * 1e-12]
    n, b, m = problem.n, best.batch_size, best.inner_steps
    inner, share = rehearsal.inner_condition(b), L * best.eta
    lines = [
        f"problem: n = {n}, {problem.d} parameters; κ_θ = {positive[-1] / positive[0]:.3g} at the minimum, "
        f"so many steps per e-fold for gradient descent; L = {L:.3g} in target space",
        f"batch size {b}{' (all data)' if b == n else ''}: noise σ² = {gradient_noise(problem, b):.3g} at the "
        f"minimum; κ of the targets n/b·L/μ = {n / b * L / float(weights.min()):.3g}; inner problems have "
        f"κ_g = {inner:.3g}",
        f"m = {m}: an oracle call costs as much as τ = {tau:.6g} inner steps; "
        f"(τ + m)/(1 − (1 − 1/κ_g)^m) is least near m = {best_inner_steps(tau, inner)}",
        f"lr = {best.eta:.6g} = {share:.3g}/L"
        + ("" if share > 0.4 else ": larger steps stop at a floor of noise and bias"),
        f"rehearsed: {best.steps} oracle calls to reach {accuracy:.3g} of the first gap, at a cost of "
        f"{best.cost:.4g} inner gradients of one example",
    ]
    if sgd is None:
        lines.append(
            f"m = 1 (SGD) costs more than {_WORTH_KNOWING} times as much, or never gets there"
        )
    elif m == 1:
        lines.append("m = 1 is best here, which is SGD: the oracle is too cheap to save on")
    else:
        lines.append(
            f"the best m = 1 (SGD: b = {sgd.batch_size}, α = {sgd.eta * sgd.relative_step:.3g}) needs "
            f"{sgd.steps} oracle calls, {sgd.cost / best.cost:.3g} times the cost"
        )
    return tuple(lines)
