"""One run, from its first step (or its checkpoint) to its end, with what was recorded on the way.

Nothing here knows of processes, directories of runs or terminals: see ``work.py`` for those.
"""

import io
import math
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch

from targetopt.bench import provenance
from targetopt.bench.files import StoreError, write_whole
from targetopt.types import Counts, Diverged

T = TypeVar("T")

CHECKPOINT_FORMAT = 2
PER_DECADE = 12
"""Recorded steps in each factor of ten."""
ALL_EPOCHS = 20
"""The ends of so many epochs are recorded all, those of later ones log-spaced."""


OVERTIME = 5.0
"""Seconds past its limit after which a run that does not stop by itself is killed."""


class Session(Protocol):
    """A problem and a method on their way: what an engine (torch, compiled) gives the runner."""

    total_steps: int
    steps_per_epoch: int
    records_all: bool
    """Whether metrics are recorded after every step, or as :func:`record_steps` says."""

    @property
    def counts(self) -> Counts:
        """What was paid for so far."""

    def advance(self, start: int, stop: int) -> int:
        """Do steps ``start + 1 … stop``, or fewer; say which step was reached.

        Called again until ``stop`` is reached; between calls the run may be checkpointed, stopped
        or found to be over its time. Only the time spent in here is the run's wall time.
        """

    def metrics(self) -> dict[str, float]:
        """The problem's metrics at the current parameters; ``loss`` is always among them."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a bitwise continuation needs, loadable with ``weights_only=True``."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass
class Progress:
    """What a run has so far; with the session's state, the contents of a checkpoint."""

    step: int = 0
    wall_time: float = 0.0
    elapsed: float = 0.0
    cpu_time: float = 0.0
    rows: list[dict[str, float | int]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``done``, ``diverged``, ``failed`` or ``timeout``, why, and its rows."""

    status: str
    reason: str
    rows: list[dict[str, float | int]]
    counts: Counts
    elapsed: float
    cpu_time: float | None = None
    traceback: str = ""


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


@dataclass
class Execution:
    """Drives one session; every argument but ``open_session`` is about how, not about what.

    Args:
        open_session: makes the session; what it raises is the run's failure.
        run: the run's id, kept in checkpoints.
        checkpoint: where to keep and find them.
        checkpoint_seconds: how often at most; 0 after every advance, None never.
        time_limit: seconds the run may take in all, over all its continuations, from when its
            problem is loaded.
        stop: asked between advances; true ends the run at a checkpoint.
        on_row: told of every new row.
        on_progress: told the fraction done, between advances.
    """

    open_session: Callable[[], Session]
    run: str
    checkpoint: Path
    checkpoint_seconds: float | None
    time_limit: float | None
    stop: Callable[[], bool]
    on_row: Callable[[dict[str, float | int]], None]
    on_progress: Callable[[float], None]

    def finish(self) -> Outcome:
        """Run to the end. Raises only :class:`Interrupted` and :class:`StoreError`."""
        return drained(self.slices())

    def slices(self) -> Generator[int, None, Outcome]:
        """As :meth:`finish`, with a pause after every advance, in which the run's clocks stand still.

        It then says how many steps have been made.
        """
        self._began = time.monotonic()
        self._began_cpu = time.process_time()
        self._progress = Progress()
        self._session: Session | None = None
        try:
            self._session = self.open_session()
            self._began = time.monotonic()  # reading data and compiling kernels is not the run's
            with _killed_after(self.time_limit):
                return (yield from self._finish(self._session))
        except (Interrupted, StoreError):
            raise
        except Exception as error:
            status = "diverged" if self._diverged(error) else "failed"
            reason = f"after step {self._progress.step}: {type(error).__name__}: {error}"
            return self._outcome(status, reason, "".join(traceback.format_exception(error)))

    def _diverged(self, error: Exception) -> bool:
        """Whether the numbers are to blame: then the problem itself sees that they left the finite."""
        if isinstance(error, Diverged) or self._session is None:
            return isinstance(error, Diverged)
        try:
            return not math.isfinite(self._session.metrics()["loss"])
        except Exception:  # a problem that cannot even be measured has failed, whatever the reason
            return False

    def _finish(self, session: Session) -> Generator[int, None, Outcome]:
        self._continue(session)
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
            row = self._row(session)
            if not math.isfinite(row["loss"]):
                return self._outcome("diverged", f"the loss is {row['loss']} after step {target}")
            progress.rows.append(row)
            self.on_row(row)
        return self._outcome("done", "")

    def _row(self, session: Session) -> dict[str, float | int]:
        progress, counts = self._progress, session.counts
        return {
            "step": progress.step,
            "oracle_calls": counts.oracle_calls,
            "value_calls": counts.value_calls,
            "inner_steps": counts.inner_steps,
            "forward_calls": counts.forward_calls,
            "backward_calls": counts.backward_calls,
            "epoch": progress.step / session.steps_per_epoch,
            "wall_time": progress.wall_time,
            **session.metrics(),
        }

    def _elapsed(self) -> float:
        return self._progress.elapsed + time.monotonic() - self._began

    def _cpu_time(self) -> float:
        """All of it, reading data and compiling kernels included: what the machine was kept busy for."""
        return self._progress.cpu_time + time.process_time() - self._began_cpu

    def _outcome(self, status: str, reason: str, trace: str = "") -> Outcome:
        counts = Counts() if self._session is None else self._session.counts
        rows, elapsed, cpu_time = self._progress.rows, self._elapsed(), self._cpu_time()
        return Outcome(status, reason, rows, counts, elapsed, cpu_time, trace)

    def _save(self, session: Session) -> None:
        progress = self._progress
        content = {
            "format": CHECKPOINT_FORMAT,
            "run": self.run,
            "source": _source(),
            "session": session.state_dict(),
            "random": torch.get_rng_state(),
            "step": progress.step,
            "wall_time": progress.wall_time,
            "elapsed": self._elapsed(),
            "cpu_time": self._cpu_time(),
            "rows": progress.rows,
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_whole(self.checkpoint, buffer.getvalue())

    def _continue(self, session: Session) -> None:
        """Take up the checkpoint, if it is of this run and of these versions."""
        content = read_checkpoint(self.checkpoint)
        if content is None or content["run"] != self.run:
            return
        if content["source"] != _source():
            return  # other versions may round otherwise; the run begins anew
        session.load_state_dict(content["session"])
        torch.set_rng_state(content["random"])
        self._progress.step = content["step"]
        self._progress.wall_time = content["wall_time"]
        self._progress.elapsed = content["elapsed"]
        self._progress.cpu_time = content["cpu_time"]
        self._progress.rows.extend(content["rows"])


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


def _source() -> dict[str, str | None]:
    """What the numbers depend on beside the configuration."""
    return {**provenance.versions(), "commit": provenance.commit()}


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """A checkpoint's contents, or None if there is none that this version can read."""
    try:
        content = torch.load(path, weights_only=True)
    except FileNotFoundError:
        return None
    except Exception:
        # Checkpoints are written whole, so this one was damaged by something else. It is a copy
        # of work that can be done again: beginning anew is always right.
        return None
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        return None
    return content


def saved_rows(path: Path) -> Sequence[dict[str, float | int]]:
    """The rows a run had recorded at its last checkpoint."""
    content = read_checkpoint(path)
    return content["rows"] if content else []
