"""Gathering: what a policy does in copies of an environment, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.distributions import Family
from targetopt.imitation.checkpoint import unpacked
from targetopt.imitation.simulation.copies import Copies, Failure, Outcome
from targetopt.imitation.simulation.environment import EnvironmentFailed
from targetopt.types import BadArgument, Diverged, TargetoptError

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Batch:
    """Some steps of every copy; the first axis is time, the second the copies.

    Attributes:
        observations: before each step.
        actions: as the policy chose them (before they were clipped to the box).
        rewards: as the environment gave them.
        terminated: whether the episode came to an end of its own in this step.
        ended: whether it came to an end or was cut off in this step.
        last: the observation after each step, before any reset: the next row, but for episodes that ended.
        finished: (steps done by then, return, length) of every episode that ended in this batch.
    """

    observations: Array
    actions: NDArray[Any]
    rewards: Array
    terminated: Flags
    ended: Flags
    last: Array
    finished: list[tuple[int, float, int]]

    @property
    def interactions(self) -> int:
        return int(self.rewards.size)


class Collector:
    """Copies of an environment that live on from batch to batch, and the random numbers they use.

    Everything is a function of ``seed``: each copy draws the seeds of its episodes from a stream of its own, and the
    actions are drawn from one more.

    Args:
        copies: the simulators.
        family: from which distributions actions are drawn.
        seed: of everything random here.
    """

    def __init__(self, copies: Copies, family: Family, *, seed: int = 0) -> None:
        self.copies, self.family = copies, family
        self.environment = copies.environment
        self._noise = torch.Generator().manual_seed(seed)
        self._episodes = [np.random.default_rng([seed, 2, i]) for i in range(copies.count)]
        self._everyone = np.arange(copies.count)
        self._fresh = np.ones(copies.count, dtype=bool)  # must begin an episode
        self._any_fresh = True
        self._returns: Array = np.zeros(copies.count)
        self._lengths = np.zeros(copies.count, dtype=np.int64)
        self.interactions = 0

    def gather(self, steps: int, targets: Callable[[Array], Array]) -> Batch:
        """So many steps of every copy, with actions from the distributions that ``targets`` gives.

        Args:
            steps: of each copy.
            targets: observations ↦ rows of the family's targets.
        """
        (found,) = gather_beside([self], steps, lambda seen: targets(seen[0])[None])
        if isinstance(found, TargetoptError):
            raise found
        return found

    def _begin_episodes(self) -> None:
        for copy in np.flatnonzero(self._fresh).tolist():
            seed = int(self._episodes[copy].integers(2**31))
            if failure := self.copies.reset(copy, seed):
                raise self._explained(failure)
            self._fresh[copy] = False
            self._returns[copy], self._lengths[copy] = 0.0, 0
        self._any_fresh = False

    def look(self) -> Array:
        """What the copies show, all of them in an episode."""
        if self._any_fresh:
            self._begin_episodes()
        return self.copies.observations

    def act(self, z: Array) -> tuple[NDArray[Any], Outcome, list[tuple[int, float, int]]]:
        """Draw actions from the policies at these targets and step all copies: the actions, what they did, and
        the episodes that ended.
        """
        actions = self._drawn(z)
        outcome = self.copies.step(self._everyone, self.environment.clipped(actions))
        self._check(outcome.failures, outcome.rewards, actions)
        self._returns += outcome.rewards
        self._lengths += 1
        self.interactions += self.copies.count
        over, finished = outcome.ended, []
        if over.any():
            for copy in np.flatnonzero(over):
                told = (self.interactions, float(self._returns[copy]), int(self._lengths[copy]))
                finished.append(told)
            self._fresh |= over
            self._any_fresh = True
        return actions, outcome, finished

    def _drawn(self, z: Array) -> NDArray[Any]:
        if not np.isfinite(z).all():
            raise Diverged(
                "the policy has diverged: its targets are not finite in states that it visits. Hold its steps "
                "(step=to.rl.HeldKL(0.01)), or lower the inner solver's step size."
            )
        policies = self.family.from_targets(torch.from_numpy(z))
        return policies.sample(self._noise).numpy()

    def _check(self, failures: list[Failure], rewards: Array, actions: NDArray[Any]) -> None:
        if not failures and np.isfinite(rewards).all():
            return
        if not failures:
            copy = int(np.flatnonzero(~np.isfinite(rewards))[0])
            reason = f"its reward for the action {actions[copy].tolist()} is {rewards[copy]}"
            failures = [Failure(copy, reason)]
        for failure in failures:
            self._fresh[failure.copy] = self._any_fresh = True
        raise self._explained(*failures)

    def _explained(self, first: Failure, *others: Failure) -> EnvironmentFailed:
        more = f" (and {len(others)} more)" if others else ""
        error = EnvironmentFailed(
            f"environment {self.environment.name!r}, copy {first.copy}{more}, after {self.interactions} steps: "
            f"{first.reason}. The policy of the last update is in error.result. Mend the environment; with checkpoint= "
            "the run goes on from its last checkpoint."
        )
        error.__cause__ = first.cause
        return error

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs: arrays and numbers."""
        return {
            "copies": self.copies.state_dict(),
            "noise": self._noise.get_state(),
            "episodes": [rng.bit_generator.state for rng in self._episodes],
            "fresh": self._fresh.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "interactions": self.interactions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise; in the same environment with as many copies."""
        noise = state["noise"]
        state = unpacked({name: part for name, part in state.items() if name != "noise"})
        if len(state["episodes"]) != self.copies.count:
            raise BadArgument(
                f"this state is of {len(state['episodes'])} copies, there are {self.copies.count} here; use the same "
                "copies="
            )
        self.copies.load_state_dict(state["copies"])
        self._noise.set_state(noise)
        for rng, saved in zip(self._episodes, state["episodes"], strict=True):
            rng.bit_generator.state = saved
        self._fresh, self._any_fresh = np.array(state["fresh"]), True
        self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
        self.interactions = int(state["interactions"])

    def close(self) -> None:
        """Close the environment and its copies."""
        self.copies.close()
        self.environment.close()


class _Record:
    """The batch of one collector while it is gathered."""

    def __init__(self, collector: Collector, steps: int) -> None:
        self.collector = collector
        count, size = collector.copies.count, collector.environment.observation_size
        self.observations, self.last = (np.empty((steps, count, size)) for _ in range(2))
        self.rewards = np.empty((steps, count))
        self.terminated, self.ended = (np.empty((steps, count), dtype=bool) for _ in range(2))
        self.actions: list[NDArray[Any]] = []
        self.finished: list[tuple[int, float, int]] = []
        self.error: TargetoptError | None = None

    def look(self, t: int) -> Array:
        if self.error is None:
            try:
                self.observations[t] = self.collector.look()
            except TargetoptError as error:
                self.error = error
        seen: Array = self.observations[t]
        return seen

    def act(self, t: int, z: Array) -> None:
        if self.error is not None:
            return
        try:
            actions, outcome, finished = self.collector.act(z)
        except TargetoptError as error:
            self.error = error
            return
        self.actions.append(actions)
        self.rewards[t], self.terminated[t], self.ended[t] = (
            outcome.rewards,
            outcome.terminated,
            outcome.ended,
        )
        self.last[t] = self.collector.copies.observations
        self.finished += finished

    @property
    def batch(self) -> Batch:
        return Batch(
            self.observations,
            np.stack(self.actions),
            self.rewards,
            self.terminated,
            self.ended,
            self.last,
            self.finished,
        )


def gather_beside(
    collectors: Sequence[Collector], steps: int, targets: Callable[[Array], Array]
) -> list[Batch | TargetoptError]:
    """So many steps of every copy of every collector, in turns; a batch for each, or why there is none.

    Args:
        collectors: with equally many copies of environments that show equally many numbers.
        steps: of each copy.
        targets: observations, shape ``(collectors, copies, d)``, ↦ rows of the family's targets.
    """
    records = [_Record(collector, steps) for collector in collectors]
    for t in range(steps):
        z = targets(np.stack([record.look(t) for record in records]))
        for record, rows in zip(records, z, strict=True):
            record.act(t, rows)
        if all(record.error for record in records):
            break
    return [record.error or record.batch for record in records]
