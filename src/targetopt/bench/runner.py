"""The runner: gives the runs of an experiment to an executor until all of them have ended."""

import json
import os
import shlex
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from targetopt.bench.callbacks import open_trackers
from targetopt.bench.files import StoreError
from targetopt.bench.grid import RunConfig, expand
from targetopt.bench.spec import Experiment
from targetopt.bench.store import Store
from targetopt.bench.work import Event, Task, record_death, settled
from targetopt.types import BadArgument

GRACE = 20.0
"""Seconds that running runs get to write a checkpoint after Ctrl-C."""
ASK_AGAIN = 0.5
"""Seconds after which a run that another runner had claimed is asked for again."""


class Executor(Protocol):
    """Where runs happen. The runner alone calls it, from one thread."""

    @property
    def free(self) -> int:
        """How many more tasks it takes now."""

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


@dataclass(frozen=True)
class Summary:
    """How a call of :func:`run` left the experiment: numbers of runs, and what went wrong."""

    directory: Path
    total: int
    statuses: dict[str, int]
    troubles: list[tuple[RunConfig, str, str]]
    interrupted: bool

    @property
    def left(self) -> int:
        return self.total - sum(self.statuses.values())


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

    Finished and diverged runs are never done again; failed and killed ones are, from their last
    checkpoint where they have one. Several calls on one directory share the work.

    Args:
        experiment: what to run; see :class:`~targetopt.bench.spec.Experiment`.
        out: result directory, made if need be; see :mod:`targetopt.bench.store`.
        jobs: processes at once; as many as there are cores if None.
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
    for argument, value in (("jobs", jobs), ("time_limit", time_limit)):
        if value is not None and not value > 0:
            raise BadArgument(f"{argument}={value!r} must be above 0.")
    every_run = expand(experiment)
    runs = _selected(every_run, only)
    store = Store(out)
    open_trackers(trackers, store.directory)  # unknown names are refused before anything runs
    store.prepare()
    _write_plan(store, experiment, every_run)
    tasks = []
    tally = Tally(total=len(runs))
    for config in runs:
        manifest = store.manifest(config.id)
        if settled(manifest, time_limit):
            tally.before += 1
            _keep_house(store, config)
        else:
            tasks.append(
                Task(
                    directory=str(store.directory.resolve()),
                    run=config.id,
                    config=config,
                    attempt=1 if manifest is None else manifest["attempt"] + 1,
                    command=redo_command(store.directory, config.id),
                    time_limit=time_limit,
                    checkpoint_seconds=checkpoint_seconds,
                    plugins=tuple(experiment.plugins),
                    trackers=tuple(trackers),
                )
            )
    interrupted = False
    if tasks:
        with closing(_executor(executor, jobs or _cores())) as workers:
            interrupted = _Runner(workers, tasks, tally, display or Silent()).finish()
    return summarise(store, runs, interrupted)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _executor(name: str, jobs: int) -> "Executor":
    if name == "local":
        from targetopt.bench.local import LocalExecutor

        return LocalExecutor(jobs)
    if name == "ray":
        from targetopt.bench.ray_executor import RayExecutor

        return RayExecutor(jobs)
    raise BadArgument(f"executor={name!r} is unknown. Use 'local' or 'ray'.")


def _selected(runs: list[RunConfig], only: Sequence[str]) -> list[RunConfig]:
    for prefix in only:
        if not any(config.id.startswith(prefix) for config in runs):
            raise BadArgument(
                f"only={prefix!r} is no run of this experiment; see `targetopt status`."
            )
    return [config for config in runs if not only or config.id.startswith(tuple(only))]


def _write_plan(store: Store, experiment: Experiment, runs: list[RunConfig]) -> None:
    document = experiment.document
    # Plugins are files beside the original; a copy elsewhere has to name them in full.
    text = experiment.to_toml() if experiment.plugins or document is None else document.text
    plan = [
        {
            "id": config.id,
            "problem": config.problem_label,
            "method": config.method_label,
            "batch_size": config.batch_size,
            "seed": config.seed,
        }
        for config in runs
    ]
    store.write("spec.toml", text.encode())
    store.write("plan.json", json.dumps(plan, indent=1, ensure_ascii=False).encode())


def redo_command(directory: Path, run: str) -> str:
    """The command that does one run again, elsewhere."""
    spec = shlex.quote(str(directory / "spec.toml"))
    return f"targetopt run {spec} --only {run} --out {shlex.quote(str(directory) + '-redo')}"


def _keep_house(store: Store, config: RunConfig) -> None:
    """A settled run needs no checkpoint; and it takes the labels it has in the specification now."""
    manifest = store.manifest(config.id)
    assert manifest is not None
    if manifest["status"] != "timeout":
        store.drop_checkpoint(config.id)
    labels = (config.problem_label, config.method_label)
    shown = (manifest["problem"]["label"], manifest["method"]["label"])
    if labels != shown and store.claims.take(config.id):
        try:
            store.relabel(manifest, *labels)
        finally:
            store.claims.release(config.id)


def summarise(store: Store, runs: Sequence[RunConfig], interrupted: bool) -> Summary:
    statuses: dict[str, int] = {}
    troubles = []
    for config in runs:
        manifest = store.manifest(config.id)
        if manifest is not None:
            status = manifest["status"]
            statuses[status] = statuses.get(status, 0) + 1
            if status != "done":
                troubles.append((config, status, manifest["reason"]))
    return Summary(store.directory, len(runs), statuses, troubles, interrupted)


class _Runner:
    def __init__(
        self, executor: Executor, tasks: list[Task], tally: Tally, display: Display
    ) -> None:
        self.executor = executor
        self.tasks = {task.run: task for task in tasks}
        self.pending = deque(tasks)
        self.given: set[str] = set()
        self.elsewhere: dict[str, float] = {}
        self.tally = tally
        self.display = display

    def finish(self) -> bool:
        """Work until all tasks have ended; true if Ctrl-C came before that."""
        try:
            while self.pending or self.given or self.elsewhere:
                self._ask_again()
                while self.pending and self.executor.free > 0:
                    task = self.pending.popleft()
                    self.given.add(task.run)
                    self.executor.submit(task)
                for event in self.executor.wait(0.2):
                    self._handle(event)
                self.display.update(self.tally)
        except KeyboardInterrupt:
            self._stop()
            return True
        except StoreError:
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
            self.pending.appendleft(task)
        elif event.kind == "ended":
            self.tally.ended[event.status] = self.tally.ended.get(event.status, 0) + 1
            self.display.ended(task.config, event)

    def _ask_again(self) -> None:
        now = time.monotonic()
        for run in [run for run, due in self.elsewhere.items() if due <= now]:
            del self.elsewhere[run]
            self.pending.append(self.tasks[run])
