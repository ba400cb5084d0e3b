"""What a training needs of an algorithm: to learn, to show its mean action, and to be put back."""

from __future__ import annotations

from typing import Any, Protocol

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.simulation.environment import Env


class Learner(Protocol):
    """An algorithm at work on one environment. Made anew and then ``put``, it goes on as if never left.

    Attributes:
        model: Stable-Baselines3's object; the training calls its ``learn``.
        replay: its replay buffer, which is checkpointed piece by piece; None if it has none.
    """

    model: Any
    replay: Any | None

    def expert(self) -> NetworkExpert:
        """The mean action as it is now."""

    def take(self) -> dict[str, Any]:
        """All that decides how the training goes on, but for the replay buffer."""

    def put(self, state: dict[str, Any]) -> None:
        """Go on from what ``take`` gave."""

    def environments(self) -> list[Env]:
        """The environments it steps."""
