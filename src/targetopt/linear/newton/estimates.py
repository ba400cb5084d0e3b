"""How far a descent has still to go, judged by how its decreases have shrunk."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

EPS = float(np.finfo(np.float64).eps)
MARGIN = 2.0  # what an estimate of the gap may be wrong by when it has become small
ROUNDING_SHARE = 1e-13  # a difference of values of F this small, relative to F, may be rounding
SHRINKS = 0.25  # how far a step with the Hessian's factor must reduce ∇F·M⁻¹∇F to be believed


def steps_left(decreases: list[float], goal: float) -> float:
    """How many steps at the present rate would bring the decreases below the goal.

    >>> round(steps_left([1.0, 0.1, 0.01], 1e-4), 6)
    2.0
    """
    if not decreases:
        return 0.0
    rate = 0.5
    for before, after in pairwise(decreases[-9:]):
        rate = min(max(after / before, rate * rate), 0.9)
    return float(np.log(max(decreases[-1], 1e-300) / goal) / -np.log(rate))


def still_to_come(decreases: list[float]) -> float:
    """The sum of the decreases that will follow, if they go on as they did.

    Over windows of m steps the decreases of a method that converges linearly shrink by a constant
    factor, and those to come sum to a geometric series. The largest sum over m = 1, 2, 4, … counts, for
    a few small steps in a row mean little; and a factor is never taken to be smaller than the square
    of the one a step before, for a single small step means even less.
    """
    worst, m = 0.0, 1
    while 2 * m <= len(decreases):
        last, before = sum(decreases[-m:]), sum(decreases[-2 * m : -m])
        if not last < before:
            return np.inf
        worst = max(worst, last * last / (before - last))
        m *= 2
    if m == 1:
        return np.inf
    previous = decreases[-3] if len(decreases) > 2 else np.inf
    rate = min(max(decreases[-1] / decreases[-2], (decreases[-2] / previous) ** 2), 0.9)
    return max(worst, max(decreases[-2:]) * rate / (1.0 - rate))
