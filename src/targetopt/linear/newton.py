"""The Newton rule on the full batch for linear models: no learning rate, no batch size.

Minimises, over θ with z = Xθ (+ intercept),

    F(θ) = Σ_i ω_i ℓ_i(z_i) + ½ Σ_j λ_j (θ_j − c_j)²,        Σ_i ω_i = 1.

Each outer step asks for g_i = ∂ℓ_i/∂z_i and the curvature W_i = ∂²ℓ_i/∂z_i² at z_t, and minimises
the surrogate of the paper's appendix B.1,

    q_t(θ) = ℓ(z_t) + Σ_i ω_i [g_i·(z_i − z_t,i) + ½ (z_i − z_t,i)·W_i (z_i − z_t,i)] + penalty,

exactly over a small subspace: the span of u = −M⁻¹∇F and of the last few steps. If M is the Hessian
this is its minimiser, an exact inner solve. If M is an older Hessian, that of a sample of the rows, or
a diagonal, it is one step of conjugate gradients; since the images Xs of the earlier steps s are
kept, the step costs one Xu and one Xᵀg, and curvature newer than the one classical truncated Newton
would still be using. A line search in target space follows; its trials cost O(n), for z moves along
a cached direction. Where :mod:`targetopt.linear.tangents` suits the problem, a fit begins there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from targetopt.linear.metrics import Diagonal, cheapest_metric
from targetopt.linear.tangents import approach
from targetopt.linear.target_losses import Array, Evaluation, TargetLoss

MEMORY = 5  # earlier steps kept; more saves few iterations and costs O(MEMORY·(n + d)) each
SLOPE_RATIO = 0.3  # a line search ends when the slope has shrunk to this part
MAX_TRIALS = 60
EXTEND = 4.0  # a trial is at most this many times the one before: losses flatten far away
LONGEST = 1e3  # a step moves no target further than this, relative to the largest target
SHRINK = 0.1  # while no trial was short enough: where a loss is flat, surrogates reach too far
ROUNDING_SHARE = 1e-10  # a promised decrease this small, relative to F, may be rounding
ROUNDING = 4 * float(np.finfo(np.float64).eps)  # an increase this small, relative to F, is none


@dataclass(frozen=True)
class Objective:
    """F above. ``X`` is a float64 array or CSR; the intercept, if any, is the last row of θ."""

    X: Any
    loss: TargetLoss
    weights: Array
    ridge: Array
    center: Array | float
    intercept: bool

    def forward(self, theta: Array) -> Array:
        """z = Xθ, shape ``(n,)`` or ``(n, k)``."""
        if self.intercept:
            z: Array = self.X @ theta[:-1]
            z += theta[-1]
            return z
        return np.asarray(self.X @ theta)

    def adjoint(self, u: Array) -> Array:
        """Xᵀu, with the intercept's row."""
        out: Array = self.transposed @ u
        return np.concatenate([out, u.sum(axis=0)[None]]) if self.intercept else out

    @cached_property
    def transposed(self) -> Any:
        """Xᵀ as a view; making one anew costs as much as a small product."""
        return self.X.T

    def weighted(self, u: Array) -> Array:
        """ω_i u_i; ``u`` has examples on its first axis."""
        return self.weights[:, None] * u if u.ndim == 2 else self.weights * u


@dataclass(frozen=True)
class Solution:
    """What :func:`minimise` found; ``curvature`` is the Hessian's diagonal, data part."""

    theta: Array
    value: float
    curvature: Array
    n_iter: int
    converged: bool


@dataclass
class _Point:
    """An iterate with everything known about it."""

    theta: Array
    z: Array
    at: Evaluation
    value: float


