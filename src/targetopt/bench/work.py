"""One run in one result directory: claim it, do it, write it down. What every worker does."""

import json
import pickle
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime

from targetopt.bench import provenance
from targetopt.bench.callbacks import open_trackers
from targetopt.bench.config import RunConfig
from targetopt.bench.execute import (
    OVERTIME,
    Execution,
    Interrupted,
    Outcome,
    drained,
    saved_rows,
)
from targetopt.bench.files import StoreError
from targetopt.bench.plugins import load_plugins
from targetopt.bench.session import open_session
from targetopt.bench.store import COUNTS, Manifest, Store
from targetopt.types import Counts


@dataclass(frozen=True)
class Task:
    """A run to be done, as it travels to a worker."""

    directory: str
    run: str
    config: RunConfig
    attempt: int
    command: str
    time_limit: float | None = None
    checkpoint_seconds: float | None = 30.0
    plugins: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    alone: bool = False

    def __reduce__(self) -> tuple[Callable[..., "Task"], tuple[object, ...]]:
        """Its method may be of a class that a plugin defines: whoever unpacks it reads the plugins first."""
        return _unpacked, (self.plugins, pickle.dumps(vars(self)))

    @property
    def batches(self) -> Hashable:
        """What tasks have in common that gain by being done in turns; None if this one would not.

        Runs of SSO in the compiled driver share the batches they see, which take longer to prepare than
        to use; see :mod:`targetopt.linear.compiled.pieces`.
        """
        config = self.config
        # a limit is on the clock of one run, and many a tracker follows one run of a process
        lone = self.alone or self.time_limit is not None or set(self.trackers) - {"tensorboard"}
        if lone or (config.engine, config.method.name) != ("compiled", "sso"):
            return None
        if config.batch_size == "full":
            return None
        data = json.dumps(dict(config.problem), sort_keys=True)
        return (self.directory, data, config.batch_size, config.seed)


def _unpacked(plugins: tuple[str, ...], fields: bytes) -> Task:
    load_plugins(plugins)
    return Task(**pickle.loads(fields))


@dataclass(frozen=True)
class Event:
    """What a worker, or an executor on behalf of a dead one, tells the runner.

    ``kind`` is one of ``started``, ``progress`` (``fraction`` done), ``ended`` (with the
    manifest's ``status`` and ``reason``), ``elsewhere`` (another process holds the claim),
    ``stopped`` (asked to, at a checkpoint), ``returned`` (never begun), ``died`` (the process doing
    it ended; ``reason`` says how), ``suspected`` (so it did, but several were under way in it) and
    ``unwritable`` (the directory takes no more files).
    """

    kind: str
    run: str
    status: str = ""
    reason: str = ""
    fraction: float = 0.0


def settled(manifest: Manifest | None, time_limit: float | None) -> bool:
    """Whether a run needs nothing more: failures are tried again, time-outs if given more time."""
    if manifest is None or manifest["status"] == "failed":
        return False
    if manifest["status"] == "timeout":
        return time_limit is not None and time_limit <= manifest["time_limit"]
    return True


def perform(task: Task, stop: Callable[[], bool], tell: Callable[[Event], None]) -> Event:
    """Do ``task`` unless it is claimed or settled; the event says how that ended."""
    return drained(performance(task, stop, tell))


def performance(
    task: Task, stop: Callable[[], bool], tell: Callable[[Event], None]
) -> Generator[int, None, Event]:
    """As :func:`perform`, with pauses in which another run can go on; each says how many steps were made."""
    store = Store(task.directory)
    try:
        if not store.claims.take(task.run):
            return Event("elsewhere", task.run)
        try:
            manifest = store.manifest(task.run)
            if manifest is None or (
                not settled(manifest, task.time_limit) and manifest["attempt"] < task.attempt
            ):
                tell(Event("started", task.run))
                manifest = yield from _carry_out(task, store, stop, tell)
            return Event("ended", task.run, manifest["status"], manifest["reason"])
        finally:
            store.claims.release(task.run)
    except Interrupted:
        return Event("stopped", task.run)
    except StoreError as error:
        return Event("unwritable", task.run, reason=str(error))


def record_death(task: Task, reason: str) -> Event:
    """Write the manifest of a run whose process died, with the rows of its last checkpoint."""
    store = Store(task.directory)
    elapsed = store.claims.age(task.run)
    status = "failed"
    if task.time_limit is not None and elapsed >= task.time_limit + OVERTIME:
        status = "timeout"
        reason = f"it did not stop by itself at the time limit of {task.time_limit:g} s: killed"
    try:
        if not store.claims.take(task.run):  # another runner has taken it up already
            return Event("elsewhere", task.run)
        try:
            rows = list(saved_rows(store.checkpoint_path(task.run)))
            last = rows[-1] if rows else {}
            counts = Counts(**{name: int(last.get(name, 0)) for name in COUNTS})
            started = datetime.fromtimestamp(time.time() - elapsed, UTC)
            outcome = Outcome(status, reason, rows, counts, elapsed)
            store.save(_manifest(task, outcome, started), rows)
            return Event("ended", task.run, status, reason)
        finally:
            store.claims.release(task.run)
    except StoreError as error:
        return Event("unwritable", task.run, reason=str(error))


def _carry_out(
    task: Task, store: Store, stop: Callable[[], bool], tell: Callable[[Event], None]
) -> Generator[int, None, Manifest]:
    load_plugins(task.plugins)
    trackers = open_trackers(task.trackers, store.directory)
    started = datetime.now(UTC)
    trackers.on_start(_beginning(task, started))
    last_told = time.monotonic()

    def on_progress(fraction: float) -> None:
        nonlocal last_told
        if time.monotonic() - last_told > 0.5:
            last_told = time.monotonic()
            tell(Event("progress", task.run, fraction=fraction))

    execution = Execution(
        open_session=lambda: open_session(task.config),
        run=task.run,
        checkpoint=store.checkpoint_path(task.run),
        checkpoint_seconds=task.checkpoint_seconds,
        time_limit=task.time_limit,
        stop=stop,
        on_row=trackers.on_row,
        on_progress=on_progress,
    )
    outcome = yield from execution.slices()
    manifest = _manifest(task, outcome, started)
    store.save(manifest, outcome.rows)
    trackers.on_end(manifest)
    if outcome.status != "timeout":  # a time-out goes on from its checkpoint when given more
        store.drop_checkpoint(task.run)
    return manifest


def _beginning(task: Task, started: datetime) -> Manifest:
    """What a manifest can say before the run."""
    config = task.config
    return {
        "id": task.run,
        "problem": config.described_problem(),
        "method": config.described_method(),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "config": config.resolved(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "machine": provenance.machine(),
        "started": started.isoformat(timespec="seconds"),
        "command": task.command,
        "attempt": task.attempt,
        "time_limit": task.time_limit,
    }


def _manifest(task: Task, outcome: Outcome, started: datetime) -> Manifest:
    manifest = {
        **_beginning(task, started),
        "status": outcome.status,
        "reason": outcome.reason,
        "duration": round(outcome.elapsed, 3),
        "counts": {name: getattr(outcome.counts, name) for name in COUNTS},
    }
    if outcome.cpu_time is not None:  # of a process that died, nobody knows
        manifest["cpu_time"] = round(outcome.cpu_time, 3)
    if outcome.traceback:
        manifest["traceback"] = outcome.traceback
    return manifest
