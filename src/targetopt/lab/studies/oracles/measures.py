"""From runs to numbers: levels, calls to reach them, scores of settings, seconds at a price, break-even prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.statistics import aggregates

Array = NDArray[np.float64]

SHARES = (1e-1, 1e-2, 1e-3)
"""Levels are what is left of the way from the start to the best value that any method found."""
PRICES = (0.01, 0.1, 1.0, 10.0)
"""Seconds that a call of the oracle is taken to cost."""


@dataclass(frozen=True)
class Course:
    """A run as the study sees it: the lowest loss after each number of calls, and the time besides.

    Attributes:
        calls: questions asked so far, those for values included; rising.
        lowest: the lowest loss so far.
        beside: seconds of processor time so far that the method took, without its questions.
    """

    calls: Array
    lowest: Array
    beside: Array

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]], budget: int) -> Course | None:
        """The part of a run within the budget; None if it has none."""
        calls = np.asarray(columns["oracle_calls"] + columns["value_calls"], dtype=float)
        within = (calls <= budget) & (calls > 0)
        if not within.any():
            return None
        lowest = np.minimum.accumulate(np.asarray(columns["loss"], dtype=float)[within])
        beside = np.asarray(columns["method_time"], dtype=float)
        return cls(calls[within], lowest, beside[within])

    def lowest_within(self, calls: float) -> float:
        """The lowest loss after so many calls, or after the first one."""
        return float(self.lowest[max(int((self.calls <= calls).sum()) - 1, 0)])

    def reached(self, level: float) -> tuple[float, float]:
        """Calls and seconds besides when the level was first reached; infinite if it never was.

        >>> course = Course(np.array([1.0, 2.0]), np.array([3.0, 1.0]), np.array([0.1, 0.3]))
        >>> course.reached(2.0), course.reached(0.5)
        ((2.0, 0.3), (inf, inf))
        """
        places = np.flatnonzero(self.lowest <= level)
        if not places.size:
            return math.inf, math.inf
        return float(self.calls[places[0]]), float(self.beside[places[0]])


def levels(courses: Sequence[Course], budget: int) -> Array:
    """The three levels of one problem and seed: f + share · (f₀ − f), with f the best within half of the budget.

    Half of it, so that whoever found it leaves others at least as many calls again to get there.

    Reference: Moré, Wild, *Benchmarking derivative-free optimization algorithms*, 2009, eq. 2.2.

    >>> quick = Course(np.array([1.0, 2.0, 3.0]), np.array([11.0, 1.0, 0.0]), np.zeros(3))
    >>> levels([quick], budget=4)
    array([2.  , 1.1 , 1.01])
    """
    best = min(course.lowest_within(budget / 2) for course in courses)
    start = max(float(course.lowest[0]) for course in courses)
    return best + np.array(SHARES) * (start - best)


def score(course: Course | None, goals: Array, budget: int) -> tuple[float, float]:
    """How good a setting is, smaller is better: mean log calls to the levels, then the lowest loss.

    A level that is not reached counts as twice the budget; a run that diverged at once reaches none.
    """
    if course is None:
        return math.log(2.0 * budget) * 2.0, math.inf
    spent = [min(course.reached(goal)[0], 2.0 * budget) for goal in goals]
    return float(np.mean(np.log(spent))), float(course.lowest[-1])


def middle(values: Sequence[float]) -> float:
    """The median, right with infinities."""
    return float(aggregates.quantile(np.asarray(values, dtype=float), 0.5))


def ratio(rival: float, own: float, budget: int, patience: int = 1) -> tuple[float, str]:
    """How many times fewer calls SSO needs, and whether that is exact (``""``), at least or at most.

    A rival that did not get there has spent ``patience`` times SSO's budget.

    >>> ratio(40.0, 10.0, 50), ratio(math.inf, 10.0, 50), ratio(40.0, math.inf, 50)
    ((4.0, ''), (5.0, '≥'), (0.8, '≤'))
    >>> ratio(math.inf, 10.0, 50, patience=2)
    (10.0, '≥')
    """
    if math.isinf(own) and math.isinf(rival):
        return math.nan, ""
    if math.isinf(rival):
        return patience * budget / own, "≥"
    if math.isinf(own):
        return rival / budget, "≤"
    return rival / own, ""


def break_even(own: tuple[float, float], rival: tuple[float, float]) -> float:
    """The price of a call in seconds above which SSO is the cheaper one: calls · price + seconds besides.

    0 if it is cheaper at every price, infinite if it never is.

    >>> break_even((10.0, 5.0), (60.0, 1.0))
    0.08
    >>> break_even((10.0, 0.5), (60.0, 1.0)), break_even((60.0, 1.0), (10.0, 5.0))
    (0.0, inf)
    """
    fewer = rival[0] - own[0]
    dearer = own[1] - rival[1]
    if not math.isfinite(own[0]):
        return math.inf
    if not math.isfinite(rival[0]):
        return 0.0
    if fewer <= 0:
        return math.inf
    return max(dearer / fewer, 0.0)
