"""The runner: gives the runs of an experiment to an executor until all of them have ended."""

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from targetopt.lab.run.callbacks import open_trackers
from targetopt.lab.run.job import Event, Job, record_death, settled
from targetopt.lab.run.memory import check_limit
from targetopt.lab.run.plan import Plan, Summary, redo_command
from targetopt.lab.spec.config import RunConfig
from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.store.directory import Store
from targetopt.lab.store.files import StoreError
from targetopt.types import BadArgument, TargetoptError

GRACE = 20.0
"""Seconds that running runs get to write a checkpoint after Ctrl-C."""
ASK_AGAIN = 0.5
"""Seconds after which a run that another runner has locked is asked for again."""


class Executor(Protocol):
    """Where runs happen. The runner alone calls it, from one thread."""

    def takes(self, job: Job) -> bool:
        """Whether it takes this one now."""

    def submit(self, job: Job) -> None: ...

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
    memory_limit: float | None = None,
    checkpoint_seconds: float | None = 30.0,
    only: Sequence[str] = (),
    trackers: Sequence[str] = (),
    display: Display | None = None,
) -> Summary:
    """Do every run of ``experiment`` that ``out`` does not hold yet.

    Finished and diverged runs are never done again. Killed ones go on from their last checkpoint, failed
    ones begin anew. Several calls on one directory share the work.

    Args:
        experiment: what to run; see :class:`~targetopt.lab.spec.experiment.Experiment`.
        out: result directory, made if need be; see :mod:`targetopt.lab.store.directory`.
        jobs: processes at once; as many as there are cores, here or in the Ray cluster, if None.
        executor: ``"local"`` or ``"ray"``.
        time_limit: seconds for each run, over all its continuations.
        memory_limit: gigabytes that each run may take beside what its process has before (Linux).
        checkpoint_seconds: how often a run keeps a checkpoint; None for never.
        only: ids (or their beginnings) of the runs to do; all if empty.
        trackers: names of logging callbacks; see :mod:`targetopt.lab.run.callbacks`.
        display: shows progress; nothing is shown if None.

    Raises:
        SpecError: the experiment is faulty; nothing was run.
        StoreError: the directory cannot be written; what had finished is kept.
    """
    [summary] = run_all(
        [Plan(experiment, Store(out), tuple(only))],
        jobs=jobs,
        executor=executor,
        time_limit=time_limit,
        memory_limit=memory_limit,
        checkpoint_seconds=checkpoint_seconds,
        trackers=trackers,
        display=display,
    )
    return summary


def run_all(
    plans: Sequence[Plan],
    *,
    jobs: int | None = None,
    executor: str = "local",
    time_limit: float | None = None,
    memory_limit: float | None = None,
    checkpoint_seconds: float | None = 30.0,
    trackers: Sequence[str] = (),
    display: Display | None = None,
    order: Callable[[RunConfig], int] = lambda run: 0,
) -> list[Summary]:
    """Do several experiments as one, runs that they share once; arguments as in :func:`run`.

    Args:
        plans: experiments with their directories; with more than one, the directories have
            one home (:meth:`targetopt.lab.store.directory.Store.share`).
        order: runs with small numbers are done first.
    """
    for argument, value in (("jobs", jobs), ("time_limit", time_limit)):
        if value is not None and not value > 0:
            raise BadArgument(f"{argument}={value!r} must be above 0.")
    check_limit(memory_limit)
    for plan in plans:
        # unknown names are refused before anything runs
        open_trackers(trackers, plan.store.directory)
        plan.store.prepare()
    source = _Jobs(
        plans,
        time_limit=time_limit,
        memory_limit=memory_limit,
        checkpoint_seconds=checkpoint_seconds,
        trackers=trackers,
        order=order,
    )
    first = source.begin()
    interrupted = False
    if first:
        with closing(_executor(executor, jobs)) as workers:
            interrupted = _Runner(workers, first, source, display or Silent()).finish()
    return [plan.summary(interrupted) for plan in plans]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(name: str, jobs: int | None) -> "Executor":
    if name == "local":
        from targetopt.lab.run.local import LocalExecutor

        return LocalExecutor(jobs or _cores())
    if name == "ray":
        from targetopt.lab.run.ray_executor import RayExecutor

        return RayExecutor(jobs, _cores())
    raise BadArgument(f"executor={name!r} is unknown. Use 'local' or 'ray'.")


