"""The line search of the full-batch Newton solver, in target space: a trial costs O(n)."""

from __future__ import annotations

import numpy as np

from targetopt.linear.newton.objective import PenalisedLoss, Point
from targetopt.linear.newton.subspace import Step

SLOPE_RATIO = 0.3  # a line search ends when the slope has shrunk to this part
MAX_TRIALS = 60
EXTEND = 4.0  # a trial is at most this many times the one before: losses flatten far away
SHRINK = 0.1  # while no trial was short enough: where a loss is flat, surrogates reach too far
NOISE = 64 * float(np.finfo(np.float64).eps)  # values of F nearer than this may be the same


def line_search(objective: PenalisedLoss, point: Point, step: Step) -> Point | None:
    """The first trial with a small slope, by Newton's method on the slope kept inside a bracket.

    Near the minimum the values of F differ by their rounding errors only; a trial there is judged by
    its slope. ``None`` if no trial lowers F.
    """
    if not step.slope < 0:
        return None
    pull = float(np.vdot(objective.pull(point.theta), step.theta))
    penalty = point.value - float(objective.weights @ point.at.values)
    along = objective.weighted(step.z)
    low, high, size = 0.0, np.inf, 1.0
    best, least = None, point.value
    for _ in range(MAX_TRIALS):
        z = np.multiply(step.z, size, out=objective.loss.spare.take(step.z.shape))
        z += point.z
        at = objective.loss.evaluate(z)
        with np.errstate(invalid="ignore"):  # an overflowed loss times a weight of zero
            value = float(objective.weights @ at.values)
        value += penalty + size * (pull + 0.5 * size * step.ridge)
        if not np.isfinite(value):
            high, size = size, low + SHRINK * (size - low)
            continue
        slope = float(np.vdot(along, at.gradient)) + pull + size * step.ridge
        level = abs(slope) <= SLOPE_RATIO * abs(step.slope)
        if value <= least or (level and value <= least * (1.0 + NOISE)):
            least, best = min(value, least), Point(point.theta + size * step.theta, z, at, value)
            if level:
                break
        low, high = (size, high) if slope < 0 else (low, size)
        bend = float(np.vdot(step.z, objective.curved(at.metric, step.z))) + step.ridge
        size = min(size - slope / bend if bend > 0 else np.inf, EXTEND * size)
        middle = 0.5 * (low + high) if low > 0 else SHRINK * high
        if value > least:  # far out, where exponentials grow, Newton's method would only crawl
            size = min(size, middle)
        if not low < size < high:
            size = middle if np.isfinite(high) else EXTEND * low
    return best
