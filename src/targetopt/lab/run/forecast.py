"""How long runs will take: a few steps of each kind are made, and timed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from targetopt.lab.run.execute import record_steps
from targetopt.lab.spec.config import RunConfig
from targetopt.lab.spec.problem_options import load_problem

SAMPLE = 0.1
"""Seconds of work, at least, from which the duration of a run is told (unless it takes less)."""


@dataclass(frozen=True)
class Pace:
    """CPU seconds of a step and of measuring the metrics, how many steps make an epoch, and when it is measured.

    Where calls of the oracle are what counts, a step is a call. ``records_all`` and ``measures_seldom`` are those of
    the session.
    """

    step: float
    record: float
    steps_per_epoch: int
    records_all: bool = False
    measures_seldom: bool = False

    def seconds(self, epochs: int) -> float:
        """Of a run of so many epochs."""
        steps = epochs * self.steps_per_epoch
        records = len(record_steps(steps, self.steps_per_epoch, all_of_them=self.records_all))
        if self.measures_seldom:
            records = steps.bit_length() + 1
        return steps * self.step + records * self.record


def kind(run: RunConfig) -> str:
    """Runs of one kind take equally long an epoch: what they differ in is numbers, as step sizes."""
    method = run.method.resolved()
    matters = {key: method.get(key) for key in ("name", "rule", "inner", "m", "price")}
    return json.dumps([dict(run.problem), run.batch_size, run.engine, matters], sort_keys=True)


def forecast(
    runs: Iterable[RunConfig],
    show: Callable[[int, int, str], None] = lambda done, total, note: None,
) -> dict[str, float]:
    """CPU seconds of each run, by id: of its steps and its records, extrapolated from the first ones.

    Args:
        runs: all that are asked about.
        show: told how many kinds of runs are timed, of how many, and which is next.
    """
    asked = list(runs)
    kinds: dict[str, RunConfig] = {}
    for run in asked:
        kinds.setdefault(kind(run), run)
    paces = {}
    for done, (name, run) in enumerate(kinds.items()):
        show(done, len(kinds), f"{run.method.label()} on {run.problem['name']}")
        paces[name] = measure(run)
    return {run.id: paces[kind(run)].seconds(run.epochs) for run in asked}


def measure(run: RunConfig) -> Pace:
    """The pace of a run, from its first steps."""
    session = load_problem(run.problem).session(run)
    session.metrics()  # reads what it needs, the reference optimum for one
    made = time.process_time()
    session.metrics()  # before any step: where one goes wrong, a problem may refuse to be measured
    record = time.process_time() - made
    step, used, stride, pace = 0, 0, 1, 0.0
    counted, spent = 0, 0.0
    while used < session.total_steps and spent < SAMPLE:
        before, began = used, time.process_time()
        try:
            step = session.advance(step, min(step + stride, session.total_steps))
        except (
            ArithmeticError
        ):  # diverged, or a solver failed; what was made of this stride is not known
            break
        took, used = time.process_time() - began, session.used(step)
        if before > 0:
            counted, spent = counted + used - before, spent + took
            pace = spent / max(counted, 1)
        else:  # the first also prepares what the others find ready, the order of the columns for one
            pace = took / max(used, 1)
        stride *= 2
    return Pace(pace, record, session.steps_per_epoch, session.records_all, session.measures_seldom)
