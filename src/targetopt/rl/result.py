"""What came out of a run: a record of each update, and the policy with its history."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from targetopt.rl.policy import Policy
from targetopt.types import Counts

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Update:
    """What one update did.

    Attributes:
        update: its number, from 1.
        interactions: steps of the environment so far.
        episodes: that ended in this batch.
        mean_return: of these episodes, in the environment's own rewards; nan if none ended.
        mean_length: of these episodes.
        kl: mean KL(π_t ‖ π_{t+1}) on this batch.
        entropy: of π_{t+1} on this batch.
        eta: the η that the step rule settled on; 0 if the step was refused.
        solves: inner solves of the policy step.
        refused: whether the step rule would not have any of them: the policy stayed.
        inner_steps: of the policy step.
        critic_loss: mean squared error of the critic on this batch, before its update, halved.
        explained: the share of the returns' variance that the critic explained before its update.
        gathering_time: CPU seconds of the simulators and of acting.
        updating_time: CPU seconds of both updates.
    """

    update: int
    interactions: int
    episodes: int
    mean_return: float
    mean_length: float
    kl: float
    entropy: float
    eta: float
    solves: int
    refused: bool
    inner_steps: int
    critic_loss: float
    explained: float
    gathering_time: float
    updating_time: float


@dataclass(frozen=True)
class Result:
    """A trained policy and how it came about.

    Attributes:
        policy: what acts; its ``save`` writes it to a file.
        history: one `Update` each.
        episodes: (steps done by then, return, length) of every episode that ended, in order.
        counts: what the policy's updates cost: oracle calls, inner steps, forwards, interactions.
        settings: of the run.
    """

    policy: Policy
    history: list[Update]
    episodes: Array
    counts: Counts
    settings: dict[str, object] = field(default_factory=dict)

    def columns(self) -> dict[str, Array]:
        """The history as one array per attribute of `Update`, for plots and data frames."""
        return {
            item.name: np.array([getattr(u, item.name) for u in self.history], dtype=np.float64)
            for item in fields(Update)
        }

    def final_return(self, share: float = 0.1) -> float:
        """Mean return of the episodes that ended in the last ``share`` of all interactions; nan if none did."""
        if not len(self.episodes) or not self.history:
            return float("nan")
        late = self.episodes[:, 0] > (1.0 - share) * self.history[-1].interactions
        return float(self.episodes[late, 1].mean()) if late.any() else float("nan")
