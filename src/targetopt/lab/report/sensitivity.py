"""What tuned methods were tried with, as lines: the final value of the trials against one tuned option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from targetopt.lab.report.lines import Results, batch_title


@dataclass(frozen=True)
class Tried:
    """One method on one panel: the values of one option in ascending order, and how their trials ended.

    ``finals`` is nan where a trial diverged. If several options were tuned together, the others have the values that
    were chosen.
    """

    panel: int
    method: int
    option: str
    metric: str
    values: list[float]
    finals: list[float]
    chosen: float


def lines(results: Results, choices: Sequence[Mapping[str, Any]]) -> list[Tried]:
    """The lines of every choice that ``tuning.json`` tells of, for options that are positive numbers."""
    methods = {method.label: index for index, method in enumerate(results.methods)}
    panels = {
        (results.problems[panel.problem], results.batches[panel.batch]): place
        for place, panel in enumerate(results.panels)
    }
    found = []
    for choice in choices:
        panel = panels.get((choice["problem"], batch_title(choice["batch_size"])))
        method = methods.get(choice["method"])
        if panel is None or method is None:
            continue  # its runs have not ended
        for option, points in _by_option(choice):
            values, finals = zip(*sorted(points.items()), strict=True)
            chosen = float(choice["chosen"][option])
            place = (panel, method, option, choice["metric"])
            found.append(Tried(*place, list(values), list(finals), chosen))
    return found


def _by_option(choice: Mapping[str, Any]) -> Iterator[tuple[str, dict[float, float]]]:
    for option in choice["chosen"]:
        others = {key: value for key, value in choice["chosen"].items() if key != option}
        tried = [each for each in choice["tried"] if others.items() <= each["options"].items()]
        if len(tried) > 1 and all(_positive(each["options"][option]) for each in tried):
            yield (
                option,
                {
                    float(each["options"][option]): np.nan
                    if each["final"] is None
                    else each["final"]
                    for each in tried
                },
            )


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
