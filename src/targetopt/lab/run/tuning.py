"""Options chosen by trial: of the values of a ``tune`` table, the one whose trial ended best.

Each problem and batch size has its own trials and its own choice. The seed of the trials is none of
those that are shown, so what is shown was not selected on. ``DIR/tuning.json`` has every choice with what it
was chosen from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.report.lines import better
from targetopt.lab.spec.config import RunConfig, Tuned
from targetopt.lab.store.directory import Run, Store
from targetopt.lab.store.files import StoreError
from targetopt.lab.store.records import read_json
from targetopt.types import BadArgument

FILE = "tuning.json"


@dataclass(frozen=True)
class Decision:
    """What a tuned method chose on one panel.

    Attributes:
        tuned: the method and its values.
        metric: what decided.
        finals: its final value for each value; infinite where the trial diverged.
        position: of the chosen value, among all.
        trials: the runs that tried them.
        window: the places of the values that were tried; all if None.
    """

    tuned: Tuned
    metric: str
    finals: list[float]
    position: int
    trials: list[Run]
    window: range | None = None

    @property
    def shown(self) -> list[RunConfig]:
        return self.tuned.shown[self.position]

    def record(self) -> dict[str, Any]:
        """The decision as ``tuning.json`` has it."""
        shown, trial = self.shown[0], self.tuned.trials[0]
        return {
            "problem": shown.problem_label,
            "batch_size": shown.batch_size,
            "method": shown.method_label,
            "metric": self.metric,
            "seed": trial.seed,
            "epochs": trial.epochs,
            "tried": [
                {
                    "options": options,
                    "final": final if np.isfinite(final) else None,
                    "status": run.manifest["status"],
                    "id": run.manifest["id"],
                }
                for options, final, run in zip(self._tried, self.finals, self.trials, strict=True)
            ],
            "chosen": self.tuned.values[self.position],
            "at_edge": self.at_edge,
        }

    @property
    def _tried(self) -> list[dict[str, Any]]:
        return [self.tuned.values[place] for place in self._places]

    @property
    def _places(self) -> range:
        return range(len(self.tuned.values)) if self.window is None else self.window

    @property
    def beyond(self) -> range | None:
        """A wider window, if the choice lies at an end of this one and the list goes on there."""
        low, high = self._places.start, self._places.stop
        if high - low < 2:
            return None
        if self.position == low > 0:
            return range(low - 1, high)
        if self.position == high - 1 < len(self.tuned.values) - 1:
            return range(low, high + 1)
        return None

    @property
    def at_edge(self) -> bool:
        """Whether some option was given the first or the last of its values: a better one may lie beyond."""
        lists = {
            option: list(dict.fromkeys(each[option] for each in self._tried))
            for option in self.tuned.values[self.position]
        }
        chosen = self.tuned.values[self.position]
        return any(
            len(tried) > 1 and chosen[option] in (tried[0], tried[-1])
            for option, tried in lists.items()
        )


def decide(tuned: Tuned, store: Store, metric: str, window: range | None = None) -> Decision | None:
    """The choice, if every trial of the window has ended well enough to be judged: done, or diverged."""
    window = tuned.window if window is None else window
    ids = [tuned.trials[place].id for place in window]
    manifests = [store.manifest(run) for run in ids]
    if any(m is None or m["status"] not in ("done", "diverged") for m in manifests):
        return None
    loaded = {run.manifest["id"]: run for run in store.load(set(ids))}
    trials = [loaded[run] for run in ids]
    sign = 1.0 if better(metric) == "lower" else -1.0
    finals = [_final(run, metric, worst=sign * np.inf) for run in trials]
    position = window.start + int(np.argmin(sign * np.array(finals)))
    return Decision(tuned, metric, finals, position, trials, window)


def _final(run: Run, metric: str, worst: float) -> float:
    if run.manifest["status"] == "diverged":
        return worst
    if metric not in run.columns:
        known = ", ".join(run.metrics)
        problem = run.manifest["problem"]["name"]
        raise BadArgument(f"tuning.metric={metric!r} is no metric of {problem!r}; it has {known}.")
    value = float(run.columns[metric][-1])
    return value if np.isfinite(value) else worst


def write(store: Store, decisions: Sequence[Decision]) -> None:
    """Write ``DIR/tuning.json``; nothing where nothing is tuned."""
    content = [decision.record() for decision in decisions]
    if content or (store.directory / FILE).exists():
        store.write(FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read(directory: Path) -> list[Mapping[str, Any]]:
    """The choices made in a result directory; none where nothing is tuned."""
    path = directory / FILE
    remedy = "Run the specification again: it is written anew, and no finished run is done again."
    choices = read_json(path, remedy)
    if choices is None:
        return []
    if not isinstance(choices, list) or not all(map(_is_record, choices)):
        raise StoreError(f"{path} is not a list of choices. {remedy}")
    return choices


def _is_record(choice: Any) -> bool:
    """Whether it has what `Decision.record` writes, which reports read."""

    def tried(each: Any) -> bool:
        if not isinstance(each, dict) or not isinstance(each.get("options"), dict):
            return False
        final = each.get("final", "")
        return "status" in each and (final is None or isinstance(final, int | float))

    return (
        isinstance(choice, dict)
        and {"method", "problem", "batch_size", "at_edge", "metric", "seed", "epochs"}
        <= choice.keys()
        and isinstance(choice.get("chosen"), dict)
        and isinstance(choice.get("tried"), list)
        and all(map(tried, choice["tried"]))
    )
