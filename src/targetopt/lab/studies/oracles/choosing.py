"""Settings chosen by trial runs on seeds that are not shown; lists grow until the best of each lies inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from targetopt.lab.spec.lists import beyond
from targetopt.lab.studies.oracles.arms import Arm, Tune, short
from targetopt.lab.studies.oracles.measures import Course, levels, score

ROUNDS = 8
"""Lists are extended at most so often."""


@dataclass
class Search:
    """The list of one arm on one problem, and what its values came to.

    Attributes:
        values: all that were or are to be tried, in rising order.
        scores: of those that were tried: calls to the levels, then the lowest loss; smaller is better.
        refined: whether values between the best and its neighbours were added.
        settled: whether the best lies inside, so that nothing more is to be tried.
    """

    arm: Arm
    values: list[float]
    scores: dict[float, tuple[float, float]] = field(default_factory=dict)
    refined: bool = False
    settled: bool = False

    @classmethod
    def of(cls, arm: Arm, most: int | None = None) -> Search:
        assert arm.tune is not None
        values = arm.tune.values
        if most is not None and most < len(values):  # a rehearsal: as many, as wide
            step = (len(values) - 1) // max(most - 1, 1)
            values = values[::step][:most]
        return cls(arm, list(values))

    @property
    def tune(self) -> Tune:
        assert self.arm.tune is not None
        return self.arm.tune

    @property
    def best(self) -> float:
        return min(self.values, key=lambda value: self.scores.get(value, (math.inf, math.inf)))

    @property
    def at_edge(self) -> bool:
        return self.best in (self.values[0], self.values[-1])

    def go_on(self) -> None:
        """Extend the list beyond a best value at its edge; refine a coarse one inside; or settle."""
        best, factor = self.best, self.tune.factor
        further = beyond(self.values, best, digits=3)
        if further is not None and self.tune.least <= further <= self.tune.most:
            self.values = sorted([*self.values, further])
        elif factor > 4.0 and not self.refined:
            self.refined = True
            between = {short(best / factor**0.5), short(best * factor**0.5)}
            self.values = sorted({*self.values, *between})
        else:
            self.settled = True

    def record(self) -> dict[str, Any]:
        """The search as ``choices.json`` has it; infinities become words."""
        return {
            "arm": self.arm.label,
            "option": self.tune.option,
            "chosen": self.best,
            "inside": not self.at_edge,
            "tried": [
                {
                    "value": value,
                    "mean_log_calls": self.scores[value][0],
                    "lowest": _word(self.scores[value][1]),
                }
                for value in self.values
                if value in self.scores
            ],
        }


def _word(value: float) -> float | str:
    return value if math.isfinite(value) else "diverged"


def judge(
    searches: Sequence[Search],
    courses: Mapping[tuple[str, float], Sequence[Course | None]],
    budget: int,
    most: int | None = None,
) -> None:
    """Score every value of some searches on one problem, by its courses over the tuning seeds.

    Levels are those of ``budget``; nobody could ask more often than ``most`` times.

    Courses of arms that are not searched take part in the levels, so that rivals are tuned for what they will be
    judged by.
    """
    seeds = max((len(each) for each in courses.values()), default=0)
    totals: dict[tuple[str, float], list[tuple[float, float]]] = {key: [] for key in courses}
    for seed in range(seeds):
        ended = [each[seed] for each in courses.values() if each[seed] is not None]
        goals = levels([course for course in ended if course is not None], budget)
        for key, each in courses.items():
            totals[key].append(score(each[seed], goals, most or budget))
    for search in searches:
        for value in search.values:
            found = totals.get((search.arm.label, value))
            if found:
                first = sum(pair[0] for pair in found) / len(found)
                second = sum(pair[1] for pair in found) / len(found)
                search.scores[value] = (first, second)
