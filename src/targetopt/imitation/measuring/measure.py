"""What a run is measured on: held-out states of the expert, and returns beside the expert's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.imitation.expert import Expert
from targetopt.imitation.measuring.evaluate import Evaluation, episode_seeds, run_episodes
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.actions import Box
from targetopt.imitation.simulation.environment import Environment
from targetopt.imitation.simulation.gather import COPIES, make_copies
from targetopt.imitation.teacher import Teacher
from targetopt.types import BadArgument, positive_int

MEASURED_SEED = 2**63
"""Of the episodes that policies are measured on, whatever the seed of the run. No run can have it."""

OPENING = 20
"""Steps of the expert's first episode that are kept, to tell whether an environment is still the same."""

PROBES = 4
"""Held-out states that the expert is asked about again, to tell whether it is still the same."""


@dataclass(frozen=True)
class Taken:
    """The expert's own episodes, as far as they are kept.

    Attributes:
        states: held-out states, ``(n, d)``, evenly spread over the episodes.
        labels: what the expert did there, ``(n, k)``.
        returns: of its episodes.
        lengths: of its episodes.
        opening_states: the first states of its first episode.
        opening_actions: what it did there.
    """

    states: Array
    labels: Array
    returns: Array
    lengths: NDArray[np.int64]
    opening_states: Array
    opening_actions: Array


