"""The runner: gives the runs of an experiment to an executor until all of them have ended."""

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from targetopt.bench.callbacks import open_trackers
from targetopt.bench.campaign import Assignment, Campaign, Summary
from targetopt.bench.config import RunConfig
from targetopt.bench.files import StoreError
from targetopt.bench.spec import Experiment
from targetopt.bench.store import Store
from targetopt.bench.work import Event, Task, record_death
from targetopt.types import BadArgument, TargetoptError

GRACE = 20.0
"""Seconds that running runs get to write a checkpoint after Ctrl-C."""
ASK_AGAIN = 0.5
"""Seconds after which a run that another runner had claimed is asked for again."""


class Executor(Protocol):
    """Where runs happen. The runner alone calls it, from one thread."""

    def takes(self, task: Task) -> bool:
        """Whether it takes this one now."""

    def submit(self, task: Task) -> None: ...

    def wait(self, timeout: float) -> list[Event]:
        """What happened; at most ``timeout`` seconds are spent waiting for something to."""

    def stop(self, grace: float) -> Iterator[Event]:
        """Ask every run to stop at a checkpoint, and tell how they ended."""

    def close(self) -> None: ...


@dataclass
class Tally:
    """How far the experiment is; what displays show."""

    total: int
    before: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def finished(self) -> int:
        """Runs that have ended, those of earlier calls included."""
        return self.before + sum(self.ended.values())

    @property
    def worked(self) -> float:
        """Runs done by this call, those under way by their fraction."""
        return sum(self.ended.values()) + sum(self.running.values())

    def rate(self) -> float:
        """Runs per second."""
        return self.worked / max(time.monotonic() - self.began, 1e-9)

    def time_left(self) -> float | None:
        """Seconds, or None before anything is known."""
        left = self.total - self.before - self.worked
        return left / self.rate() if self.worked > 0 else None


class Display(Protocol):
    """Shows a :class:`Tally` to whoever waits."""

    def update(self, tally: Tally) -> None: ...

    def ended(self, run: RunConfig, event: Event) -> None:
        """A run has ended, in whatever way."""

    def close(self) -> None: ...


class Silent:
    """Shows nothing."""

    def update(self, tally: Tally) -> None: ...

    def ended(self, run: RunConfig, event: Event) -> None: ...

    def close(self) -> None: ...


def run(
    experiment: Experiment,
    out: str | Path,
    *,
    jobs: int | None = None,
    executor: str = "local",
    time_limit: float | None = None,
    checkpoint_seconds: float | None = 30.0,
    only: Sequence[str] = (),
    trackers: Sequence[str] = (),
    display: Display | None = None,
) -> Summary:
    """Do every run of ``experiment`` that ``out`` does not hold yet.

    Finished and diverged runs are never done again. Killed ones go on from their last checkpoint, failed
    ones begin anew. Several calls on one directory share the work.

    Args:
        experiment: what to run; see :class:`~targetopt.bench.spec.Experiment`.
        out: result directory, made if need be; see :mod:`targetopt.bench.store`.
        jobs: processes at once; as many as there are cores, here or in the Ray cluster, if None.
        executor: ``"local"`` or ``"ray"``.
        time_limit: seconds for each run, over all its continuations.
        checkpoint_seconds: how often a run keeps a checkpoint; None for never.
        only: ids (or their beginnings) of the runs to do; all if empty.
        trackers: names of logging callbacks; see :mod:`targetopt.bench.callbacks`.
        display: shows progress; nothing is shown if None.

    Raises:
        SpecError: the experiment is faulty; nothing was run.
        StoreError: the directory cannot be written; what had finished is kept.
    """
    [summary] = run_all(
        [Assignment(experiment, Store(out), tuple(only))],
        jobs=jobs,
        executor=executor,
        time_limit=time_limit,
        checkpoint_seconds=checkpoint_seconds,
        trackers=trackers,
        display=display,
    )
    return summary