class _Jobs:
    """The jobs of some plans, handed out as they become known: a run that several plans have, once.

    Args:
        plans: of experiments that share a store, or of a single one.
        time_limit, memory_limit, checkpoint_seconds, trackers: of each job.
        order: small numbers are done first.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        time_limit: float | None,
        memory_limit: float | None,
        checkpoint_seconds: float | None,
        trackers: Sequence[str],
        order: Callable[[RunConfig], int],
    ) -> None:
        self.plans = plans
        self.time_limit = time_limit
        self.memory_limit = memory_limit
        self.checkpoint_seconds = checkpoint_seconds
        self.trackers = tuple(trackers)
        self.order = order
        self.finished_before = 0
        self._seen: set[str] = set()
        self._trials: dict[str, list[tuple[Plan, int]]] = {}
        for plan in plans:
            for place, tuned in enumerate(plan.grid.tuned):
                for trial in tuned.trials:
                    self._trials.setdefault(trial.id, []).append((plan, place))

    @property
    def total(self) -> int:
        """How many runs there are, or will be once all is decided (or fewer, if some coincide)."""
        known = {run.id for each in self.plans for run in each.wanted()}
        return len(known | {run.id for each in self.plans for run in each.undecided()})

    def begin(self) -> list[Job]:
        """Write down what is to be done; the jobs for what is not done yet."""
        for plan in self.plans:
            for place in range(len(plan.grid.tuned)):
                plan.decide(place)
            plan.write()
        return self._new_jobs()

    def ended(self, run: str) -> list[Job]:
        """The jobs that the end of a run makes known."""
        concerned = self._trials.get(run, [])
        for plan, place in concerned:
            plan.decide(place)
            if place in plan.decisions:
                plan.write_plan()
        return self._new_jobs() if concerned else []

    def _new_jobs(self) -> list[Job]:
        jobs = []
        for plan in self.plans:
            store = plan.store
            for config in plan.wanted():
                if config.id in self._seen:
                    continue
                self._seen.add(config.id)
                manifest = store.manifest(config.id)
                if settled(manifest, self.time_limit):
                    self.finished_before += 1
                    if manifest is not None and manifest["status"] != "timeout":
                        store.drop_checkpoint(config.id)
                    continue
                jobs.append(
                    Job(
                        directory=str(store.home.resolve()),
                        run=config.id,
                        config=config,
                        attempt=1 if manifest is None else manifest["attempt"] + 1,
                        command=redo_command(store.directory, config.id),
                        time_limit=self.time_limit,
                        memory_limit=self.memory_limit,
                        checkpoint_seconds=self.checkpoint_seconds,
                        plugins=tuple(plan.experiment.plugins),
                        trackers=self.trackers,
                    )
                )
        return sorted(jobs, key=lambda job: (self.order(job.config), str(job.batches)))


class _Runner:
    def __init__(
        self, executor: Executor, first: list[Job], source: _Jobs, display: Display
    ) -> None:
        self.executor = executor
        self.source = source
        self.jobs: dict[str, Job] = {}
        self.pending: list[tuple[int, int, Job]] = []
        self._places: dict[str, int] = {}
        self.given: set[str] = set()
        self.elsewhere: dict[str, float] = {}
        self.tally = Tally(total=source.total, before=source.finished_before)
        self.display = display
        self._add(first)

    def _add(self, jobs: Iterable[Job]) -> None:
        """Queue jobs: by their order, and as they came where that is the same."""
        for job in jobs:
            self.jobs[job.run] = job
            self._push(job)

    def _push(self, job: Job) -> None:
        place = self._places.setdefault(job.run, len(self._places))
        heapq.heappush(self.pending, (self.source.order(job.config), place, job))

    def finish(self) -> bool:
        """Work until all jobs have ended; true if Ctrl-C came before that."""
        try:
            while self.pending or self.given or self.elsewhere:
                self._ask_again()
                while self.pending and self.executor.takes(self.pending[0][2]):
                    _, _, job = heapq.heappop(self.pending)
                    self.given.add(job.run)
                    self.executor.submit(job)
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
        job = self.jobs[event.run]
        if event.kind == "started":
            self.tally.running[event.run] = 0.0
            return
        if event.kind == "progress":
            self.tally.running[event.run] = event.fraction
            return
        if event.kind == "died":
            event = record_death(job, event.reason)
        self.given.discard(event.run)
        self.tally.running.pop(event.run, None)
        if event.kind == "unwritable":
            raise StoreError(event.reason)
        if event.kind == "elsewhere":
            self.elsewhere[event.run] = time.monotonic() + ASK_AGAIN
        elif event.kind == "returned":
            self._push(job)
        elif event.kind == "suspected":  # done again by itself, it will be known for what it is
            self.jobs[event.run] = replace(job, alone=True)
            self._push(self.jobs[event.run])
        elif event.kind == "ended":
            self.tally.ended[event.status] = self.tally.ended.get(event.status, 0) + 1
            self.display.ended(job.config, event)
            self._add(self.source.ended(event.run))
            self.tally.total = self.source.total
            self.tally.before = self.source.finished_before

    def _ask_again(self) -> None:
        now = time.monotonic()
        for run in [run for run, due in self.elsewhere.items() if due <= now]:
            del self.elsewhere[run]
            self._push(self.jobs[run])