def minimise(objective: Objective, theta: Array, *, tol: float, max_iter: int) -> Solution:
    """Minimise F from ``theta`` until the decrease still to come is below ``tol``·F.

    Where the minimum is zero, F below ``tol`` times its first value counts as zero.

    Example:
        >>> from targetopt.linear.target_losses import Squared
        >>> X, y = np.array([[1.0], [2.0]]), np.array([2.0, 4.0])
        >>> F = Objective(X, Squared(y), np.full(2, 0.5), np.zeros(1), 0.0, intercept=False)
        >>> minimise(F, np.zeros(1), tol=1e-12, max_iter=10).theta
        array([2.])
    """
    tol = max(tol, ROUNDING)
    point = _point(objective, theta)
    metric = cheapest_metric(objective)
    floor = tol * point.value
    n_iter, converged = 0, False
    if isinstance(metric, Diagonal):
        start = approach(objective, theta, tol=tol, max_epochs=max_iter)
        if start is not None:
            n_iter = start.epochs
            point = min(point, _point(objective, start.theta), key=lambda p: p.value)
            converged = point.value - start.bound <= tol * max(point.value, floor)
    subspace = _Subspace(objective, point)
    previous, rate = np.inf, 0.5
    while not converged and n_iter < max_iter:
        n_iter += 1
        pull = objective.ridge * (point.theta - objective.center)
        gradient = objective.adjoint(objective.weighted(point.at.gradient)) + pull
        goal = tol * max(point.value, floor)
        steps_left = np.log(previous / goal) / -np.log(rate) if np.isfinite(previous) else 0.0
        metric.update(point.at.curvature, steps_left)
        step = subspace.minimiser(point, gradient, metric.solve(gradient))
        after = _line_search(objective, point, step, float(np.vdot(pull, step.theta)))
        if after is None:  # no descent: rounding, unless a good deal was promised
            converged = step.decrease <= ROUNDING_SHARE * point.value
            break
        # Decreases shrink by `rate` a step, so those still to come sum to a geometric series; the
        # larger of the last two begins it, for a single small one means little.
        rate = min(max(step.decrease / previous, rate * rate), 0.9)
        larger = max(step.decrease, previous)
        previous, point = step.decrease, after
        converged = larger * rate / (1.0 - rate) <= goal
    curvature = metric.diagonal(point.at.curvature)
    return Solution(point.theta, point.value, curvature, n_iter, converged)


def _point(objective: Objective, theta: Array) -> _Point:
    n, outputs = objective.weights.size, theta.shape[1:]
    z = objective.forward(theta) if theta.any() else np.zeros((n, *outputs))
    at = objective.loss.evaluate(z)
    offset = theta - objective.center
    penalty = 0.5 * float(np.vdot(objective.ridge * offset, offset))
    return _Point(theta, z, at, float(objective.weights @ at.values) + penalty)


@dataclass(frozen=True)
class _Step:
    """A direction in parameters and in targets; along it F has ``slope``, q_t falls by ``decrease``."""

    theta: Array
    z: Array
    slope: float
    decrease: float
    ridge: float


