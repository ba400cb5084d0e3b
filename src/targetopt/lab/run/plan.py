"""An experiment in a result directory: its runs, which of them are known yet, and how it stands."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from targetopt.lab.run import tuning
from targetopt.lab.run.tuning import Decision
from targetopt.lab.spec.config import Grid, RunConfig, Tuned
from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.spec.grid import resolve
from targetopt.lab.store.directory import Store
from targetopt.types import BadArgument


@dataclass(frozen=True)
class Summary:
    """How an experiment was left.

    Attributes:
        directory: its results.
        total: how many runs it has.
        statuses: how many of them ended how.
        troubles: those that did not end well: the run, its status, the reason.
        undecided: a run of each tuned method that could not choose, as a trial failed or ran out of time.
        interrupted: whether it was stopped before its end.
    """

    directory: Path
    total: int
    statuses: dict[str, int]
    troubles: list[tuple[RunConfig, str, str]]
    undecided: list[RunConfig]
    interrupted: bool

    @property
    def left(self) -> int:
        return self.total - sum(self.statuses.values())


@dataclass
class Plan:
    """The runs of one experiment in its result directory.

    Attributes:
        only: ids (or their beginnings) of the runs to do; all if empty.
        decisions: what the tuned methods of the grid chose so far, by their place in it.
        windows: the places of the values that each has tried or is to try, where its list was extended.
    """

    experiment: Experiment
    store: Store
    only: tuple[str, ...] = ()
    grid: Grid = field(init=False)
    decisions: dict[int, Decision] = field(default_factory=dict)
    windows: dict[int, range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grid = resolve(self.experiment)
        possible = [config.id for config in self.grid.possible()]
        for prefix in self.only:
            if not any(run.startswith(prefix) for run in possible):
                raise BadArgument(
                    f"only={prefix!r} is no run of this experiment; see `targetopt status`."
                )

    def wanted(self) -> list[RunConfig]:
        """The runs to be done as far as is known: each once."""
        if self.only:
            return [run for run in self.grid.possible() if run.id.startswith(self.only)]
        chosen = [run for decision in self.decisions.values() for run in decision.shown]
        return list(
            {run.id: run for run in (*chosen, *self.grid.known(), *self._trials())}.values()
        )

    def _trials(self) -> list[RunConfig]:
        """The trials that are asked for so far."""
        return [
            tuned.trials[k]
            for place, tuned in enumerate(self.grid.tuned)
            for k in self.windows.get(place, tuned.window)
        ]

    def undecided(self) -> list[RunConfig]:
        """For each tuned method that has not chosen: as many runs as it will ask for."""
        return [run for tuned in self._open() for run in tuned.shown[0]]

    def _open(self) -> list[Tuned]:
        if self.only:
            return []
        return [t for k, t in enumerate(self.grid.tuned) if k not in self.decisions]

    def summary(self, interrupted: bool) -> Summary:
        """How it stands."""
        runs = self.wanted()
        statuses: dict[str, int] = {}
        troubles = []
        for config in runs:
            manifest = self.store.manifest(config.id)
            if manifest is not None:
                status = manifest["status"]
                statuses[status] = statuses.get(status, 0) + 1
                if status != "done":
                    troubles.append((config, status, manifest["reason"]))
        blocked = [] if interrupted else [tuned.shown[0][0] for tuned in self._open()]
        directory = self.store.directory
        return Summary(directory, len(runs), statuses, troubles, blocked, interrupted)

    def decide(self, place: int) -> None:
        if place not in self.decisions:
            metric, tuned = self.experiment.tuning.metric, self.grid.tuned[place]
            window = self.windows.setdefault(place, tuned.window)
            decision = tuning.decide(tuned, self.store, metric, window)
            while decision is not None and decision.beyond is not None:  # the best lies at an end
                self.windows[place] = decision.beyond
                decision = tuning.decide(tuned, self.store, metric, decision.beyond)
            if decision is not None:
                self.decisions[place] = decision

    def write(self) -> None:
        """Write ``spec.toml``, ``plan.json`` and ``tuning.json``."""
        document = self.experiment.document
        # Plugins are files beside the original; a copy elsewhere has to name them in full.
        whole = document is not None and not self.experiment.plugins
        text = document.text if document is not None and whole else self.experiment.to_toml()
        self.store.write("spec.toml", text.encode())
        self.write_plan()

    def write_plan(self) -> None:
        decisions = [self.decisions[place] for place in sorted(self.decisions)]
        shown = [*self.grid.runs, *(run for decision in decisions for run in decision.shown)]
        trials = self._trials()
        if self.only:  # a tuned run done alone is shown, too
            known = {run.id for run in (*shown, *trials)}
            shown += [run for run in self.wanted() if run.id not in known]
        plan = [_entry(run) for run in shown] + [{**_entry(run), "trial": True} for run in trials]
        self.store.write("plan.json", json.dumps(plan, indent=1, ensure_ascii=False).encode())
        tuning.write(self.store, decisions)


def _entry(run: RunConfig) -> dict[str, object]:
    """A run in the plan: its id, and how it is shown."""
    entry: dict[str, object] = {
        "id": run.id,
        "problem": run.problem_label,
        "method": run.method_label,
        "batch_size": run.batch_size,
        "seed": run.seed,
        "panels": list(run.panels),
        **({} if run.colour is None else {"colour": run.colour}),
    }
    return {**entry, "tuned": list(run.tuned)} if run.tuned else entry


def redo_command(directory: Path, run: str) -> str:
    """The command that does one run again, elsewhere."""
    spec = shlex.quote(str(directory / "spec.toml"))
    return f"targetopt run {spec} --only {run} --out {shlex.quote(str(directory) + '-redo')}"
