"""Copies that live in processes of a Ray cluster: slow simulators, stepped at the same time. Needs ``[ray]``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.copies import Copies, Failure, Ids, Outcome
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed, EnvLike
from targetopt.imitation.simulation.episodes import Episodes
from targetopt.oracle.cluster import Cluster, told
from targetopt.types import BadArgument, checked_whole

MakeCopies = Callable[[Environment, int, bool | Literal["auto"]], Copies]


@dataclass(frozen=True)
class OverRay:
    """Where rounds are gathered: on the workers of a Ray cluster, each with some of the simulators.

    The learner and the noise stay here, and a step of all copies is one message to each worker, so that the
    numbers are those of local gathering, bit for bit. It pays where one step of the simulator takes longer than a
    message, which is about a millisecond; for Gymnasium's MuJoCo environments the local path is faster.

    A worker that dies is replaced: the episodes of its copies are played again from their seeds and actions,
    and checked against what they showed. No interaction is counted twice, and the expert is not asked again.

    The cluster is the one that ``ray.init`` connected to, else the one at ``RAY_ADDRESS``, else one on this
    machine, which is shut down at the end.

    Args:
        workers: processes; each has its share of the copies.
        cpus: processors that Ray sets aside for each.
        attempts: how often one step is tried on workers that die of it, before the episodes are given up.

    Example:
        ``to.imitation.train(make_my_robot, my_expert, gather=to.imitation.OverRay(workers=4))``
    """

    workers: int = 2
    cpus: float = 1.0
    attempts: int = 3

    def __post_init__(self) -> None:
        checked_whole("OverRay", "workers", self.workers, 1)
        checked_whole("OverRay", "attempts", self.attempts, 1)
        if not 0 < self.cpus < np.inf:
            raise BadArgument(f"OverRay: cpus={self.cpus!r} must be positive and finite")


class _Simulators:
    """Some of the copies, in a process of the cluster."""

    def __init__(
        self,
        kind: type[Environment],
        source: EnvLike,
        count: int,
        fast: bool | Literal["auto"],
        make: MakeCopies,
    ) -> None:
        self.copies = make(kind(source), count, fast)

    def reset(self, copy: int, seed: int) -> tuple[str | None, Array]:
        failure = self.copies.reset(copy, seed)
        return None if failure is None else failure.reason, self.copies.observations[copy]

    def step(self, ids: Ids, actions: NDArray[Any]) -> tuple[Any, ...]:
        outcome = self.copies.step(ids, actions)
        failures = [(failure.copy, failure.reason) for failure in outcome.failures]
        ends = outcome.terminated, outcome.truncated
        return outcome.rewards, *ends, failures, self.copies.observations[ids]

    def play(self, episodes: dict[int, tuple[int, NDArray[Any]]]) -> dict[int, Array]:
        """Bring copies to where these seeds and actions lead; what they show there."""
        shown: dict[int, Array] = {}
        for copy, (seed, actions) in episodes.items():
            failed: Any = self.copies.reset(copy, seed)
            for action in actions:
                failed = failed or self.copies.step(np.array([copy]), action[None]).failures
            whole = self.copies.observations[copy].copy()
            shown[copy] = np.full_like(whole, np.nan) if failed else whole
        return shown


class RayCopies(Episodes):
    """Copies that are stepped by the workers of a Ray cluster.

    Args:
        environment: made anew in every worker, from its id or from the function that makes it.
        count: copies, dealt out in blocks.
        over: how many workers there are.
        fast: as for `make_gatherer`.
        make: what makes the copies of one worker.

    Attributes:
        replaced: workers that died and were replaced.
    """

    def __init__(
        self,
        environment: Environment,
        count: int,
        over: OverRay,
        fast: bool | Literal["auto"],
        make: MakeCopies,
    ) -> None:
        super().__init__(environment, count)
        if not environment.multiplies:
            raise BadArgument(
                f"gather={over!r}: env={environment.name!r} was passed as one instance, of which workers cannot make "
                "their own. Pass its id, or a function that makes it: env=lambda: gymnasium.make(...)."
            )
        self.over = over
        self.replaced = 0
        self._cluster = Cluster("OverRay", over.workers, over.cpus)
        self._class = self._cluster.actors_of(_Simulators)
        blocks = np.array_split(np.arange(count), min(over.workers, count))
        self._blocks = [block.tolist() for block in blocks]
        self._block_of = np.concatenate([np.full(len(b), i) for i, b in enumerate(blocks)])
        self._first = np.array([block[0] for block in blocks])[self._block_of]
        self._settings = (type(environment), environment.source, fast, make)
        self._actors: list[Any] = [None] * len(blocks)
        for block in range(len(blocks)):
            self._start(block)

    # -- workers ------------------------------------------------------------------------------------

    def _start(self, block: int) -> Any:
        kind, source, fast, make = self._settings
        self._actors[block] = self._class.remote(kind, source, len(self._blocks[block]), fast, make)
        return self._actors[block]

    def _actor(self, block: int) -> Any:
        """The worker of a block; a new one continues the episodes of the one that is gone."""
        if self._actors[block] is not None:
            return self._actors[block]
        self.replaced += 1
        actor = self._start(block)
        self._replay(block, actor)
        return actor

    def _replay(self, block: int, actor: Any) -> None:
        first = self._blocks[block][0]
        playing = self._underway(self._blocks[block])
        before = {copy: self.observations[copy].copy() for copy in playing}
        shown = self._cluster.ray.get(
            actor.play.remote({copy - first: episode for copy, episode in playing.items()})
        )
        for copy, observation in shown.items():
            self.observations[copy + first] = observation
        self._check_repeated(list(before), np.array(list(before.values())))

    def _gone(self, block: int) -> None:
        actor, self._actors[block] = self._actors[block], None
        if actor is not None and self._cluster.running:
            self._cluster.end(actor)

    def _asked(self, questions: dict[int, Callable[[Any], Any]]) -> dict[int, Any]:
        """Ask workers at the same time, by block; a `Failure` reason for those that die each time."""
        answers: dict[int, Any] = {}
        reasons: dict[int, str] = {}
        error = self._cluster.ray.exceptions.RayError
        try:
            for _ in range(self.over.attempts):
                sent: dict[int, Any] = {}
                for block, ask in questions.items():
                    if block not in answers:
                        try:
                            sent[block] = ask(self._actor(block))
                        except error as died:
                            reasons[block] = told(died)
                            self._gone(block)
                for block, answer in sent.items():
                    try:
                        answers[block] = self._cluster.ray.get(answer)
                    except error as died:
                        reasons[block] = told(died)
                        self._gone(block)
                if len(answers) == len(questions):
                    return answers
        except BaseException:  # Ctrl-C: nobody knows how far they have come
            for block in questions:
                self._gone(block)
            raise
        return answers | {b: _Died(reasons[b]) for b in questions if b not in answers}

    # -- the episodes ---------------------------------------------------------------------------------

    def _begin(self, copy: int, seed: int) -> Failure | None:
        block, local = int(self._block_of[copy]), int(copy - self._first[copy])
        answer = self._asked({block: lambda actor: actor.reset.remote(local, seed)})[block]
        if isinstance(answer, _Died):
            return Failure(copy, answer.reason(self.over.attempts))
        reason, self.observations[copy] = answer
        return None if reason is None else Failure(copy, reason)

    def _advance(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        rows = {
            int(block): np.flatnonzero(self._block_of[ids] == block)
            for block in np.unique(self._block_of[ids])
        }

        def asking(mine: Ids) -> Callable[[Any], Any]:
            local = ids[mine] - self._first[ids[mine]]
            return lambda actor: actor.step.remote(local, actions[mine])

        answers = self._asked({block: asking(mine) for block, mine in rows.items()})
        outcome = Outcome.blank(len(ids))
        for block, mine in rows.items():
            answer = answers[block]
            if isinstance(answer, _Died):
                reason = answer.reason(self.over.attempts)
                outcome.failures.extend(Failure(int(copy), reason) for copy in ids[mine])
                continue
            rewards, terminated, truncated, failures, observations = answer
            outcome.rewards[mine] = rewards
            outcome.terminated[mine], outcome.truncated[mine] = terminated, truncated
            self.observations[ids[mine]] = observations
            first = self._blocks[block][0]
            outcome.failures.extend(Failure(copy + first, reason) for copy, reason in failures)
        return outcome

    def _play(self, episodes: dict[int, tuple[int, NDArray[Any]]]) -> None:
        def asking(block: int) -> Callable[[Any], Any]:
            copies = self._blocks[block]
            mine = {copy - copies[0]: episodes[copy] for copy in copies if copy in episodes}
            return lambda actor: actor.play.remote(mine)

        answers = self._asked({block: asking(block) for block in range(len(self._blocks))})
        for block, answer in answers.items():
            if isinstance(answer, _Died):
                raise EnvironmentFailed(
                    f"environment {self.environment.name!r}: {answer.reason(self.over.attempts)}"
                )
            for copy, observation in answer.items():
                self.observations[copy + self._blocks[block][0]] = observation

    def close(self) -> None:
        """End the workers, and the cluster if it was started here."""
        for block in range(len(self._blocks)):
            self._gone(block)
        self._cluster.shut_down()


@dataclass(frozen=True)
class _Died:
    """In place of an answer: the worker died, and those that took its place as well."""

    last: str

    def reason(self, attempts: int) -> str:
        return f"its worker died {attempts} times over the same step: {self.last}"
