"""One run, from its first step (or its checkpoint) to its end, with what was recorded on the way.

Nothing here knows of processes, directories of runs or terminals: see ``job.py`` for those.
"""

import math
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch

from targetopt.lab.problems.session import Session
from targetopt.lab.run import checkpoints, memory
from targetopt.lab.run.checkpoints import Checkpoint, Progress, Refused
from targetopt.lab.store.files import StoreError
from targetopt.types import Counts, Diverged

T = TypeVar("T")

PER_DECADE = 12
"""Recorded steps in each factor of ten."""
ALL_EPOCHS = 20
"""The ends of so many epochs are recorded all, those of later ones log-spaced."""


OVERTIME = 5.0
"""Seconds past its limit after which a run that does not stop by itself is killed."""


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass(frozen=True)
class Ending:
    """How a run ended: ``done``, ``diverged``, ``failed`` or ``timeout``, why, and its rows.

    ``notes`` say what happened on the way that somebody may want to know.
    """

    status: str
    reason: str
    rows: list[dict[str, float | int]]
    counts: Counts
    elapsed: float
    cpu_time: float | None = None
    traceback: str = ""
    notes: tuple[str, ...] = ()


def record_steps(total: int, per_epoch: int, *, all_of_them: bool = False) -> list[int]:
    """The steps after which metrics are recorded: 0, log-spaced, ends of epochs, the last.

    Beyond :data:`ALL_EPOCHS` epochs, ends of epochs are what is log-spaced, twice as densely: a log axis
    shows no more, and measuring all of 500 would take longer than many a method.

    >>> record_steps(total=30, per_epoch=12)
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 24, 26, 30]
    >>> len(record_steps(total=500, per_epoch=1)), len(record_steps(total=500_000, per_epoch=1000))
    (55, 101)
    """
    if all_of_them:
        return list(range(total + 1))
    crowded = per_epoch * ALL_EPOCHS
    every_end = range(per_epoch, min(crowded, total) + 1, per_epoch)
    later_ends = (per_epoch * epoch for epoch in _log_spaced(total // per_epoch, 2 * PER_DECADE))
    early = (step for step in _log_spaced(total, PER_DECADE) if step <= crowded)
    later = (step for step in later_ends if step > crowded)
    return sorted({0, total, *early, *every_end, *later})


def _log_spaced(last: int, per_decade: int) -> list[int]:
    """Whole numbers from 1 to ``last``, so many in each factor of ten."""
    count = int(math.log10(max(last, 1)) * per_decade) + 1
    return [round(10 ** (k / per_decade)) for k in range(count)]


def execute(
    open_session: Callable[[], Session],
    *,
    run: str,
    source: Mapping[str, Any],
    checkpoint: Path,
    checkpoint_seconds: float | None,
    time_limit: float | None,
    memory_limit: float | None,
    stop: Callable[[], bool],
    on_row: Callable[[dict[str, float | int]], None],
    on_progress: Callable[[float], None],
) -> Generator[int, None, Ending]:
    """Drive a session to its end; every argument but the first is about how, not about what.

    Pauses after every advance and says how many steps have been made; meanwhile the run's clocks stand
    still, so that another run can go on. Raises only :class:`Interrupted` and :class:`StoreError`.

    Args:
        open_session: makes the session; what it raises is the run's failure.
        run: the run's id, kept in checkpoints.
        source: what the numbers depend on beside the configuration; kept in checkpoints, too.
        checkpoint: where to keep and find them.
        checkpoint_seconds: how often at most; 0 after every advance, None never.
        time_limit: seconds the run may take in all, over all its continuations, from when its
            problem is loaded.
        memory_limit: gigabytes the run may take, beside what its process has before.
        stop: asked between advances; true ends the run at a checkpoint.
        on_row: told of every new row.
        on_progress: told the fraction done, between advances.
    """
    return _Execution(
        open_session,
        run,
        source,
        checkpoint,
        checkpoint_seconds,
        time_limit,
        memory_limit,
        stop,
        on_row,
        on_progress,
    ).slices()


@dataclass
class _Execution:
    """What :func:`execute` keeps between two advances."""

    open_session: Callable[[], Session]
    run: str
    source: Mapping[str, Any]
    checkpoint: Path
    checkpoint_seconds: float | None
    time_limit: float | None
    memory_limit: float | None
    stop: Callable[[], bool]
    on_row: Callable[[dict[str, float | int]], None]
    on_progress: Callable[[float], None]

    def slices(self) -> Generator[int, None, Ending]:
        self._began = time.monotonic()
        self._began_cpu = time.process_time()
        self._progress = Progress()
        self._notes: tuple[str, ...] = ()
        self._session: Session | None = None
        try:
            with memory.limited(self.memory_limit):
                self._session = self._continue(self.open_session())
                self._began = (
                    time.monotonic()
                )  # reading data and compiling kernels is not the run's
                with _killed_after(self.time_limit):
                    return (yield from self._finish(self._session))
        except (Interrupted, StoreError):
            raise
        except Exception as error:
            status = "diverged" if self._diverged(error) else "failed"
            said = f"{type(error).__name__}: {error}"
            if self.memory_limit is not None and memory.ran_out(error):
                status, said = "failed", f"{memory.explained(self.memory_limit)} ({said})"
            reason = f"after step {self._progress.step}: {said}"
            return self._outcome(status, reason, "".join(traceback.format_exception(error)))

    def _diverged(self, error: Exception) -> bool:
        """Whether the numbers are to blame: then the problem itself sees that they left the finite."""
        if isinstance(error, Diverged) or self._session is None:
            return isinstance(error, Diverged)
        try:
            return not math.isfinite(self._session.metrics()["loss"])
        except Exception:  # a problem that cannot even be measured has failed, whatever the reason
            return False

    def _finish(self, session: Session) -> Generator[int, None, Ending]:
        saved = time.monotonic()
        progress = self._progress
        for target in record_steps(
            session.total_steps, session.steps_per_epoch, all_of_them=session.records_all
        ):
            if progress.rows and target <= progress.rows[-1]["step"]:
                continue
            while progress.step < target:
                began = time.perf_counter()
                progress.step = session.advance(progress.step, target)
                progress.wall_time += time.perf_counter() - began
                self.on_progress(progress.step / session.total_steps)
                if self.time_limit is not None and self._elapsed() > self.time_limit:
                    self._save(session)
                    return self._outcome(
                        "timeout",
                        f"step {progress.step} of {session.total_steps} was reached in the time "
                        f"limit of {self.time_limit:g} s. A larger --time-limit goes on from there.",
                    )
                if self.stop():
                    self._save(session)
                    raise Interrupted
                due = self.checkpoint_seconds
                if due is not None and time.monotonic() - saved >= due:
                    self._save(session)
                    saved = time.monotonic()
                wall, cpu = time.monotonic(), time.process_time()
                yield progress.step
                self._began += time.monotonic() - wall
                self._began_cpu += time.process_time() - cpu
            for row in self._rows(session):
                if not math.isfinite(row["loss"]):
                    said = f"the loss is {row['loss']} after step {target}"
                    return self._outcome("diverged", said)
                progress.rows.append(row)
                self.on_row(row)
            if session.is_over():
                break
        return self._outcome("done", "")

    def _rows(self, session: Session) -> list[dict[str, float | int]]:
        progress, counts = self._progress, session.counts
        now = {
            "step": progress.step,
            "oracle_calls": counts.oracle_calls,
            "value_calls": counts.value_calls,
            "inner_steps": counts.inner_steps,
            "forward_calls": counts.forward_calls,
            "backward_calls": counts.backward_calls,
            "epoch": progress.step / session.steps_per_epoch,
            "wall_time": progress.wall_time,
        }
        return [{**now, **record} for record in session.records()]

    def _elapsed(self) -> float:
        return self._progress.elapsed + time.monotonic() - self._began

    def _cpu_time(self) -> float:
        """All of it, reading data and compiling kernels included: what the machine was kept busy for."""
        return self._progress.cpu_time + time.process_time() - self._began_cpu

    def _outcome(self, status: str, reason: str, trace: str = "") -> Ending:
        counts = Counts() if self._session is None else self._session.counts
        rows, elapsed, cpu_time = self._progress.rows, self._elapsed(), self._cpu_time()
        return Ending(status, reason, rows, counts, elapsed, cpu_time, trace, self._notes)

    def _save(self, session: Session) -> None:
        now = replace(self._progress, elapsed=self._elapsed(), cpu_time=self._cpu_time())
        state, random = session.state_dict(), torch.get_rng_state()
        Checkpoint(self.run, self.source, state, random, now).write(self.checkpoint)

    def _continue(self, session: Session) -> Session:
        """Take up the checkpoint, if there is one of this run, these versions and this code."""
        try:
            found = checkpoints.read(self.checkpoint)
            if found is None:
                return session
            if found.run != self.run:
                raise Refused(f"it is of the run {found.run!r}")
            if found.source != self.source:  # which may round otherwise, or be another problem
                changed = sorted(
                    key
                    for key in found.source.keys() | self.source.keys()
                    if found.source.get(key) != self.source.get(key)
                )
                raise Refused(f"it was made with another {', '.join(map(str, changed))}")
            if found.progress.step > session.total_steps:
                raise Refused(f"its step {found.progress.step} is none of this run")
            try:
                session.load_state_dict(found.session)
            except (
                Exception
            ) as error:  # what is wrong with the state, whatever a method makes of it
                raise Refused(f"{type(error).__name__}: {error}") from error
        except Refused as refused:
            self._notes += (f"its checkpoint was not continued: {refused}",)
            return self.open_session()  # the other one may be half loaded
        torch.set_rng_state(found.random)
        self._progress = found.progress
        return session


def drained(slices: Generator[object, None, T]) -> T:
    """Go through all the pauses at once; what the generator returns."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return cast(T, end.value)


@contextmanager
def _killed_after(limit: float | None) -> Iterator[None]:
    """Have the system end this process some time past the limit, even if it is stuck in C code."""
    signal.setitimer(signal.ITIMER_REAL, 0.0 if limit is None else limit + OVERTIME)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
