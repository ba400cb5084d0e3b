"""The seam between a gatherer and its simulators: copies of one environment, stepped together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.environment import Environment

Flags = NDArray[np.bool_]
Ids = NDArray[np.intp]


@dataclass(frozen=True)
class Failure:
    """A copy whose simulator raised or showed what is not finite: its episode is over."""

    copy: int
    reason: str
    cause: Exception | None = None


@dataclass(frozen=True)
class Outcome:
    """What one step of some copies did, row by row.

    Attributes:
        rewards: one per copy that was stepped.
        terminated: whether its episode has come to an end of its own: nothing follows, and nothing is earned any more.
        truncated: whether its episode was cut off (by the time limit, say): it would have gone on.
        failures: the copies that could not be stepped; their rows say nothing.
    """

    rewards: Array
    terminated: Flags
    truncated: Flags
    failures: list[Failure] = field(default_factory=list)

    @property
    def ended(self) -> Flags:
        """Whether its episode is over, in either way."""
        return self.terminated | self.truncated

    @classmethod
    def blank(cls, rows: int) -> Outcome:
        """No reward and no end in each of so many rows, to be filled in."""
        return cls(np.zeros(rows), np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool))


def unusable(copy: int, observation: Array) -> Failure:
    """The failure of showing an observation that is not finite."""
    where = np.flatnonzero(~np.isfinite(observation)).tolist()
    return Failure(copy, f"its observation is not finite at entries {where}: {observation[where]}")


class Copies(ABC):
    """``count`` copies of an environment; every call names the copies it is about.

    A gatherer resets copies with seeds it drew and steps them with actions in the box; nothing here
    is random by itself. A copy that fails does not keep the others from being stepped.
    """

    observations: Array
    """Shape ``(count, d)``; row i is what copy i shows now."""

    shared: bool = False
    """Whether the only copy is the one instance there is, which others may step as well."""

    together: bool = False
    """Whether the copies that are in an episode can be stepped all together only."""

    def __init__(self, environment: Environment, count: int) -> None:
        self.environment = environment
        self.count = count
        self.observations = np.zeros(
            (count, environment.observation_size), environment.observations.dtype
        )

    @abstractmethod
    def reset(self, copy: int, seed: int) -> Failure | None:
        """Begin a new episode in one copy, as ``env.reset(seed=seed)`` does."""

    @abstractmethod
    def step(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        """One environment step of the copies ``ids``, with one row of action each."""

    def frame(self, copy: int) -> NDArray[np.uint8] | None:
        """A picture of one copy as it is now; None where the simulator draws none."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Arrays from which `load_state_dict` goes on bitwise."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None:  # noqa: B027
        """Let go of what the copies hold beside their environment."""
