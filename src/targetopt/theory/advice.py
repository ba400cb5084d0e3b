"""From theory to practice: η, m and the batch size for an oracle of a given cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from targetopt.theory.conditions import OutsideAssumptions
from targetopt.theory.constants import loss_constants
from targetopt.theory.costs import best_inner_steps
from targetopt.theory.exact_problem import (
    Array,
    ExactProblem,
    batch_grams,
    sampled_batches,
    sso_steps,
)
from targetopt.types import BadArgument

_LARGEST = 400  # parameters; a rehearsal keeps a d × d matrix per batch
_SEEDS = 16
_MOST_STEPS = 20_000


@dataclass(frozen=True, eq=False)
class Measurements:
    """What one full-batch oracle call says of a problem: enough to rehearse it without the oracle.

    Near its minimum the problem is taken as ½ mean_i w_i (x_iᵀθ − y_i)², y_i = z_i − g_i/w_i.

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
        sgd_cost: what the best m = 1 costs (infinite if none gets there).
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

    The problem's quadratic model is *rehearsed*: SSO is run on it with each candidate (b, m, η), with no
    oracle call at all, until the objective is ``accuracy`` times its first distance to the minimum; the
    cheapest wins. A step costs b(τ + m). Candidates for m come from `best_inner_steps`, for η from 1/L
    down (smaller η, smaller floor of noise and bias: Thm 4.2, Prop. 4.3).

    Args:
        problem: a linear problem (`targetopt.problems` or `ExactProblem`), or `Measurements`.
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
        >>> cheap.inner_steps < dear.inner_steps, cheap.oracle_calls > dear.oracle_calls
        (True, True)
    """
    if not 0 <= tau < math.inf:
        raise BadArgument(f"tau={tau!r} must be at least 0 and finite: the oracle's relative cost")
    if not 0 < accuracy < 1:
        raise BadArgument(f"accuracy={accuracy!r} must lie between 0 and 1")
    data = problem if isinstance(problem, Measurements) else Measurements.of(problem, theta)
    rehearsal = _Rehearsal(data, accuracy, seed)
    n = rehearsal.n
    sizes = _geometric(n) if batch_sizes is None else sorted(set(batch_sizes), reverse=True)
    if not sizes or not all(1 <= b <= n for b in sizes):
        raise BadArgument(f"batch_sizes={batch_sizes!r} must be whole numbers from 1 to n={n}")
    best: _Plan | None = None
    sgd: _Plan | None = None
    for b in sizes:
        steps = best_inner_steps(tau, max(rehearsal.inner_condition(b), 1.0))
        for m in sorted({1, max(1, steps // 4), steps, 4 * steps}):
            for shrink in (0.5, 1, 4, 16):
                limit = math.inf if best is None else best.cost
                if m == 1:
                    limit = math.inf if sgd is None else max(sgd.cost, limit)
                plan = rehearsal.run(b, m, 0.5 / data.smoothness / shrink, tau, limit)
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
        reasons=_reasons(rehearsal, data, tau, accuracy, best, sgd),
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
    """SSO on the quadratic model, with x = θ − θ*: x ← x − η(R_B W_B X_B x + R_B g*_B)."""

    def __init__(self, data: Measurements, accuracy: float, seed: int) -> None:
        self.X = np.asarray(data.X)
        self.n, self.d = self.X.shape
        self.weights = np.asarray(data.curvature)
        labels = np.asarray(data.targets) - np.asarray(data.gradients) / self.weights
        root = np.sqrt(self.weights)
        start, *_ = np.linalg.lstsq(self.X, np.asarray(data.targets), rcond=None)
        best, *_ = np.linalg.lstsq(root[:, None] * self.X, root * labels, rcond=None)
        self.start = start - best
        self.residual = self.weights * (self.X @ best - labels)
        self.hessian = self.X.T @ (self.weights[:, None] * self.X) / self.n
        self.wanted = accuracy * float(self.start @ self.hessian @ self.start)
        self.rng = np.random.default_rng(seed)
        count = int(np.clip(4_000_000 // self.d**2, 64, 512))
        self.count = count
        self._rows: dict[int, Any] = {}
        self._spectra: dict[int, Array] = {}
        self._parts: tuple[tuple[int, int], Array, Array] | None = None

    def rows(self, b: int) -> Any:
        if b not in self._rows:
            self._rows[b] = sampled_batches(self.n, b, self.count, self.rng)
            self._spectra[b] = np.asarray(
                np.linalg.eigvalsh(batch_grams(self.X, self._rows[b])), dtype=np.float64
            )
        return self._rows[b]

    def inner_condition(self, b: int) -> float:
        """κ_g on the span of the batch's rows, the median batch over the largest curvature."""
        self.rows(b)
        spectra = self._spectra[b]
        floor = spectra.max() * 1e-10
        least = np.where(spectra > floor, spectra, np.inf).min(axis=1)
        return float(spectra.max() / np.median(least))

    def run(self, b: int, m: int, eta: float, tau: float, limit: float) -> _Plan | None:
        """Rehearse one plan; ``None`` when it costs more than ``limit`` or never arrives."""
        rows = self.rows(b)
        relative = 1 / float(self._spectra[b].max())
        if self._parts is None or self._parts[0] != (b, m):
            table = sso_steps(self.X, rows, m, relative_step=relative)
            pull = table @ (self.weights[rows][..., None] * self.X[rows])
            push = np.einsum("kdb,kb->kd", table, self.residual[rows])
            self._parts = ((b, m), pull, push)
        _, pull, push = self._parts
        per_step = b * (tau + m)
        most = int(min(_MOST_STEPS, limit / per_step))
        rng = np.random.default_rng(0)
        x = np.tile(self.start, (_SEEDS if b < self.n else 1, 1))
        below = 0
        for t in range(1, most + 1):
            k = rng.integers(len(rows), size=len(x))
            x = x - eta * (np.einsum("sij,sj->si", pull[k], x) + push[k])
            gap = float(np.einsum("si,ij,sj->s", x, self.hessian, x).mean())
            if gap <= self.wanted:
                below += 1
                if below >= (1 if b == self.n else 3):  # there, and not by chance
                    return _Plan(b, m, eta, relative, t, t * per_step)
            else:
                below = 0
        return None


