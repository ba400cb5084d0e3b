"""What the results say, in words: who needed how many oracle calls, and from which price on that pays.

The report opens with these sentences, and ``targetopt demo`` ends with them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from targetopt.lab.report.lines import (
    TAUS,
    Panel,
    Results,
    cost_to_reach,
    level,
    spent_until,
)
from targetopt.lab.statistics import aggregates as statistics

APART = 2
"""With at most so many panels each has a sentence of its own; more are counted."""
SHOWN = 6
"""Lines that one chart shows at first; the others are a click away."""


@dataclass(frozen=True)
class Spent:
    """What one method spent until it first reached its panel's level: medians over seeds, inf if never."""

    method: int
    calls: float
    inner: float


def spent(panel: Panel, metric: str) -> list[Spent]:
    """What each method of a panel spent to reach the panel's level, the fewest oracle calls first."""
    goal = level(panel, metric)
    if goal is None:
        return []
    found = []
    for line in panel.lines:
        pairs = spent_until(line, metric, goal)
        if pairs.size:
            calls, inner = (float(statistics.quantile(column, 0.5)) for column in pairs.T)
            found.append(Spent(line.method, calls, inner))
    return sorted(found, key=lambda each: (each.calls, each.inner))


def shown_first(results: Results) -> list[int]:
    """The methods that a chart opens with: those of the main figure, the six best if there are more.

    The best are those with the lowest mean place over the panels, by the oracle calls they needed.
    """
    main = next(iter(results.figures.values()), [])
    if len(main) <= SHOWN or not results.metrics:
        return main
    places: dict[int, list[int]] = {method: [] for method in main}
    for panel in results.panels:
        order = [each.method for each in spent(panel, results.metrics[0]) if each.method in places]
        for place, method in enumerate(order):
            places[method].append(place)
    means = {m: float(np.mean(found)) if found else np.inf for m, found in places.items()}
    return sorted(sorted(main, key=means.__getitem__)[:SHOWN])


def sentences(results: Results) -> list[str]:
    """The answer in a few plain sentences; none if no run has recorded a finite metric."""
    if not results.metrics:
        return []
    metric = results.metrics[0]
    told = [(panel, spent(panel, metric)) for panel in results.panels]
    told = [(panel, rows) for panel, rows in told if rows and np.isfinite(rows[0].calls)]
    if not told:
        return []
    if len(told) <= APART:
        words = [_comparison(results, panel, rows, metric) for panel, rows in told]
    else:
        words = [_count(results, [rows for _, rows in told])]
    return [*words, _price(results, *told[0], metric)]


def _comparison(results: Results, panel: Panel, rows: list[Spent], metric: str) -> str:
    """Who needed how many calls on one panel: the best, the best of the other kind, and who never got there."""
    label = _labels(results)
    goal = level(panel, metric)
    best = rows[0]
    by_sso = _is_sso(results, best)
    others = [each for each in rows[1:] if _is_sso(results, each) != by_sso]
    second = (others or rows[1:])[:1]
    text = (
        f"On {panel.title}, {label[best.method]} needed {best.calls:,.0f} oracle calls to reach a "
        f"{metric.replace('_', ' ')} of {goal:.3g}"
    )
    for each in second:
        name = label[each.method]
        if not np.isfinite(each.calls):
            several = "none of its rivals reached" if by_sso else "no form of SSO reached"
            alone = not by_sso and len(others) == 1
            missing = f"{name} did not reach" if alone else several
            text += f", which {missing}" if others else ""
        elif others and (by_sso or len(others) > 1):
            kind = "the best of its rivals" if by_sso else "the best form of SSO"
            text += f", and {kind}, {name}, needed {each.calls:,.0f}"
        else:
            text += f", and {name} needed {each.calls:,.0f}"
    missed = sum(not np.isfinite(each.calls) for each in rows)
    if missed and not (missed == 1 and text.endswith("did not reach")):  # the one is named already
        text += f" ({missed} of {len(rows)} methods did not get there)"
    return text + "."


def _count(results: Results, tables: list[list[Spent]]) -> str:
    wins = Counter(each.method for rows in tables for each in rows if each.calls == rows[0].calls)
    ranked = wins.most_common()
    label = _labels(results)
    text = (
        f"{label[ranked[0][0]]} needed the fewest oracle calls on {ranked[0][1]} of {len(tables)} "
        "pairs of a problem and a batch size"
    )
    if len(ranked) > 1:
        text += f", and {label[ranked[1][0]]} on {ranked[1][1]}"
    return f"{text} (the calls until the level that half of the methods reach)."


def _price(results: Results, panel: Panel, rows: list[Spent], metric: str) -> str:
    """From which price of an oracle call on the winner by calls is the cheapest method, too."""
    label = _labels(results)
    goal = level(panel, metric)
    assert goal is not None
    lines = [line for line in panel.lines if line.with_metric(metric)]
    costs = np.array([cost_to_reach(line, metric, goal, TAUS) for line in lines])
    cheapest = [lines[place].method for place in costs.argmin(axis=0)]
    best = cheapest[-1]
    if all(method == best for method in cheapest):
        return (
            f"On {panel.title}, {label[best]} is also the cheapest when inner steps are counted, whatever an "
            f"oracle call costs between {TAUS[0]:g} and {TAUS[-1]:,.0f} inner steps."
        )
    last = max(place for place, method in enumerate(cheapest) if method != best)
    edge = float(np.sqrt(TAUS[last] * TAUS[last + 1])) if last + 1 < len(TAUS) else float(TAUS[-1])
    return (
        f"On {panel.title}, {label[best]} pays when an oracle call costs more than about {edge:.2g} inner "
        f"steps; when oracle calls are as cheap as inner steps, {label[cheapest[0]]} is the better choice."
    )


def _labels(results: Results) -> list[str]:
    return [method.label for method in results.methods]


def _is_sso(results: Results, each: Spent) -> bool:
    return results.methods[each.method].rule is not None
