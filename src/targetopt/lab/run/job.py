"""A job is one run in one result directory: lock it, do it, write it down. What every worker does."""

import json
import pickle
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime

from targetopt.lab.run import memory
from targetopt.lab.run.callbacks import open_trackers
from targetopt.lab.run.checkpoints import saved_rows
from targetopt.lab.run.execute import (
    OVERTIME,
    Ending,
    Interrupted,
    drained,
    execute,
)
from targetopt.lab.spec.config import RunConfig
from targetopt.lab.spec.plugins import digests, load_plugins
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.store import provenance
from targetopt.lab.store.directory import COUNTS, Store
from targetopt.lab.store.files import StoreError
from targetopt.lab.store.records import Manifest
from targetopt.types import Counts


@dataclass(frozen=True)
class Job:
    """A run to be done, as it travels to a worker."""

    directory: str
    run: str
    config: RunConfig
    attempt: int
    command: str
    time_limit: float | None = None
    memory_limit: float | None = None
    checkpoint_seconds: float | None = 30.0
    plugins: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()
    alone: bool = False

    def __reduce__(self) -> tuple[Callable[..., "Job"], tuple[object, ...]]:
        """Its method may be of a class that a plugin defines: whoever unpacks it reads the plugins first."""
        return _unpacked, (self.plugins, pickle.dumps(vars(self)))

    @property
    def batches(self) -> Hashable:
        """What jobs have in common that gain by being done in turns; None if this one would not.

        Runs of SSO in the compiled driver share the batches they see, which take longer to prepare than
        to use; see :mod:`targetopt.linear.kernels.data.pieces`.
        """
        config = self.config
        # limits are on the clock and the memory of one run, and many a tracker follows one run of a process
        limited = self.time_limit is not None or self.memory_limit is not None
        lone = self.alone or limited or set(self.trackers) - {"tensorboard"}
        if lone or (config.engine, config.method.name) != ("compiled", "sso"):
            return None
        if config.batch_size == "full":
            return None
        data = json.dumps(dict(config.problem), sort_keys=True)
        return (self.directory, data, config.batch_size, config.seed)


def _unpacked(plugins: tuple[str, ...], fields: bytes) -> Job:
    load_plugins(plugins)
    return Job(**pickle.loads(fields))


@dataclass(frozen=True)
class Event:
    """What a worker, or an executor on behalf of a dead one, tells the runner.

    ``kind`` is one of ``started``, ``progress`` (``fraction`` done), ``ended`` (with the
    manifest's ``status`` and ``reason``), ``elsewhere`` (another process holds the lock),
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


def perform(job: Job, stop: Callable[[], bool], tell: Callable[[Event], None]) -> Event:
    """Do ``job`` unless it is locked or settled; the event says how that ended."""
    return drained(performance(job, stop, tell))


def performance(
    job: Job, stop: Callable[[], bool], tell: Callable[[Event], None]
) -> Generator[int, None, Event]:
    """As :func:`perform`, with pauses in which another run can go on; each says how many steps were made."""
    store = Store(job.directory)
    try:
        if not store.locks.take(job.run):
            return Event("elsewhere", job.run)
        try:
            manifest = store.manifest(job.run)
            if manifest is None or (
                not settled(manifest, job.time_limit) and manifest["attempt"] < job.attempt
            ):
                tell(Event("started", job.run))
                manifest = yield from _carry_out(job, store, stop, tell)
            return Event("ended", job.run, manifest["status"], manifest["reason"])
        finally:
            store.locks.release(job.run)
    except Interrupted:
        return Event("stopped", job.run)
    except StoreError as error:
        return Event("unwritable", job.run, reason=str(error))


def record_death(job: Job, reason: str) -> Event:
    """Write the manifest of a run whose process died, with the rows of its last checkpoint."""
    store = Store(job.directory)
    elapsed = store.locks.age(job.run)
    status = "failed"
    if job.time_limit is not None and elapsed >= job.time_limit + OVERTIME:
        status = "timeout"
        reason = f"it did not stop by itself at the time limit of {job.time_limit:g} s: killed"
    elif job.memory_limit is not None:
        reason += f", perhaps because {memory.explained(job.memory_limit)}"
    try:
        if not store.locks.take(job.run):  # another runner has taken it up already
            return Event("elsewhere", job.run)
        try:
            rows = list(saved_rows(store.checkpoint_path(job.run)))
            last = rows[-1] if rows else {}
            counts = Counts(**{name: int(last.get(name, 0)) for name in COUNTS})
            started = datetime.fromtimestamp(time.time() - elapsed, UTC)
            outcome = Ending(status, reason, rows, counts, elapsed)
            store.save(_manifest(job, outcome, started), rows)
            return Event("ended", job.run, status, reason)
        finally:
            store.locks.release(job.run)
    except StoreError as error:
        return Event("unwritable", job.run, reason=str(error))


def _carry_out(
    job: Job, store: Store, stop: Callable[[], bool], tell: Callable[[Event], None]
) -> Generator[int, None, Manifest]:
    load_plugins(job.plugins)
    trackers = open_trackers(job.trackers, store.directory)
    started = datetime.now(UTC)
    trackers.on_start(_beginning(job, started))
    last_told = time.monotonic()

    def on_progress(fraction: float) -> None:
        nonlocal last_told
        if time.monotonic() - last_told > 0.5:
            last_told = time.monotonic()
            tell(Event("progress", job.run, fraction=fraction))

    outcome = yield from execute(
        lambda: load_problem(job.config.problem).session(job.config),
        run=job.run,
        source=_source(job),
        checkpoint=store.checkpoint_path(job.run),
        checkpoint_seconds=job.checkpoint_seconds,
        time_limit=job.time_limit,
        memory_limit=job.memory_limit,
        stop=stop,
        on_row=trackers.on_row,
        on_progress=on_progress,
    )
    manifest = _manifest(job, outcome, started)
    store.save(manifest, outcome.rows)
    trackers.on_end(manifest)
    if outcome.status != "timeout":  # a time-out goes on from its checkpoint when given more
        store.drop_checkpoint(job.run)
    return manifest


def _source(job: Job) -> dict[str, str | None]:
    """What the numbers depend on beside the configuration."""
    versions = {**provenance.versions(), "commit": provenance.commit()}
    return versions | digests(job.plugins)


def _beginning(job: Job, started: datetime) -> Manifest:
    """What a manifest can say before the run."""
    config = job.config
    return {
        "id": job.run,
        "problem": config.described_problem(),
        "method": config.described_method(),
        "seed": config.seed,
        "batch_size": config.batch_size,
        "epochs": config.epochs,
        "config": config.resolved(),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "plugins": digests(job.plugins),
        "machine": provenance.machine(),
        "started": started.isoformat(timespec="seconds"),
        "command": job.command,
        "attempt": job.attempt,
        "time_limit": job.time_limit,
    }


def _manifest(job: Job, outcome: Ending, started: datetime) -> Manifest:
    manifest = {
        **_beginning(job, started),
        "status": outcome.status,
        "reason": outcome.reason,
        "duration": round(outcome.elapsed, 3),
        "counts": {name: getattr(outcome.counts, name) for name in COUNTS},
    }
    if outcome.cpu_time is not None:  # of a process that died, nobody knows
        manifest["cpu_time"] = round(outcome.cpu_time, 3)
    if outcome.notes:
        manifest["notes"] = list(outcome.notes)
    if outcome.traceback:
        manifest["traceback"] = outcome.traceback
    return manifest
