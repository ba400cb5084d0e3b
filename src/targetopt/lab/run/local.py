"""Runs on this machine: a handful of worker processes that live as long as there is work."""

import multiprocessing
import os
import pickle
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import cast

from targetopt.lab.run import origin
from targetopt.lab.run.job import Event, Job, performance
from targetopt.types import TargetoptError

AHEAD = 2
"""Jobs given to a worker at once: the one it does and the one it takes up without waiting."""
TOGETHER = 16
"""Jobs that a worker does in turns, if they share their batches."""


class WorkersCannotStart(TargetoptError, RuntimeError):
    """A worker process ended before it could do anything."""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    given: list[Job] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    ready: bool = False

    def takes(self, job: Job) -> bool:
        """One ahead, and whatever goes together with all that it has."""
        if len(self.given) < AHEAD:
            return True
        together = all(each.batches == job.batches for each in self.given)
        return together and job.batches is not None and len(self.given) < TOGETHER


class LocalExecutor:
    """``jobs`` processes, each given a few jobs, replaced when they die."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._workers: list[_Worker] = []

    def takes(self, job: Job) -> bool:
        """Whether some worker takes it now."""
        return len(self._workers) < self.jobs or any(w.takes(job) for w in self._workers)

    def submit(self, job: Job) -> None:
        idle = [worker for worker in self._workers if not worker.given]
        if not idle and len(self._workers) < self.jobs:
            self._workers.append(_start_worker())
            idle = self._workers[-1:]
        free = idle or [worker for worker in self._workers if worker.takes(job)]
        worker = min(free, key=lambda worker: len(worker.given))
        worker.given.append(job)
        with suppress(BrokenPipeError):  # it has died; wait() will find that out and say so
            worker.connection.send((job.run, pickle.dumps(job)))

    def wait(self, timeout: float) -> list[Event]:
        """Events since last asked; waits at most ``timeout`` seconds for the first."""
        ready = wait([worker.connection for worker in self._workers], timeout)
        events: list[Event] = []
        for worker in list(self._workers):
            if worker.connection in ready:
                events += self._listen(worker)
        return events

    def stop(self, grace: float) -> Iterator[Event]:
        """Ask all workers to stop at a checkpoint; after ``grace`` seconds, end them."""
        for worker in self._workers:
            with suppress(OSError):
                worker.connection.send(None)
            if worker.process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self._workers and time.monotonic() < deadline:
            yield from self.wait(0.2)

    def close(self) -> None:
        """End every worker. None is doing anything that its lock and checkpoint do not cover."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()
        self._workers.clear()

    def _listen(self, worker: _Worker) -> list[Event]:
        events = []
        try:
            while worker.connection.poll():
                event = worker.connection.recv()
                worker.ready = True
                if event is None:
                    continue
                events.append(event)
                if event.kind == "started":
                    worker.running.add(event.run)
                elif event.kind != "progress":
                    worker.running.discard(event.run)
                    worker.given = [job for job in worker.given if job.run != event.run]
        except (EOFError, ConnectionResetError):
            events += self._bury(worker)
        return events

    def _bury(self, worker: _Worker) -> Iterator[Event]:
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        how = _how_it_ended(worker.process.exitcode or 0)
        if not worker.ready and worker.process.exitcode != -signal.SIGTERM:
            raise WorkersCannotStart(
                f"a worker process {how} before its first run. What it printed above says why. If you "
                "run experiments from a script of your own, begin there with `if __name__ == "
                "'__main__':`, as worker processes import the script."
            )
        for job in worker.given:
            if job.run not in worker.running:
                yield Event("returned", job.run)
            elif len(worker.running) > 1:
                yield Event("suspected", job.run)
            else:
                yield Event("died", job.run, reason=f"the process doing this run {how}")


def _how_it_ended(exitcode: int) -> str:
    """
    >>> _how_it_ended(-11)
    'was ended by SIGSEGV'
    >>> _how_it_ended(3)
    'exited with code 3'
    """
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = " (the system does that when memory runs out)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def _start_worker() -> _Worker:
    ours, theirs = multiprocessing.Pipe()
    process = _started(theirs)
    theirs.close()
    return _Worker(process, ours)


def _started(connection: Connection) -> BaseProcess:
    """Where forking is safe, a worker is forked; elsewhere each is started afresh and imports for itself."""
    process: BaseProcess
    if not origin.started():
        spawning = multiprocessing.get_context("spawn")
        process = spawning.Process(target=_work, args=(connection,), daemon=True)
        with origin.inherited_by_workers():
            process.start()
        return process
    forking = multiprocessing.get_context("forkserver")
    process = forking.Process(target=_work, args=(connection,), daemon=True)
    process.start()  # not in there: a Ctrl-C that comes while workers start would be lost
    return process


def one_thread() -> None:
    """What the environment cannot say any more: torch keeps its own counts."""
    import torch

    torch.set_num_threads(1)
    with suppress(RuntimeError):  # once parallel work has begun, torch refuses; harmless
        torch.set_num_interop_threads(1)


def _work(connection: Connection) -> None:
    """The life of a worker: jobs come in, events go out, until the pipe closes."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_die_with_parent, daemon=True).start()
    one_thread()
    _send(connection, None)  # alive
    waiting: deque[Job] = deque()
    group: list[_Running] = []
    lots = random.Random()
    while group or not stopping.is_set():
        while connection.poll(None if not group and not waiting else 0):
            try:
                received = connection.recv()
            except EOFError:
                return
            if received is None:
                stopping.set()
                break
            run, packed = received
            try:
                waiting.append(pickle.loads(packed))
            except Exception as error:  # a plugin may raise anything
                why = f"a worker could not take it up: {type(error).__name__}: {error}"
                _send(connection, Event("died", run, reason=why))
        if stopping.is_set():
            waiting.clear()
        while waiting and (not group or group[0].shares_with(waiting[0])):
            group.append(_Running.started(waiting.popleft(), stopping, connection))
        if group:
            # Whoever is behind. If several are, one of them will prepare what all of them use: by lot,
            # so that no run's wall time is longer for it than another's.
            behind = min(running.step for running in group)
            running = lots.choice([running for running in group if running.step == behind])
            if (ended := running.go_on()) is not None:
                group.remove(running)
                _send(connection, ended)


@dataclass(eq=False)
class _Running:
    """A job that a worker is doing, perhaps in turns with others."""

    job: Job
    pieces: Generator[int, None, Event]
    step: int = 0

    @staticmethod
    def started(job: Job, stopping: threading.Event, connection: Connection) -> "_Running":
        def tell(event: Event) -> None:
            _send(connection, event)

        return _Running(job, performance(job, stopping.is_set, tell))

    def shares_with(self, job: Job) -> bool:
        return job.batches is not None and job.batches == self.job.batches

    def go_on(self) -> Event | None:
        """Do a piece; how the run ended, if it did."""
        try:
            self.step = next(self.pieces)
        except StopIteration as end:
            return cast(Event, end.value)
        return None


def _send(connection: Connection, event: Event | None) -> None:
    try:
        connection.send(event)
    except OSError:  # the runner is gone; the run must not take that for a failure of its own
        os._exit(1)


def _die_with_parent() -> None:
    """A killed runner leaves no orphans: their locks would keep the next runner waiting."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
