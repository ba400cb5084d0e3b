"""What a run is measured on: held-out expert states, returns, and the best its policy class can do."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from targetopt.problems.base import positive_int
from targetopt.problems.imitation.environment import Environment
from targetopt.problems.imitation.evaluate import Evaluation, run_episodes
from targetopt.problems.imitation.expert import Expert, labelled
from targetopt.problems.imitation.gather import COPIES, make_copies
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.policy import GaussianPolicy


class Measurement:
    """The same yardstick for every policy: an expert's episodes from fixed seeds.

    Args:
        environment: where.
        expert: whose states and returns they are.
        episodes: whole episodes, of the expert (held-out states, expert's return) and of each
            policy that is evaluated, from the same initial states.
        seed: of these episodes.
        held_out: states kept at most, evenly spread over the expert's episodes.
        fast: as for `make_gatherer`.

    Attributes:
        states: held-out states that the expert visits, ``(n, d)``.
        labels: its mean actions there, ``(n, k)``.
        expert: the `Evaluation` of the expert.
    """

    def __init__(
        self,
        environment: Environment,
        expert: Expert,
        *,
        episodes: int = 10,
        seed: int = 0,
        held_out: int = 2000,
        fast: bool | Literal["auto"] = "auto",
    ) -> None:
        self.environment = environment
        self.episodes = positive_int("episodes", episodes)
        self.seed = seed
        count = min(episodes, COPIES) if environment.multiplies else None
        self._copies = make_copies(environment, count, fast)
        self.expert = run_episodes(expert, self._copies, episodes=episodes, seed=seed, record=True)
        assert self.expert.states is not None
        total = len(self.expert.states)
        kept = np.arange(min(positive_int("held_out", held_out), total)) * total
        self.states: Array = self.expert.states[kept // min(held_out, total)]
        self.labels = labelled(expert, self.states, environment)

    def loss(self, policy: GaussianPolicy) -> float:
        """The policy loss on the held-out states."""
        return mean_loss(policy, self.states, self.labels)

    def evaluate(self, policy: GaussianPolicy) -> Evaluation:
        """Returns of the policy's mean action."""
        return run_episodes(policy, self._copies, episodes=self.episodes, seed=self.seed)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same expert in the same environment, and for no other.

        Of the bits of its episodes: another processor, which rounds in another way, may change it.
        """
        data = self.states.tobytes() + self.labels.tobytes() + self.expert.returns.tobytes()
        return hashlib.sha256(data).hexdigest()


def mean_loss(policy: GaussianPolicy, states: Array, labels: Array) -> float:
    """The policy loss on labelled states, summed up in float64."""
    z = torch.from_numpy(policy.numpy()(states))
    return float(policy.loss(labels).value(z).mean())
