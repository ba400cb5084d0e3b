"""The full-batch Newton solver: steps, when it has come near enough, and the last digits.

Minimises F (:mod:`targetopt.linear.newton.objective`). Each outer step asks for g_i = ∂ℓ_i/∂z_i and the
curvature W_i = ∂²ℓ_i/∂z_i² at z_t, and minimises the surrogate of the paper's appendix B.1,

    q_t(θ) = ℓ(z_t) + Σ_i ω_i [g_i·(z_i − z_t,i) + ½ (z_i − z_t,i)·W_i (z_i − z_t,i)] + penalty,

exactly over a small subspace: the span of u = −M⁻¹∇F and of the last few steps. If M is the Hessian
this is its minimiser, an exact inner solve. If M is an older Hessian, that of a sample of the rows, or
a diagonal, it is one step of conjugate gradients; since the images Xs of the earlier steps s are
kept, the step costs one Xu and one Xᵀg, and curvature newer than the one classical truncated Newton
would still be using. A line search in target space follows; its trials cost O(n), for z moves along
a cached direction. Where M is the Hessian and the minimum is far, a sample of the rows makes one that does as well and
costs a fraction. Near the minimum, the factor of the step before serves once more where another one costs more than a
step. Where a factor is dear, a fit begins without one (:mod:`targetopt.linear.newton.choice`), and where
:mod:`targetopt.linear.newton.tangents` suits the problem, with that.

**A quadratic** (squared loss) is one linear system: :mod:`targetopt.linear.newton.quadratic`.

**When it ends.** A fit has converged if F − min F ≤ max(tol·F, ε·F₀), with F₀ the value at the start and ε
the rounding error of float64. There are three ways to know. Where M is the Hessian, ½ ∇F·M⁻¹∇F is the
distance up to terms of higher order. Where everything is penalised, or everything but an intercept that is the
best one (:mod:`targetopt.linear.newton.intercepts`), ½ ∇F·Λ⁻¹∇F is an upper bound of it. Elsewhere it is
estimated from how the decreases of the steps have shrunk over windows of 1, 2, 4, … steps.

**The last digits.** An objective within 1e-8 of its minimum determines θ to four digits only, and which
four depends on the rounding errors on the way there. So where M is the Hessian the fit ends with
Newton steps that are judged by the gradient instead of by F, until they have brought the distance
below tol³·F. The solution is then a function of the problem, and not of the processor, the
order of the rows, or whether rows are repeated or weighted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from targetopt.linear.newton import quadratic
from targetopt.linear.newton.choice import (
    cheapest_metric,
    cost_with,
    without_factor,
    worth_trying_without,
)
from targetopt.linear.newton.estimates import (
    EPS,
    MARGIN,
    ROUNDING_SHARE,
    SHRINKS,
    steps_left,
    still_to_come,
)
from targetopt.linear.newton.intercepts import best_intercept
from targetopt.linear.newton.metrics import Diagonal, Metric, step_cost
from targetopt.linear.newton.objective import Array, PenalisedLoss, Point
from targetopt.linear.newton.search import line_search
from targetopt.linear.newton.subspace import Subspace, newton_step
from targetopt.linear.newton.tangents import approach

ROUNDING = 4 * EPS  # a smaller tolerance than this means "to rounding"
MOST_POLISHING = 6  # Newton steps at the end; two are usual
CAUTION = 4.0  # what the sum of the decreases to come may be wrong by: on the grid of problems it was up to 2.2
FAR = 1e-4  # of F: where the minimum is farther, the Hessian of a sample of the rows will do
SETTLED = 0.01  # of F: after a smaller decrease the curvature of the losses hardly changes
TRIED = 3  # steps without a factor before their rate is believed
NEARBY = 0.4  # the curvature of no loss changes by more than this part: the model is the function
MOSTLY = 0.25  # rows whose loss is curved, as a share, for the curvature to be trusted
LEAST_CURVED = (
    0.01  # a row whose loss is straight counts with this part of what majorises its curvature
)


@dataclass(frozen=True)
class Solution:
    """What :func:`minimise` found.

    ``gap`` is what F may still be above its minimum, and ``diagonal`` the Hessian's diagonal, data part, at or near θ.
    """

    theta: Array
    value: float
    gap: float
    diagonal: Array
    n_iter: int
    converged: bool


def minimise(
    objective: PenalisedLoss,
    theta: Array,
    *,
    tol: float,
    max_iter: int,
    metric: Metric | None = None,
) -> Solution:
    """Minimise F from ``theta`` until F − min F ≤ max(tol·F, ε·F₀); see above.

    ``metric`` may be that of another quadratic with the same X, ω and λ, whose factor then serves again.

    Example:
        >>> import torch
        >>> from targetopt.losses import OnArrays, Squared
        >>> X, loss = np.array([[1.0], [2.0]]), OnArrays(Squared(torch.tensor([2.0, 4.0])))
        >>> F = PenalisedLoss(X, loss, np.full(2, 0.5), np.zeros(1), 0.0, intercept=False)
        >>> minimise(F, np.zeros(1), tol=1e-12, max_iter=10).theta
        array([2.])
    """
    tol = max(tol, ROUNDING)
    point = objective.at(theta)
    final = metric = metric or cheapest_metric(objective)
    nothing = EPS * point.value
    n_iter, gap, stalled, majorises = 0, np.inf, False, objective.loss.majorises
    if objective.loss.quadratic and theta.ndim == 1:
        point, gap, n_iter, diagonal = quadratic.solve(
            objective, point, metric, tol=tol, most=max_iter
        )
        reached = gap <= max(tol * point.value, nothing)
        if reached or n_iter >= max_iter:
            return Solution(point.theta, point.value, gap, diagonal, n_iter, reached)
    if worth_trying_without(final, point):
        metric = without_factor(objective)
    sampling = final.samples
    if isinstance(metric, Diagonal):
        start = approach(objective, theta, tol=tol, max_epochs=max_iter)
        if start is not None:
            n_iter = start.epochs
            point = min(point, objective.at(start.theta), key=lambda p: p.value)
            gap = point.value - start.bound
    subspace: Subspace | None = None
    decreases: list[float] = []
    polished = False  # since the last step
    while not stalled and gap > (goal := max(tol * point.value, nothing)) and n_iter < max_iter:
        n_iter += 1
        if metric is not final and len(decreases) >= TRIED:
            rest = steps_left(decreases, goal) * step_cost(objective)
            if cost_with(final) < rest:
                metric, decreases, gap = final, [], np.inf
        gradient = objective.gradient(point)
        if not metric.exact and objective.proven_gap(gradient) <= goal:
            point, gradient, proven = _proof(objective, point, gradient, goal)
            if proven <= goal:
                gap = proven
                break
        curvature = _curvature(objective, point) if metric.fresh else point.at.metric
        newton = metric.fresh and (curvature is not point.at.metric or not majorises)
        dear = metric.price > metric.step
        near, held = np.inf, newton and metric.ready and metric.exact and dear
        if held or (sampling and metric.ready):  # the factor of the step before says how far it is
            u = metric.solve(gradient)
            near = 0.5 * float(np.vdot(gradient, u))
        sampling = metric.far = sampling and newton and near > FAR * point.value
        if not held or near > goal or polished:
            settled = bool(decreases) and decreases[-1] < SETTLED * point.value
            left = steps_left(decreases, goal)
            metric.update(curvature, left, always=newton, settled=settled)
            u = metric.solve(gradient)
        if metric.exact and not polished and 0.5 * float(np.vdot(gradient, u)) <= goal:
            polished = True
            most = max_iter - n_iter + 1
            point, gap, steps = _polish(objective, point, metric, gradient, u, tol, most, newton)
            n_iter += steps - 1
            continue
        if newton:
            step = newton_step(objective, point, gradient, u)
        else:
            subspace = subspace or Subspace(objective, point)
            step = subspace.minimiser(point, gradient, u)
        after = line_search(objective, point, step)
        if after is None and sampling:  # all rows will tell
            sampling = False
            continue
        if after is None:  # no descent: rounding, unless a good deal was promised
            stalled = True
            gap = step.decrease if step.decrease <= ROUNDING_SHARE * point.value else np.inf
            continue
        point, polished = after, False
        decreases.append(step.decrease)
        if not (metric.exact or metric.far):  # the others end by ∇F·M⁻¹∇F
            gap = CAUTION * still_to_come(decreases)
    converged = gap <= max(tol * point.value, nothing, ROUNDING_SHARE * point.value * stalled)
    known = metric.last_diagonal if metric.ready else metric.diagonal
    diagonal = known(point.at.metric)
    return Solution(point.theta, point.value, float(gap), diagonal, n_iter, bool(converged))


def _proof(
    objective: PenalisedLoss, point: Point, gradient: Array, goal: float
) -> tuple[Point, Array, float]:
    """The point with the best intercept, its gradient, and a bound of the distance to the minimum from there."""
    gain = 0.0
    if objective.free_intercept:
        point, gain = best_intercept(objective, point, goal)
        gradient = objective.gradient(point)
    return point, gradient, gain + objective.proven_gap(gradient)


def _curvature(objective: PenalisedLoss, point: Point) -> Array:
    """What a Hessian that is renewed in every step is computed from: the curvature of the loss, or what majorises it.

    Huber's curvature is 1 or 0, and with it Newton steps reach the minimum of a function that is quadratic in pieces
    within a few steps. A row without any keeps a small part of its majoriser, so that no column is without curvature.
    Where too many rows lie on the straight parts the majoriser leads on, which no step can take too far.
    """
    majoriser: Array = point.at.metric
    largest = objective.loss.loss.smoothness
    if not objective.loss.majorises or largest is None:
        return majoriser
    curvature = objective.loss.curvature(point.z)
    if float(objective.weights @ curvature) < MOSTLY * largest:
        return majoriser
    return np.maximum(curvature, LEAST_CURVED * majoriser)


def _polish(
    objective: PenalisedLoss,
    point: Point,
    metric: Metric,
    gradient: Array,
    u: Array,
    tol: float,
    most: int,
    newton: bool,
) -> tuple[Point, float, int]:
    """Newton steps judged by ∇F·M⁻¹∇F; the last point, the gap there, and the steps made.

    A step that does not reduce it is taken back; then M is renewed, once. ½ ∇F·M⁻¹∇F says how far the
    minimum is only where the step to it leaves the curvature of every loss as it is, but for a part of
    at most `NEARBY`, by which it may be too small. Elsewhere the gap is not known. ``newton`` says that M is
    the Hessian, and nothing that majorises it.
    """
    fresh = majorised = objective.loss.majorises and not newton
    if majorised:
        metric.renew(objective.loss.curvature(point.z))
        u = metric.solve(gradient)
    square, change, steps = float(np.vdot(gradient, u)), 1.0, 0
    while steps < min(most, MOST_POLISHING) and (
        change > NEARBY or square > tol**3 * max(point.value, 0.0)
    ):
        steps += 1
        trial = objective.at(point.theta - u)
        change = _relative_change(point.at.metric, trial.at.metric)
        slope = objective.gradient(trial)
        direction = metric.solve(slope)
        left = float(np.vdot(slope, direction))
        if left <= SHRINKS * square:
            change *= np.sqrt(left / square) if square else 0.0  # by the step that would follow
            point, u, square = trial, direction, left
        elif fresh:
            break
        else:
            fresh = True
            metric.renew(objective.loss.curvature(point.z))
            gradient = objective.gradient(point)
            u = metric.solve(gradient)
            square = float(np.vdot(gradient, u))
    if majorised:
        metric.renew(point.at.metric)
    gap = 0.5 * MARGIN * square / (1.0 - change) if change <= NEARBY else np.inf
    return point, gap, steps


def _relative_change(before: Array, after: Array) -> float:
    """The largest |a − b|/max(a, b), which is at most 1."""
    larger = np.maximum(np.maximum(before, after), np.finfo(np.float64).tiny)
    return float(np.max(np.abs(after - before) / larger))
