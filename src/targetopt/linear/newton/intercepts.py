"""The best intercept for given coefficients: a few Newton steps that read no X.

Where every coefficient is penalised and the intercept is not, φ(w) = min_b F(w, b) is as strongly convex in w as the
penalty, and its gradient is that of F at the best b. So ½ ∇_w F·Λ⁻¹∇_w F bounds the distance to the minimum there, as
it does without an intercept. A shift of all targets costs one evaluation of the loss.
"""

from __future__ import annotations

import numpy as np

from targetopt.linear.newton.objective import Array, PenalisedLoss, Point, column_sums

MOST_STEPS = 4  # two are usual: it is best for targets that have hardly changed
NEGLIGIBLE = 0.01  # what a better intercept may still gain, as a part of the goal


def best_intercept(objective: PenalisedLoss, point: Point, goal: float) -> tuple[Point, float]:
    """`point` with another intercept, and what a better one would still gain; inf if that was not found out."""
    for _ in range(MOST_STEPS):
        slope = column_sums(objective.weighted(point.at.gradient))
        change = _newton(objective, point, slope)
        gain = 0.5 * float(np.vdot(slope, change))
        if gain <= NEGLIGIBLE * goal:
            return point, gain
        theta = point.theta.copy()
        theta[-1] -= change
        trial = objective.at_targets(theta, point.z - change)
        if not trial.value < point.value:
            break
        point = trial
    return point, np.inf


def _newton(objective: PenalisedLoss, point: Point, slope: Array) -> Array:
    """The inverse of Σ_i ω_i W_i times the slope."""
    metric = point.at.metric
    if slope.ndim == 0:
        curvature = float(objective.weights @ metric)
        return slope / curvature if curvature > 0 else np.zeros_like(slope)
    columns = [
        column_sums(objective.curved(metric, np.tile(unit, (objective.weights.size, 1))))
        for unit in np.eye(slope.size)
    ]
    return np.asarray(np.linalg.lstsq(np.array(columns), slope, rcond=1e-12)[0])
