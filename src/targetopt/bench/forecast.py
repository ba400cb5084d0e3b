"""How long runs will take: a few steps of each kind are made, and timed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

from targetopt.bench.config import RunConfig
from targetopt.bench.execute import record_steps
from targetopt.bench.session import open_session

SAMPLE = 0.1
"""Seconds of work, at least, from which the duration of a run is told (unless it takes less)."""


def kind(run: RunConfig) -> str:
    """Runs of one kind take equally long: they differ in their seed alone."""
    return replace(run, seed=0).id


def forecast(runs: Iterable[RunConfig]) -> dict[str, float]:
    """CPU seconds of a run of each :func:`kind`: steps and records, extrapolated from the first ones."""
    found: dict[str, float] = {}
    for run in runs:
        if kind(run) not in found:
            found[kind(run)] = _seconds(run)
    return found


def _seconds(run: RunConfig) -> float:
    session = open_session(run)
    session.metrics()  # reads what it needs, the reference optimum for one
    began, step, stride = time.process_time(), 0, 1
    while step < session.total_steps and time.process_time() - began < SAMPLE:
        step = session.advance(step, min(step + stride, session.total_steps))
        stride *= 2
    made = time.process_time()
    session.metrics()
    measured = time.process_time() - made
    records = len(record_steps(session.total_steps, session.steps_per_epoch))
    return (made - began) / step * session.total_steps + records * measured