def _reasons(
    rehearsal: _Rehearsal,
    data: Measurements,
    tau: float,
    accuracy: float,
    best: _Plan,
    sgd: _Plan | None,
) -> tuple[str, ...]:
    spectrum = np.linalg.eigvalsh(rehearsal.hessian)
    positive = spectrum[spectrum > spectrum[-1] * 1e-12]
    n, b, m = rehearsal.n, best.batch_size, best.inner_steps
    noise = (n - b) / b * float(np.mean(rehearsal.residual**2))
    inner = rehearsal.inner_condition(b)
    share = data.smoothness * best.eta
    lines = [
        f"problem: n = {n}, {rehearsal.d} parameters, κ_θ = {positive[-1] / positive[0]:.3g} (so many steps "
        f"per e-fold for gradient descent); L = {data.smoothness:.3g} in target space",
        f"batch size {b}{' (all data)' if b == n else ''}: noise σ² = {noise:.3g} at the minimum; κ of the "
        f"targets n/b·L/μ = {n / b * data.smoothness / float(rehearsal.weights.min()):.3g}; inner "
        f"problems have κ_g = {inner:.3g}",
        f"m = {m}: at τ = {tau:.6g} an oracle call costs as much as {tau:.6g} inner steps; "
        f"(τ + m)/(1 − (1 − 1/κ_g)^m) is least near m = {best_inner_steps(tau, max(inner, 1.0))}",
        f"lr = {best.eta:.6g} = {share:.3g}/L"
        + (
            ""
            if share > 0.4
            else ": below 1/(2L), for larger steps stop at a floor of noise and bias"
        ),
        f"expected (rehearsed on the quadratic model, no oracle call): {best.steps} oracle calls to reach "
        f"{accuracy:.3g} of the first gap, cost {best.cost:.4g} inner gradients of one example",
    ]
    if sgd is None:
        lines.append("m = 1 (SGD) does not get there within the rehearsal's limits")
    elif m == 1:
        lines.append("m = 1 is best here: this is SGD. The oracle is too cheap to save on")
    else:
        lines.append(
            f"the best m = 1 (SGD: b = {sgd.batch_size}, α = {sgd.eta * sgd.relative_step:.3g}) needs "
            f"{sgd.steps} oracle calls, {sgd.cost / best.cost:.3g} times the cost"
        )
    return tuple(lines)
