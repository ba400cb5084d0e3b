"""The squared loss: one linear system, by a factor of the Hessian or by conjugate gradients, whichever costs less.

F is quadratic and its Hessian is the same everywhere, so that nothing of Newton's loop is needed but one solve,

    (Xᵀ diag(Lω) X + diag(λ)) (θ* − θ) = −∇F(θ).

A **factor** of the Hessian, or of the n × n matrix XΛ⁻¹Xᵀ where there are fewer rows than columns, solves it in one
step; another removes rounding errors. **Conjugate gradients** read X twice a step. How many steps they need depends
on the spectrum and cannot be known before; so where a factor costs more than a few steps they begin, and as soon as
those still to be made at the rate seen would cost more than the factor, they leave the rest to it. At worst this
costs `TRIED` steps too many, where a factor costs at least `FEW`.

An intercept without a penalty is eliminated: every direction has the intercept that keeps the mean of its image at
zero, so that the mean residual stays zero. What remains is penalised by Λ throughout if the features are, and
½ ∇F·Λ⁻¹∇F bounds the distance to the minimum.

Reference:
    Hestenes, Stiefel: "Methods of Conjugate Gradients for Solving Linear Systems", 1952.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from targetopt.linear.newton.estimates import (
    EPS,
    MARGIN,
    ROUNDING_SHARE,
    SHRINKS,
    steps_left,
    still_to_come,
)
from targetopt.linear.newton.metrics import Diagonal, Dual, Flat, Metric, product_cost
from targetopt.linear.newton.objective import Array, PenalisedLoss, Point

FEW = 20  # steps of conjugate gradients that are seldom enough: six digits at a condition number of forty
TRIED = 3  # steps of conjugate gradients before their rate is believed
MOST_REFINING = 6  # solves with a factor; two are usual


class Solved(NamedTuple):
    """The last point, what F may still be above its minimum there, the steps made, and the Hessian's diagonal.

    The diagonal is that of the data's part.
    """

    point: Point
    gap: float
    steps: int
    diagonal: Array


def solve(
    objective: PenalisedLoss, point: Point, metric: Metric, *, tol: float, most: int
) -> Solved:
    """Go from `point` to the minimum, to within ``tol``·F, with at most so many steps.

    Where the Hessian is so nearly singular that its factor is another matrix's, the gap stays larger.
    """
    price = metric.price / metric.outputs
    if metric.exact and (metric.ready or price <= FEW * _step_cost(objective)):
        return _factored(objective, point, metric, tol, most)
    rough = metric
    if metric.exact:
        rough = Flat(objective) if Dual.possible(objective) else Diagonal(objective)
    rough.update(point.at.metric, 0.0)
    worth = price if metric.exact else np.inf
    found = _conjugate_gradients(objective, point, rough, tol, most, worth)
    if found.gap <= tol * found.point.value or found.steps >= most or not metric.exact:
        return found
    exact = _factored(objective, found.point, metric, tol, most - found.steps)
    return exact._replace(steps=found.steps + exact.steps)


def _step_cost(objective: PenalisedLoss) -> float:
    return 2.0 * product_cost(objective.X)


def _factored(
    objective: PenalisedLoss, point: Point, metric: Metric, tol: float, most: int
) -> Solved:
    """A step with the Hessian's factor, which ends at the minimum, and others that remove its rounding errors."""
    if not metric.ready:
        metric.update(point.at.metric, 0.0)
    gradient = objective.gradient(point)
    u = metric.solve(gradient)
    square, steps = float(np.vdot(gradient, u)), 0
    while steps < min(most, MOST_REFINING) and square > tol**3 * max(point.value, 0.0):
        steps += 1
        trial = objective.at(point.theta - u)
        gradient = objective.gradient(trial)
        proven = 2.0 * objective.proven_gap(gradient)
        if proven <= tol**3 * trial.value:  # what the factor would say of the rest is not needed
            point, square = trial, proven
            break
        u = metric.solve(gradient)
        left = float(np.vdot(gradient, u))
        if not (left <= SHRINKS * square and trial.value <= point.value * (1.0 + ROUNDING_SHARE)):
            break
        point, square = trial, left
    diagonal = metric.last_diagonal(point.at.metric)
    return Solved(point, 0.5 * MARGIN * square, steps, diagonal)


def _conjugate_gradients(
    objective: PenalisedLoss, point: Point, metric: Metric, tol: float, most: int, worth: float
) -> Solved:
    """Until the gap is within ``tol``·F, or until the steps still to be made would cost more than ``worth``."""
    ridge, weights = objective.ridge, objective.weights
    eliminated = objective.intercept and ridge[-1] == 0.0
    features = slice(0, -1) if eliminated else slice(None)
    bounded = bool((ridge[features] > 0).all())
    curvature, cost = objective.loss.loss.smoothness, _step_cost(objective)
    assert curvature is not None  # it is what makes the loss quadratic

    theta, z, slopes = point.theta.copy(), point.z.copy(), point.at.gradient.copy()
    if eliminated:
        excess = float(weights @ slopes) / curvature
        theta[-1] -= excess
        z -= excess
        slopes -= curvature * excess
    value, nothing = objective.at_targets(theta, z).value, EPS * point.value
    direction, before, gap, steps = np.zeros_like(theta), np.inf, np.inf, 0
    decreases: list[float] = []
    while steps < most:
        gradient = objective.adjoint(objective.weighted(slopes)) + objective.pull(theta)
        goal = max(tol * value, nothing)
        if bounded:
            part = gradient[features]
            proven = 0.5 * float(np.sum(part * part / ridge[features]))
            gap = min(gap, proven)
        if gap <= goal:
            break
        if steps >= TRIED and worth < steps_left(decreases, goal) * cost:
            break
        u = metric.solve(gradient)
        if eliminated:
            u[-1] = 0.0
        square = float(np.vdot(gradient, u))
        direction *= square / before
        direction -= u
        if eliminated:
            direction[-1] = 0.0
        image = objective.forward(direction)
        if eliminated:
            mean = float(weights @ image)
            direction[-1] = -mean
            image -= mean
        bend = curvature * float(weights @ (image * image))
        bend += float(np.vdot(ridge * direction, direction))
        if not bend > 0:
            break  # nothing is left to gain along any direction
        size, before = square / bend, square
        theta += size * direction
        image *= size
        z += image
        image *= curvature
        slopes += image
        steps += 1
        decreases.append(0.5 * size * square)
        value -= decreases[-1]
        gap = MARGIN * still_to_come(decreases)
    diagonal = metric.last_diagonal(point.at.metric)
    return Solved(objective.at_targets(theta, z), gap, steps, diagonal)
