"""What a policy is worth: returns of whole episodes, by its mean action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from targetopt.imitation.expert import Expert
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.policies.policy import made_for
from targetopt.imitation.simulation.actions import answered
from targetopt.imitation.simulation.copies import Copies, Failure
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed, EnvLike
from targetopt.imitation.simulation.gather import COPIES, make_copies
from targetopt.imitation.teacher import Teacher, labelled
from targetopt.types import BadAnswer, positive_int

UNLIMITED = 1000
"""Steps after which an evaluated episode is cut off where the environment has no limit itself."""


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of one policy.

    Attributes:
        returns: undiscounted, one per episode.
        lengths: steps of each.
        states: every state visited, if they were recorded.
        actions: the mean action in each, in the box, if they were recorded; of an expert that answers with
            distributions, these.
    """

    returns: Array
    lengths: NDArray[np.int64]
    states: Array | None = None
    actions: Array | None = None

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the return between episodes (of one episode: 0)."""
        return float(self.returns.std(ddof=1)) if len(self.returns) > 1 else 0.0

    @property
    def standard_error(self) -> float:
        """Of the mean return."""
        return self.std / float(np.sqrt(len(self.returns)))


def evaluate(
    policy: Policy | nn.Module | Expert,
    env: EnvLike | Environment,
    *,
    episodes: int = 10,
    seed: int = 0,
    fast: bool | Literal["auto"] = "auto",
    record: bool = False,
) -> Evaluation:
    """Roll out the mean action for whole episodes, each from a seed of its own.

    Args:
        policy: a policy (its mean acts), a torch module from states to actions, or any function
            ``states -> actions`` of arrays; clipped to the box.
        env: a Gymnasium id, an environment, or a function that makes one.
        episodes: how many; all of them are run to their end, so short ones are not preferred.
        seed: of the episodes. The same seed gives every policy the same initial states.
        fast: as for `make_gatherer`.
        record: keep the states that were visited, and the actions.

    Example:
        >>> evaluation = evaluate(
        ...     lambda states: np.zeros((len(states), 3)), "Hopper-v5", episodes=3
        ... )
        >>> evaluation.returns.shape, bool((evaluation.lengths < 1000).all())
        ((3,), True)
    """
    positive_int("episodes", episodes)
    environment = env if isinstance(env, Environment) else Environment(env)
    copies = make_copies(environment, environment.most_copies(min(episodes, COPIES)), fast)
    try:
        return run_episodes(policy, copies, episodes=episodes, seed=seed, record=record)
    finally:
        if not isinstance(env, Environment):
            environment.close()


def run_episodes(
    policy: Policy | nn.Module | Expert,
    copies: Copies,
    *,
    episodes: int,
    seed: int,
    record: bool = False,
) -> Evaluation:
    """`evaluate` on simulators at hand; whatever they were doing is over."""
    environment = copies.environment
    label = labelling(policy, environment)
    limit = UNLIMITED if environment.limit is None else environment.limit
    seeds = episode_seeds(seed, episodes)
    waiting = list(range(episodes))[::-1]
    playing = np.full(copies.count, -1)  # the episode of each copy
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    visited: list[tuple[Array, Array]] = []
    free = np.arange(copies.count)
    while True:
        for copy in free.tolist():
            playing[copy] = waiting.pop() if waiting else -1
            if playing[copy] >= 0:
                _check(environment, copies.reset(copy, int(seeds[playing[copy]])))
        ids = np.flatnonzero(playing >= 0)
        if not ids.size:
            kept = map(np.concatenate, zip(*visited, strict=True)) if record else ()
            return Evaluation(returns, lengths, *kept)
        states = copies.observations[ids]
        labels = label(states)
        if not answered(labels).all():
            raise BadAnswer(
                f"whoever plays whole episodes of {environment.name!r} must answer in every state, and gave no answer "
                f"in {int((~answered(labels)).sum())} of {len(labels)}. An expert that answers some questions only "
                "cannot be measured: train with held_out=0."
            )
        if record:
            visited.append((states, labels))
        outcome = copies.step(ids, environment.clipped(environment.actions.acts(labels)))
        _check(environment, *outcome.failures)
        returns[playing[ids]] += outcome.rewards
        lengths[playing[ids]] += 1
        free = ids[outcome.ended | (lengths[playing[ids]] >= limit)]


def labelling(
    policy: Policy | nn.Module | Expert, environment: Environment
) -> Callable[[NDArray[Any]], Array]:
    """What ``policy`` says of rows of states, as labels: a policy by its likeliest action, a bare module by its output.

    A function gets what the environment shows, in its own shape.
    """
    if isinstance(policy, Teacher):
        return policy
    if not isinstance(policy, nn.Module):
        return lambda states: labelled(policy, states, environment)
    made = policy if isinstance(policy, Policy) else made_for(environment, policy)
    act, space = made.mean_action(), environment.actions
    return lambda states: space.label(act(states), len(states), environment.name)


def episode_seeds(seed: int, episodes: int) -> NDArray[np.int64]:
    """What each episode of an evaluation is begun with."""
    return np.random.default_rng([seed, 2]).integers(2**31, size=episodes)


def _check(environment: Environment, *failures: Failure | None) -> None:
    for failure in filter(None, failures):
        raise EnvironmentFailed(
            f"environment {environment.name!r} failed in an evaluation: {failure.reason}. Nothing that "
            "was learned is lost."
        ) from failure.cause
