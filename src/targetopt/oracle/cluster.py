"""A Ray cluster to work on: the one that is there, or one that is started here. Needs ``[ray]``."""

from __future__ import annotations

import os
from typing import Any

from targetopt.types import MissingCapability


class Cluster:
    """A connection to Ray, with Ray's own silent repetitions switched off.

    The cluster is the one that ``ray.init`` connected to, else the one at ``RAY_ADDRESS``, else one on this
    machine, which `shut_down` ends.

    Args:
        asker: who needs it, for the error where Ray is not installed.
        workers: processes that will be started on it.
        cpus: processors that Ray sets aside for each.
    """

    def __init__(self, asker: str, workers: int, cpus: float) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingCapability(
                f"{asker} needs Ray, which is not installed: pip install 'targetopt[ray]'"
            ) from error
        self.ray: Any = ray
        self._cpus = cpus
        self._own = not ray.is_initialized()
        if self._own:
            address = os.environ.get("RAY_ADDRESS")
            room = {"address": address} if address else {"num_cpus": max(1, round(workers * cpus))}
            ray.init(**room, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    def actors_of(self, kind: type) -> Any:
        """The class as one whose objects live in processes of the cluster.

        One that dies is its owner's to replace, and what was asked of it its owner's to ask again: Ray does neither.
        """
        return self.ray.remote(num_cpus=self._cpus, max_restarts=0, max_task_retries=0)(kind)

    def end(self, actor: Any) -> None:
        """End one process."""
        self.ray.kill(actor, no_restart=True)

    @property
    def running(self) -> bool:
        """Whether there is still a cluster."""
        return bool(self.ray.is_initialized())

    def shut_down(self) -> None:
        """End the cluster if it was started here."""
        if self._own and self.running:
            self.ray.shutdown()


def told(error: BaseException) -> str:
    """What Ray says of a process that died, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " … ".join(dict.fromkeys([lines[0][:200], lines[-1][:200]]))
