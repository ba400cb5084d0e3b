"""Runs on a Ray cluster: each run is a job; the result directory is on a shared file system."""

import os
import time
from collections.abc import Iterator
from typing import Any

from targetopt.lab.run.job import Event, Job, perform
from targetopt.lab.run.local import AHEAD, WorkersCannotStart, one_thread
from targetopt.lab.run.origin import WORKER_ENVIRONMENT
from targetopt.lab.store.directory import Store
from targetopt.types import MissingCapability


class RayExecutor:
    """The cluster at ``RAY_ADDRESS``, or one started on this machine.

    Args:
        jobs: runs at once; if None, as many as the cluster has processors.
        cores: of this machine, for a cluster of our own.

    Workers lock runs, write checkpoints and results exactly as local ones do, with one thread
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
        self._given: dict[Any, Job] = {}
        self._returned: set[str] = set()
        self._own = not ray.is_initialized()
        if self._own:
            address = os.environ.get("RAY_ADDRESS")
            cluster = {"address": address} if address else {"num_cpus": jobs or cores}
            try:
                ray.init(
                    **cluster,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    runtime_env={"env_vars": WORKER_ENVIRONMENT},
                )
            except Exception as error:  # Ray raises plain exceptions, too
                where = address or "on this machine"
                raise WorkersCannotStart(
                    f"Ray cannot be started or reached ({where}): {error} Look at the cluster, or use "
                    "--executor local. Nothing was run."
                ) from error
        self.jobs = jobs or int(ray.cluster_resources().get("CPU", cores))
        # A run that kills its process is a failed run, not one to be tried again behind our back.
        self._perform = ray.remote(num_cpus=1, max_retries=0)(_perform)

    def takes(self, job: Job) -> bool:
        return len(self._given) < self.jobs * AHEAD

    def submit(self, job: Job) -> None:
        self._given[self._perform.remote(job)] = job

    def wait(self, timeout: float) -> list[Event]:
        if not self._given:
            time.sleep(timeout)
            return []
        ready, _ = self.ray.wait(list(self._given), num_returns=1, timeout=timeout)
        return [self._result(reference) for reference in ready]

    def _result(self, reference: Any) -> Event:
        job = self._given.pop(reference)
        try:
            event: Event = self.ray.get(reference)
        except self.ray.exceptions.TaskCancelledError:
            return Event("stopped", job.run)
        except self.ray.exceptions.RayError as error:
            # Ray hands jobs to a worker ahead of time, and fails them with it. One that has left no
            # lock had not begun; it gets a second chance.
            begun = (Store(job.directory).locks.directory / job.run).exists()
            if not begun and job.run not in self._returned:
                self._returned.add(job.run)
                return Event("returned", job.run)
            first_line = str(error).strip().splitlines()[0]
            return Event(
                "died", job.run, reason=f"the Ray worker doing this run died: {first_line}"
            )
        return event

    def stop(self, grace: float) -> Iterator[Event]:
        """Cancel what has not begun, end what has: its last checkpoint is where it goes on."""
        for reference in self._given:
            self.ray.cancel(reference, force=True)
        deadline = time.monotonic() + grace
        while self._given and time.monotonic() < deadline:
            yield from self.wait(0.2)

    def close(self) -> None:
        self._given.clear()
        if self._own:
            self.ray.shutdown()


def _perform(job: Job) -> Event:
    one_thread()
    return perform(job, stop=lambda: False, tell=lambda event: None)
