"""Who beats whom: for every two methods, how probably a run of the one ends better than a run of the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from targetopt.lab.report.lines import Line, Results, better, finals
from targetopt.lab.statistics.aggregates import probability_of_improvement

MOST = 12
"""How many methods one matrix compares: more could not be read."""


@dataclass(frozen=True)
class Comparison:
    """How probably a run of ``row`` ends better than one of ``column``, over the panels that both were run on.

    Both ends of the interval are nan where a method has one seed.
    """

    row: int
    column: int
    probability: float
    low: float
    high: float
    panels: int


def compare(results: Results, members: Sequence[int], metric: str) -> list[Comparison]:
    """Every two of some methods; each pair stands there in both orders.

    A panel counts for a pair if both have all their seeds on it: as many as they have anywhere. See
    :func:`targetopt.lab.statistics.aggregates.probability_of_improvement` for the definition.

    Args:
        results: what was run.
        members: the methods to compare, as numbers of ``results.methods``.
        metric: whose final value decides.
    """
    lines = {index: _whole(results, index, metric) for index in members}
    found = []
    for place, row in enumerate(members):
        for column in members[place + 1 :]:
            shared = sorted(lines[row].keys() & lines[column].keys())
            if not shared:
                continue
            samples = [
                np.stack([finals(lines[each][panel], metric) for panel in shared], axis=1)
                for each in (row, column)
            ]
            estimate = probability_of_improvement(*samples, better=better(metric), resamples=1000)
            # weights that sum to 1 but for rounding may give a little more than 1
            low, high = (float(np.clip(end, 0.0, 1.0)) for end in (estimate.low, estimate.high))
            value = float(estimate.value)
            found.append(Comparison(row, column, value, low, high, len(shared)))
            found.append(Comparison(column, row, 1 - value, 1 - high, 1 - low, len(shared)))
    return found


def _whole(results: Results, method: int, metric: str) -> dict[int, Line]:
    """The lines of a method on those panels where it has all its seeds."""
    lines = {
        place: line
        for place, panel in enumerate(results.panels)
        for line in panel.lines
        if line.method == method and line.with_metric(metric)
    }
    most = max((len(line.with_metric(metric)) for line in lines.values()), default=0)
    return {place: line for place, line in lines.items() if len(line.with_metric(metric)) == most}
