"""Runs, resolved: what their numbers depend on, how they are shown, and what tuning decides on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from targetopt.lab.problems.base import BatchSize
from targetopt.lab.spec.methods import MethodSpec
from targetopt.lab.spec.panels import MAIN

CONFIG_FORMAT = 2
"""Part of every id: raised when the meaning of a configuration changes."""

DIGESTED_AS = {"weight_decay": "l2"}
"""Options of problems whose name has changed since runs were published, and the name in their ids."""

CAME_LATER = {"data": "round", "held_out_by": "expert"}
"""Options of imitation that it got after runs were published; with these values they are no part of ids."""


@dataclass(frozen=True)
class RunConfig:
    """One run, resolved: everything its numbers depend on, and how it is shown.

    ``panels`` are the figures it is drawn in, ``colour`` that of its lines if one was given, ``tuned`` the options that
    were chosen for it. ``horizon`` is how many epochs there are for schedules that end with the run, if it is but
    the beginning of such a run.
    """

    problem: Mapping[str, Any]
    method: MethodSpec
    seed: int
    batch_size: BatchSize
    epochs: int
    engine: str
    problem_label: str
    method_label: str
    panels: tuple[str, ...] = (MAIN,)
    tuned: tuple[str, ...] = ()
    horizon: int | None = None
    colour: str | None = None

    @property
    def scheduled_epochs(self) -> int:
        """What schedules take for the length of the run."""
        return self.horizon or self.epochs

    def resolved(self) -> dict[str, Any]:
        """The configuration as plain JSON values; labels are no part of it."""
        return {
            "format": CONFIG_FORMAT,
            "problem": dict(self.problem),
            "method": self.method.resolved(),
            "seed": self.seed,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "engine": self.engine,
            **({} if self.horizon is None else {"horizon": self.horizon}),
        }

    @cached_property
    def id(self) -> str:
        """The first 16 hex digits of the SHA-256 of the canonical JSON of :meth:`resolved`."""
        problem = {
            DIGESTED_AS.get(key, key): value
            for key, value in self.problem.items()
            if self.problem["name"] != "imitation" or (key, value) not in CAME_LATER.items()
        }
        digested = {**self.resolved(), "problem": problem}
        text = json.dumps(digested, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def described_problem(self) -> dict[str, Any]:
        return {"name": self.problem["name"], "label": self.problem_label, **self.problem}

    def described_method(self) -> dict[str, Any]:
        return {"name": self.method.name, "label": self.method_label, **self.method.resolved()}


@dataclass(frozen=True)
class Tuned:
    """A method on one panel whose options are chosen among ``values``.

    Attributes:
        values: what is tried: options and their values.
        trials: the run that tries each.
        shown: for each, the runs to be shown if it is chosen.
        first: those that are tried at first, the others only if the best of these lies at an end; all if None.
    """

    values: list[dict[str, Any]]
    trials: list[RunConfig]
    shown: list[list[RunConfig]]
    first: range | None = None

    @property
    def window(self) -> range:
        """The places of the values that are tried in any case."""
        return range(len(self.values)) if self.first is None else self.first


@dataclass(frozen=True)
class Grid:
    """The runs of an experiment that are shown in any case, and those that tuning decides on."""

    runs: list[RunConfig]
    tuned: list[Tuned]

    def known(self) -> list[RunConfig]:
        """What is run before anything is chosen, each run once."""
        trials = [each.trials[place] for each in self.tuned for place in each.window]
        return list({run.id: run for run in (*trials, *self.runs)}.values())

    def possible(self) -> list[RunConfig]:
        """Every run that there can be, whatever is chosen, each once."""
        others = [run for each in self.tuned for runs in (*each.shown, each.trials) for run in runs]
        return list({run.id: run for run in (*others, *self.known())}.values())
