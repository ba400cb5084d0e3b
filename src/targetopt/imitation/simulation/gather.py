"""Gathering: states that a behaviour visits, labelled by the expert, round after round."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.checkpoint import unpacked
from targetopt.imitation.expert import Expert
from targetopt.imitation.policies.base import Behaviour
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.actions import answered
from targetopt.imitation.simulation.copies import Copies, Failure, Ids
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed, EnvLike
from targetopt.imitation.simulation.loop import LoopCopies
from targetopt.imitation.simulation.over_ray import OverRay, RayCopies
from targetopt.imitation.simulation.simulator import SimulatorCopies, obstacle
from targetopt.imitation.simulation.vector import VectorCopies
from targetopt.imitation.teacher import Teacher
from targetopt.types import BadAnswer, BadArgument, positive_int

COPIES = 20
"""Copies of an environment that take turns, unless told otherwise."""


@dataclass(frozen=True)
class Batch:
    """One round's labelled states.

    Attributes:
        states: what was visited, ``(n, d)``, in the order of the visits; without those that the expert gave no
            answer for.
        labels: the expert's mean actions there, in the box, ``(n, k)``.
        finished_returns: undiscounted returns of the episodes that ended in this round.
        finished_lengths: their lengths.
    """

    states: Array
    labels: Array
    finished_returns: Array
    finished_lengths: NDArray[np.int64]


class Gatherer:
    """Copies of an environment that live on from round to round, and the random numbers they use.

    Copies take turns: a round of n states is n/copies steps of each. They are staggered by whoever drives the
    first round, or earlier or later by `stagger`: copy i makes i/copies of the longest episode ahead of the
    others, so that from then on the copies are at all stages of one and rounds do not cycle. These
    steps are counted apart, in ``burn_in_steps``; ``interactions`` are the states handed out.

    Everything is a function of ``seed``: each copy draws the seeds of its episodes from a stream of
    its own, and one more stream serves the behaviour's noise.

    If the environment raises, or shows an observation that is not finite, `gather` raises
    `EnvironmentFailed`. The states of the unfinished round are kept: the next `gather` begins a new
    episode in the copy that failed and goes on.

    Args:
        copies: the simulators.
        seed: of everything random here.
        burn_in: the longest burn-in, in steps; None means one episode (0 if nothing limits it).

    Attributes:
        gathering_time: processor seconds that the last round took, without the burn-in.
    """

    def __init__(self, copies: Copies, *, seed: int = 0, burn_in: int | None = None) -> None:
        longest = (copies.environment.limit or 0) if burn_in is None else burn_in
        if longest < 0:
            raise BadArgument(f"burn_in={burn_in!r} must be at least 0 steps")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise BadArgument(f"seed={seed!r} must be a whole number, at least 0")
        self.copies = copies
        self.seed = seed = int(seed)
        self.environment = copies.environment
        self._noise = np.random.default_rng([seed, 0])
        self._episodes = [np.random.default_rng([seed, 1, i]) for i in range(copies.count)]
        self._burn_in = np.arange(copies.count) * longest // copies.count
        self._fresh = np.ones(copies.count, dtype=bool)  # must begin an episode
        self._turn = 0
        self._returns = np.zeros(copies.count)
        self._lengths = np.zeros(copies.count, dtype=np.int64)
        self._visited: list[Array] = []  # of the unfinished round, as is:
        self._finished: list[tuple[float, int]] = []
        self.burn_in_steps = 0
        self.interactions = 0
        self.gathering_time = math.nan

    def gather(self, n: int, behaviour: Behaviour, expert: Expert, *, whole: bool = False) -> Batch:
        """The next n states that ``behaviour`` visits, with the expert's labels.

        Args:
            n: how many states.
            behaviour: ``(states, rng) -> actions``.
            expert: ``states -> mean actions``. A `Teacher` is not asked again about states in which it
                acted.
            whole: show whole episodes: so few copies take turns that n states are a longest episode of each, and they
                need not be staggered for it. A vector environment, whose copies are stepped together, takes them all.
        """
        positive_int("n", n)
        if self.copies.together and n % self.copies.count:
            raise BadArgument(
                f"a round of {n} states cannot be gathered by the {self.copies.count} copies of the vector environment "
                f"{self.environment.name!r}, which are stepped all together. Take a multiple of {self.copies.count}, "
                f"states_per_round={-(-n // self.copies.count) * self.copies.count} for instance."
            )
        teacher = Teacher.of(expert, self.environment)
        if not whole:
            with teacher.asked_for("driving"):
                self.stagger(behaviour)
        playing = self._for_whole_episodes(n) if whole else self.copies.count
        begin = time.process_time()
        while (missing := n - sum(map(len, self._visited))) > 0:
            ids = (self._turn + np.arange(min(playing, missing))) % playing
            actions = self._actions(ids, behaviour)  # if this raises, nothing has happened yet
            self._turn = (self._turn + len(ids)) % playing
            if teacher.wants_frames:
                frames = [self.copies.frame(copy) for copy in ids.tolist()]
                teacher.see(self.copies.observations[ids], frames)
            self._visited.append(self.copies.observations[ids])
            self.interactions += len(ids)
            self._step(ids, actions)
        visited = np.concatenate(self._visited)
        states = visited[:n]
        labels = teacher(states)
        known = answered(labels)
        finished = np.array(self._finished, dtype=np.float64).reshape(-1, 2)
        self._visited = [visited[n:]] if len(visited) > n else []  # of a longer round that failed
        self._finished = []
        if not self._visited:
            teacher.forget()
        if not known.any():
            raise BadAnswer(
                f"the expert answered none of the {n} questions of this round (None for each), so there is nothing to "
                "learn from. The next round goes on from here."
            )
        if not known.all():
            states, labels = states[known], labels[known]
        self.gathering_time = time.process_time() - begin
        return Batch(states, labels, finished[:, 0], finished[:, 1].astype(np.int64))

    def stagger(self, behaviour: Behaviour) -> None:
        """The burn-in, where it is not done yet (`gather` sees to it otherwise)."""
        while (waiting := self._to_stagger()).size:
            if self.copies.together:  # those that wait are stepped along, unseen
                self._fresh[np.isin(np.arange(self.copies.count), waiting, invert=True)] = True
            actions = self._actions(waiting, behaviour)
            self._burn_in[waiting] -= 1
            self.burn_in_steps += len(waiting)
            self._step(waiting, actions)
            self._finished.clear()

    def _for_whole_episodes(self, n: int) -> int:
        """The copies of which n states show a longest episode each; all where nothing limits episodes."""
        everyone, limit = self.copies.count, self.environment.limit
        if self.copies.together or limit is None:
            return everyone
        return min(max(n // limit, 1), everyone)

    def _to_stagger(self) -> Ids:
        """The copies whose burn-in goes on: all that are left, or those that must begin now to end with the others."""
        if not self.copies.together:
            return np.flatnonzero(self._burn_in)
        return np.flatnonzero((self._burn_in == self._burn_in.max()) & (self._burn_in > 0))

    def _actions(self, ids: Ids, behaviour: Behaviour) -> Array:
        """What the behaviour does in these copies, which are in an episode then."""
        for copy in ids[self._fresh[ids]].tolist():
            seed = int(self._episodes[copy].integers(2**31))
            if failure := self.copies.reset(copy, seed):
                raise self._explained(failure)
            self._fresh[copy] = False
            self._returns[copy], self._lengths[copy] = 0.0, 0
        given = behaviour(self.copies.observations[ids], self._noise)  # a copy of them
        actions = np.asarray(given, dtype=np.float64)
        expected = (len(ids), self.environment.action_size)
        if actions.shape != expected:
            raise BadAnswer(
                f"the behaviour gave actions of shape {actions.shape} for {len(ids)} states of "
                f"{self.environment.name!r}; it must give {expected}"
            )
        if not np.isfinite(actions).all():
            raise BadAnswer(
                f"the behaviour gave actions that are not finite in {self.environment.name!r}: the learner "
                "has diverged, or the expert cannot take these states"
            )
        return actions

    def _step(self, ids: Ids, actions: Array) -> None:
        """One step of some copies; those whose episode is over begin a new one when next asked."""
        outcome = self.copies.step(ids, self.environment.clipped(actions))
        self._returns[ids] += outcome.rewards
        self._lengths[ids] += 1
        failed = [failure.copy for failure in outcome.failures]
        for copy in ids[outcome.ended].tolist():
            if copy not in failed:
                self._finished.append((float(self._returns[copy]), int(self._lengths[copy])))
        self._fresh[ids[outcome.ended]] = True
        self._fresh[failed] = True
        if outcome.failures:
            raise self._explained(*outcome.failures)

    def _explained(self, first: Failure, *others: Failure) -> EnvironmentFailed:
        more = f" (and {len(others)} more)" if others else ""
        kept = sum(map(len, self._visited))
        error = EnvironmentFailed(
            f"environment {self.environment.name!r}, copy {first.copy}{more}: {first.reason}. The {kept} "
            "states of this round are kept: gather again to go on with a new episode in that copy."
        )
        error.__cause__ = first.cause
        return error

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs, an unfinished round included: arrays and numbers."""
        return {
            "copies": self.copies.state_dict(),
            "noise": self._noise.bit_generator.state,
            "episodes": [rng.bit_generator.state for rng in self._episodes],
            "burn_in": self._burn_in.copy(),
            "fresh": self._fresh.copy(),
            "turn": self._turn,
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "visited": np.concatenate([self.copies.observations[:0], *self._visited]),
            "finished": list(self._finished),
            "burn_in_steps": self.burn_in_steps,
            "interactions": self.interactions,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, bitwise; in the same environment with as many copies."""
        state = unpacked(state)
        if len(state["episodes"]) != self.copies.count:
            raise BadArgument(
                f"this state is of {len(state['episodes'])} copies, the gatherer has {self.copies.count}; "
                "make it with the same copies="
            )
        self.copies.load_state_dict(state["copies"])
        self._noise.bit_generator.state = state["noise"]
        for rng, saved in zip(self._episodes, state["episodes"], strict=True):
            rng.bit_generator.state = saved
        self._burn_in, self._fresh = np.array(state["burn_in"]), np.array(state["fresh"])
        self._returns, self._lengths = np.array(state["returns"]), np.array(state["lengths"])
        self._turn = state["turn"]
        self._visited = [np.array(state["visited"])] if len(state["visited"]) else []
        self._finished = [(float(r), int(length)) for r, length in state["finished"]]
        self.burn_in_steps, self.interactions = state["burn_in_steps"], state["interactions"]

    def close(self) -> None:
        """Close the environment and its copies."""
        self.copies.close()
        self.environment.close()


def make_gatherer(
    env: EnvLike | Environment,
    *,
    copies: int | None = None,
    seed: int = 0,
    fast: bool | Literal["auto"] = "auto",
    burn_in: int | None = None,
    threads: int = 1,
    over: OverRay | None = None,
) -> Gatherer:
    """A gatherer for an environment, on the fast path where there is one.

    Args:
        env: a Gymnasium id, an environment, or a function that makes one.
        copies: how many take turns; 20 by default (1 for an instance on the plain path, those of a vector environment).
        seed: of everything random in it.
        fast: ``"auto"`` uses MuJoCo's batched stepping for the environments it knows; True insists on
            it; False is the plain Gymnasium loop.
        burn_in: longest burn-in of a copy, in steps; None means one episode.
        threads: native threads of the fast path; the bits do not depend on them.
        over: the Ray cluster on which the simulators live; here by default. The bits do not depend on it.

    Example:
        >>> gatherer = make_gatherer("Hopper-v5", copies=4, burn_in=0)
        >>> batch = gatherer.gather(
        ...     100, lambda s, rng: rng.uniform(-1, 1, (len(s), 3)), expert=lambda s: s[:, :3]
        ... )
        >>> batch.states.shape, batch.labels.shape
        ((100, 11), (100, 3))
    """
    environment = env if isinstance(env, Environment) else Environment(env)
    made = make_copies(environment, copies, fast, positive_int("threads", threads), over)
    return Gatherer(made, seed=seed, burn_in=burn_in)


def make_copies(
    environment: Environment,
    count: int | None,
    fast: bool | Literal["auto"] = "auto",
    threads: int = 1,
    over: OverRay | None = None,
) -> Copies:
    """Simulators, batched where that is possible and wanted; see `make_gatherer`."""
    if fast not in (True, False, "auto"):
        raise BadArgument(f"fast={fast!r} must be True, False or 'auto'")
    if over is not None:
        if environment.is_vector:
            raise BadArgument(
                f"env={environment.name!r} is a vector environment, which cannot be divided among the workers of "
                "gather=OverRay(...). Pass a function that makes one copy, or leave gather= out."
            )
        count = positive_int("copies", COPIES if count is None else count)
        return RayCopies(environment, count, over, fast, make_copies)
    reason = obstacle(environment) if fast else "it was not asked for"
    if fast is True and reason is not None:
        raise BadArgument(
            f"fast=True: env={environment.name!r} has no fast path, {reason}. Pass fast='auto'."
        )
    if environment.is_vector:
        return VectorCopies(environment, count)
    if reason is None:
        count = positive_int("copies", COPIES if count is None else count)
        return SimulatorCopies(environment, count, threads)
    count = (COPIES if environment.multiplies else 1) if count is None else count
    return LoopCopies(environment, positive_int("copies", count))