class _Subspace:
    """The last steps with their images, and the exact minimiser of q_t over their span and u.

    Slots are reused in turn: u takes the oldest step's place, and the step found takes u's. A single
    intercept's own direction stays in a slot before them: its image is known without a product, and
    a metric that is diagonal knows nothing of how features and intercept can replace each other.
    """

    def __init__(self, objective: Objective, point: _Point) -> None:
        self.objective = objective
        self.kept = int(objective.intercept and point.theta.ndim == 1)
        slots = self.kept + MEMORY + 1
        self.steps = np.zeros((slots, *point.theta.shape))
        self.images = np.zeros((slots, *point.z.shape))
        self.ridges = np.zeros((slots, slots))
        self.slot = self.filled = self.kept
        if self.kept:
            self.steps[0, -1] = self.images[0] = 1.0
            self.ridges[0, 0] = objective.ridge[-1]

    def minimiser(self, point: _Point, gradient: Array, u: Array) -> _Step:
        slot = self.slot
        self.filled = max(self.filled, slot + 1)
        self.slot = slot + 1 if slot < self.kept + MEMORY else self.kept
        # Only u's direction counts, and where losses are flat it is very long.
        np.divide(u, float(np.abs(u).max()) or 1.0, out=self.steps[slot])
        self.images[slot] = self.objective.forward(self.steps[slot])
        steps = self.steps[: self.filled].reshape(self.filled, -1)
        images = self.images[: self.filled].reshape(self.filled, -1)
        ridges = self.ridges[: self.filled, : self.filled]
        pulled = (self.objective.ridge * self.steps[slot]).ravel()
        products = steps @ np.stack([pulled, gradient.ravel()], axis=1)
        ridges[slot] = ridges[:, slot] = products[:, 0]

        weights = self.objective.weights
        curved = self.objective.loss.curve(weights, point.at.curvature, self.images[: self.filled])
        model = curved.reshape(self.filled, -1) @ images.T + ridges
        slopes = -products[:, 1]
        c = _least(model, slopes)
        gain = float(slopes @ c)
        image = c @ images
        furthest = max(float(image.max()), -float(image.min()))
        allowed = LONGEST * (1.0 + float(np.abs(point.z).max()))
        share = allowed / furthest if furthest > allowed else 1.0
        c *= share

        ridges[slot] = ridges[:, slot] = ridges @ c
        ridges[slot, slot] = c @ ridges[:, slot]
        steps[slot] = c @ steps
        np.multiply(image, share, out=images[slot])
        return _Step(
            self.steps[slot],
            self.images[slot],
            -share * gain,
            share * (1.0 - 0.5 * share) * gain,
            float(ridges[slot, slot]),
        )


def _least(model: Array, slopes: Array) -> Array:
    """argmin ½cᵀAc − bᵀc of least norm after scaling A's diagonal to one."""
    diagonal = model.diagonal()
    scale = np.divide(
        1.0, np.sqrt(np.abs(diagonal)), out=np.zeros_like(diagonal), where=diagonal > 0
    )
    values, vectors = np.linalg.eigh(model * scale * scale[:, None])
    keep = values > 1e-11
    vectors = vectors[:, keep]
    return np.asarray(scale * (vectors @ ((vectors.T @ (scale * slopes)) / values[keep])))


def _line_search(objective: Objective, point: _Point, step: _Step, pull: float) -> _Point | None:
    """The first trial with a small slope, by Newton's method on the slope kept inside a bracket.

    ``None`` if no trial lowers F.
    """
    if not step.slope < 0:
        return None
    penalty = point.value - float(objective.weights @ point.at.values)
    along = objective.weighted(step.z)
    low, high, size = 0.0, np.inf, 1.0
    best, least = None, point.value * (1.0 + ROUNDING)
    for _ in range(MAX_TRIALS):
        z = point.z + size * step.z
        at = objective.loss.evaluate(z)
        with np.errstate(invalid="ignore"):  # an overflowed loss times a weight of zero
            value = float(objective.weights @ at.values)
        value += penalty + size * (pull + 0.5 * size * step.ridge)
        if not np.isfinite(value):
            high, size = size, low + SHRINK * (size - low)
            continue
        slope = float(np.vdot(along, at.gradient)) + pull + size * step.ridge
        if value <= least:
            least, best = value, _Point(point.theta + size * step.theta, z, at, value)
            if abs(slope) <= SLOPE_RATIO * abs(step.slope):
                break
        low, high = (size, high) if slope < 0 else (low, size)
        curved = objective.loss.curve(objective.weights, at.curvature, step.z)
        bend = float(np.vdot(step.z, curved)) + step.ridge
        size = min(size - slope / bend if bend > 0 else np.inf, EXTEND * size)
        middle = 0.5 * (low + high) if low > 0 else SHRINK * high
        if value > least:  # far out, where exponentials grow, Newton's method would only crawl
            size = min(size, middle)
        if not low < size < high:
            size = middle if np.isfinite(high) else EXTEND * low
    return best