def run_all(
    assignments: Sequence[Assignment],
    *,
    jobs: int | None = None,
    executor: str = "local",
    time_limit: float | None = None,
    checkpoint_seconds: float | None = 30.0,
    trackers: Sequence[str] = (),
    display: Display | None = None,
    order: Callable[[RunConfig], int] = lambda run: 0,
) -> list[Summary]:
    """Do several experiments as one, runs that they share once; arguments as in :func:`run`.

    Args:
        assignments: experiments with their directories; with more than one, the directories have
            one home (:meth:`targetopt.bench.store.Store.share`).
        order: runs with small numbers are done first.
    """
    for argument, value in (("jobs", jobs), ("time_limit", time_limit)):
        if value is not None and not value > 0:
            raise BadArgument(f"{argument}={value!r} must be above 0.")
    for assignment in assignments:
        # unknown names are refused before anything runs
        open_trackers(trackers, assignment.store.directory)
        assignment.store.prepare()
    campaign = Campaign(
        assignments,
        time_limit=time_limit,
        checkpoint_seconds=checkpoint_seconds,
        trackers=trackers,
        order=order,
    )
    tasks = campaign.begin()
    interrupted = False
    if tasks:
        with closing(_executor(executor, jobs)) as workers:
            interrupted = _Runner(workers, tasks, campaign, display or Silent()).finish()
    return [assignment.summary(interrupted) for assignment in assignments]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(name: str, jobs: int | None) -> "Executor":
    if name == "local":
        from targetopt.bench.local import LocalExecutor

        return LocalExecutor(jobs or _cores())
    if name == "ray":
        from targetopt.bench.ray_executor import RayExecutor

        return RayExecutor(jobs, _cores())
    raise BadArgument(f"executor={name!r} is unknown. Use 'local' or 'ray'.")


class _Runner:
    def __init__(
        self, executor: Executor, tasks: list[Task], campaign: Campaign, display: Display
    ) -> None:
        self.executor = executor
        self.campaign = campaign
        self.tasks: dict[str, Task] = {}
        self.pending: list[tuple[int, int, Task]] = []
        self._places: dict[str, int] = {}
        self.given: set[str] = set()
        self.elsewhere: dict[str, float] = {}
        self.tally = Tally(total=campaign.total, before=campaign.finished_before)
        self.display = display
        self._add(tasks)

    def _add(self, tasks: Iterable[Task]) -> None:
        """Queue tasks: by their order, and as they came where that is the same."""
        for task in tasks:
            self.tasks[task.run] = task
            self._push(task)

    def _push(self, task: Task) -> None:
        place = self._places.setdefault(task.run, len(self._places))
        heapq.heappush(self.pending, (self.campaign.order(task.config), place, task))

    def finish(self) -> bool:
        """Work until all tasks have ended; true if Ctrl-C came before that."""
        try:
            while self.pending or self.given or self.elsewhere:
                self._ask_again()
                while self.pending and self.executor.takes(self.pending[0][2]):
                    _, _, task = heapq.heappop(self.pending)
                    self.given.add(task.run)
                    self.executor.submit(task)
                for event in self.executor.wait(0.2):
                    self._handle(event)
                self.display.update(self.tally)
        except KeyboardInterrupt:
            self._stop()
            return True
        except TargetoptError:  # a disk that is full, a metric to tune by that no run has
            self._stop()
            raise
        finally:
            self.display.close()
        return False

    def _stop(self) -> None:
        """Let running runs reach a checkpoint; what cannot be written any more is no news."""
        try:
            for event in self.executor.stop(GRACE):
                if event.kind == "ended":
                    self._handle(event)
        except KeyboardInterrupt:  # a second Ctrl-C: now
            return

    def _handle(self, event: Event) -> None:
        task = self.tasks[event.run]
        if event.kind == "started":
            self.tally.running[event.run] = 0.0
            return
        if event.kind == "progress":
            self.tally.running[event.run] = event.fraction
            return
        if event.kind == "died":
            event = record_death(task, event.reason)
        self.given.discard(event.run)
        self.tally.running.pop(event.run, None)
        if event.kind == "unwritable":
            raise StoreError(event.reason)
        if event.kind == "elsewhere":
            self.elsewhere[event.run] = time.monotonic() + ASK_AGAIN
        elif event.kind == "returned":
            self._push(task)
        elif event.kind == "suspected":  # done again by itself, it will be known for what it is
            self.tasks[event.run] = replace(task, alone=True)
            self._push(self.tasks[event.run])
        elif event.kind == "ended":
            self.tally.ended[event.status] = self.tally.ended.get(event.status, 0) + 1
            self.display.ended(task.config, event)
            self._add(self.campaign.ended(event.run))
            self.tally.total = self.campaign.total
            self.tally.before = self.campaign.finished_before

    def _ask_again(self) -> None:
        now = time.monotonic()
        for run in [run for run, due in self.elsewhere.items() if due <= now]:
            del self.elsewhere[run]
            self._push(self.tasks[run])
