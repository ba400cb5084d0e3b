"""Runs on a Ray cluster: each run is a task; the result directory is on a shared file system."""

import os
import time
from collections.abc import Iterator
from typing import Any

from targetopt.bench.local import AHEAD, WORKER_ENVIRONMENT, one_thread
from targetopt.bench.store import Store
from targetopt.bench.work import Event, Task, perform
from targetopt.types import MissingCapability


class RayExecutor:
    """The cluster at ``RAY_ADDRESS``, or one started on this machine.

    Args:
        jobs: runs at once; if None, as many as the cluster has processors.
        cores: of this machine, for a cluster of our own.

    Workers claim runs, write checkpoints and results exactly as local ones do, with one thread
    each, so the numbers are the same.
    """

    def __init__(self, jobs: int | None, cores: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingCapability(
                "--executor ray needs Ray, which is not installed: pip install 'targetopt[ray]'"
            ) from error
        self.ray: Any = ray
        self._tasks: dict[Any, Task] = {}
        self._returned: set[str] = set()
        self._own = not ray.is_initialized()
        if self._own:
            address = os.environ.get("RAY_ADDRESS")
            cluster = {"address": address} if address else {"num_cpus": jobs or cores}
            ray.init(
                **cluster,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                runtime_env={"env_vars": WORKER_ENVIRONMENT},
            )
        self.jobs = jobs or int(ray.cluster_resources().get("CPU", cores))
        # A run that kills its process is a failed run, not one to be tried again behind our back.
        self._perform = ray.remote(num_cpus=1, max_retries=0)(_perform)

    def takes(self, task: Task) -> bool:
        return len(self._tasks) < self.jobs * AHEAD

    def submit(self, task: Task) -> None:
        self._tasks[self._perform.remote(task)] = task

    def wait(self, timeout: float) -> list[Event]:
        if not self._tasks:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        return [self._result(reference) for reference in ready]

    def _result(self, reference: Any) -> Event:
        task = self._tasks.pop(reference)
        try:
            event: Event = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return Event("stopped", task.run)
        except self.ray.exceptions.RayError as error:
            # Ray hands tasks to a worker ahead of time, and fails them with it. One that has left no
            # claim had not begun; it gets a second chance.
            begun = (Store(task.directory).claims.directory / task.run).exists()
            if not begun and task.run not in self._returned:
                self._returned.add(task.run)
                return Event("returned", task.run)
            first_line = str(error).strip().splitlines()[0]
            return Event(
                "died", task.run, reason=f"the Ray worker doing this run died: {first_line}"
            )
        return event

    def stop(self, grace: float) -> Iterator[Event]:
        """Cancel what has not begun, end what has: its last checkpoint is where it goes on."""
        for reference in self._tasks:
            self.ray.cancel(reference, force=True)
        deadline = time.monotonic() + grace
        while self._tasks and time.monotonic() < deadline:
            yield from self.wait(0.2)

    def close(self) -> None:
        self._tasks.clear()
        if self._own:
            self.ray.shutdown()


def _perform(task: Task) -> Event:
    one_thread()
    return perform(task, stop=lambda: False, tell=lambda event: None)