class Measurement:
    """The same yardstick for every policy: an expert's episodes from fixed seeds.

    The expert plays when something of it is first asked for. It is asked about each of its states
    once; with ``held_out=0`` it is not asked at all, and there is neither a held-out loss nor a return of
    the expert's.

    Args:
        environment: where.
        expert: whose states and returns they are.
        episodes: whole episodes, of the expert (held-out states, expert's return) and of each
            policy that is evaluated, from the same initial states.
        seed: of these episodes.
        held_out: states kept at most, evenly spread over the expert's episodes; 0 leaves the expert
            alone.
        held_out_noise: standard deviation of the noise with which the expert acts on its way to held-out states, of
            actions in a box. With that of the learners these are states that a perfect learner visits, the same for
            all. The expert's return is measured without noise.
        fast: as for `make_gatherer`.
    """

    def __init__(
        self,
        environment: Environment,
        expert: Expert,
        *,
        episodes: int = 10,
        seed: int = MEASURED_SEED,
        held_out: int = 2000,
        held_out_noise: float = 0.0,
        fast: bool | Literal["auto"] = "auto",
    ) -> None:
        self.environment = environment
        if not 0 <= held_out_noise < math.inf:
            raise BadArgument(
                f"held_out_noise={held_out_noise!r} must be at least 0 and finite; it is a standard deviation"
            )
        self.held_out_noise = held_out_noise
        if held_out_noise and not isinstance(environment.actions, Box):
            raise BadArgument(
                f"held_out_noise={held_out_noise!r} is added to actions of a box; those of {environment.name!r} are "
                "choices. Leave it at 0."
            )
        self.teacher = Teacher.of(expert, environment)
        self.episodes = positive_int("episodes", episodes)
        self.seed = seed
        self.held_out = held_out if held_out == 0 else positive_int("held_out", held_out)
        count = environment.most_copies(min(episodes, COPIES))
        self._copies = make_copies(environment, count, fast)
        self._taken: Taken | None = None

    @property
    def taken(self) -> Taken:
        """The expert's episodes; played now if they were not before."""
        if not self.held_out:
            raise BadArgument("held_out=0: the expert plays no episodes of its own in this run")
        if self._taken is None:
            self._taken = self._play()
        return self._taken

    def _play(self) -> Taken:
        with self.teacher.asked_for("measuring"):
            played = run_episodes(
                self.teacher, self._copies, episodes=self.episodes, seed=self.seed, record=True
            )
        self.teacher.forget()
        assert played.states is not None
        assert played.actions is not None
        states, labels = played.states, played.actions
        if self.held_out_noise:
            states, labels = self._states_with_noise()
        total = len(states)
        kept = np.arange(min(self.held_out, total)) * total // min(self.held_out, total)
        together = min(self._copies.count, self.episodes)  # so many play until the first one ends
        first = slice(0, together * min(OPENING, int(played.lengths.min())), together)
        return Taken(
            states[kept],
            labels[kept],
            played.returns,
            played.lengths,
            played.states[first],
            played.actions[first],
        )

    def _states_with_noise(self) -> tuple[Array, Array]:
        """States of as many episodes as it takes, driven by the expert with noise, and what it says there."""
        rng = np.random.default_rng([self.seed, 3])
        visited: list[tuple[Array, Array]] = []

        def drive(states: Array) -> Array:
            labels = self.teacher(states)
            visited.append((states.copy(), labels))
            return labels + self.held_out_noise * rng.standard_normal(labels.shape)

        seed = self.seed
        with self.teacher.asked_for("measuring"):
            while sum(len(states) for states, _ in visited) < self.held_out:
                seed += 1
                run_episodes(drive, self._copies, episodes=self.episodes, seed=seed)
        self.teacher.forget()
        states, labels = (np.concatenate(parts) for parts in zip(*visited, strict=True))
        return states, labels

    @property
    def states(self) -> Array:
        """Held-out states that the expert visits, ``(n, d)``."""
        return self.taken.states

    @property
    def labels(self) -> Array:
        """Its mean actions there, ``(n, k)``."""
        return self.taken.labels

    @property
    def expert(self) -> Evaluation:
        """The `Evaluation` of the expert."""
        return Evaluation(self.taken.returns, self.taken.lengths)

    @property
    def expert_return(self) -> float:
        """Mean return of the expert; nan if it plays no episodes."""
        return self.expert.mean if self.held_out else math.nan

    def loss(self, policy: Policy) -> float:
        """The policy loss on the held-out states; nan if there are none."""
        return mean_loss(policy, self.states, self.labels) if self.held_out else math.nan

    def evaluate(self, policy: Policy) -> Evaluation:
        """Returns of the policy's mean action."""
        return run_episodes(policy, self._copies, episodes=self.episodes, seed=self.seed)

    @property
    def settings(self) -> dict[str, Any]:
        """What makes this measurement this one, for comparison with a checkpoint's."""
        described = {"episodes": self.episodes, "seed": self.seed, "held_out": self.held_out}
        return described | ({"held_out_noise": self.held_out_noise} if self.held_out_noise else {})

    def state_dict(self) -> dict[str, Any]:
        """The expert's episodes, so that a run that goes on need not ask for them again."""
        return dict(vars(self.taken)) if self.held_out else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the expert's episodes from a saved run, if expert and environment are still the same.

        The environment repeats the first steps of the expert's first episode; the expert is asked about
        a few held-out states.
        """
        if not self.held_out:
            return
        taken = Taken(**{name: np.array(value) for name, value in state.items()})
        if not self._repeats(taken):
            raise BadArgument(
                f"the saved run is of other settings (env: {self.environment.name!r} does not repeat the expert's "
                "first episode bit for bit; it is another version of the environment, or another processor). Use "
                "the same environment, or begin anew in another file."
            )
        probes = np.arange(PROBES) * len(taken.states) // PROBES
        with self.teacher.asked_for("checking"):
            answers = self.teacher(taken.states[probes])
        self.teacher.forget()
        # a network rounds differently in a batch of another size
        if not np.allclose(answers, taken.labels[probes], rtol=1e-4, atol=1e-5):
            raise BadArgument(
                "the saved run is of other settings (expert: it does not answer as it did then in states it was asked "
                "about before). Use the same expert, or begin anew in another file."
            )
        self._taken = taken

    def _repeats(self, taken: Taken) -> bool:
        copies, alone = self._copies, np.array([0])
        failure = copies.reset(0, int(episode_seeds(self.seed, self.episodes)[0]))
        for t, state in enumerate(taken.opening_states):
            if failure is not None or not np.array_equal(copies.observations[0], state):
                return False
            if t + 1 < len(taken.opening_states):
                answer = self.environment.actions.acts(taken.opening_actions[t : t + 1])
                action = self.environment.clipped(answer)
                failure = next(iter(copies.step(alone, action).failures), None)
        return True


def mean_loss(policy: Policy, states: Array, labels: Array) -> float:
    """The policy loss on labelled states, summed up in float64."""
    z = torch.from_numpy(policy.numpy()(states))
    return float(policy.loss(labels).value(z).mean())
