"""The plain path: any Gymnasium environment, stepped one copy after another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.simulation.copies import Copies, Failure, Ids, Outcome, unusable
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed
from targetopt.types import BadAnswer

NO_EPISODE = -1
"""In place of a seed: the copy has not begun an episode, or lost it."""


class LoopCopies(Copies):
    """Gymnasium environments in a Python loop.

    An environment's inside cannot be saved in general; an episode can be played again. So the state
    of a copy is the seed of its episode and the actions since, and loading replays them.
    """

    def __init__(self, environment: Environment, count: int) -> None:
        super().__init__(environment, count)
        self.envs = environment.copies(count)
        self.shared = not environment.multiplies
        self._seeds = [NO_EPISODE] * count
        self._actions: list[list[NDArray[Any]]] = [[] for _ in range(count)]

    def reset(self, copy: int, seed: int) -> Failure | None:
        try:
            observation, _ = self.envs[copy].reset(seed=seed)
            self._show(copy, observation)
        except Exception as error:
            return self._lost(Failure(copy, f"reset(seed={seed}) raised {error!r}", error))
        if not np.isfinite(self.observations[copy]).all():
            return self._lost(unusable(copy, self.observations[copy]))
        self._seeds[copy], self._actions[copy] = seed, []
        return None

    def step(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        outcome = Outcome(np.zeros(len(ids)), np.zeros(len(ids), dtype=bool))
        for row, (copy, action) in enumerate(zip(ids.tolist(), actions, strict=True)):
            try:
                observation, reward, terminated, truncated, _ = self.envs[copy].step(action)
                self._show(copy, observation)
                outcome.rewards[row] = reward
                outcome.ended[row] = terminated or truncated
            except Exception as error:
                failure = Failure(copy, f"step({action}) raised {error!r}", error)
                outcome.failures.append(self._lost(failure))
                continue
            self._actions[copy].append(action)
            if not np.isfinite(self.observations[copy]).all():
                outcome.failures.append(self._lost(unusable(copy, self.observations[copy])))
        return outcome

    def _show(self, copy: int, observation: Any) -> None:
        """Keep what a copy shows, in the shape and kind that its observation space promised."""
        shown = np.asarray(observation)
        expected = self.observations[copy].shape
        if shown.shape != expected or shown.dtype.kind not in "fiub":
            raise BadAnswer(
                f"it shows an observation of shape {shown.shape} and type {shown.dtype}; its observation space "
                f"says {expected}, real numbers"
            )
        self.observations[copy] = shown

    def _lost(self, failure: Failure) -> Failure:
        self._seeds[failure.copy], self._actions[failure.copy] = NO_EPISODE, []
        self.observations[failure.copy] = 0.0
        return failure

    def state_dict(self) -> dict[str, Any]:
        kind = self.environment.action_dtype
        actions = [action for episode in self._actions for action in episode]
        return {
            "seeds": np.array(self._seeds),
            "lengths": np.array([len(episode) for episode in self._actions]),
            "actions": np.array(actions, dtype=kind).reshape(-1, self.environment.action_size),
            "observations": self.observations.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        episodes = np.split(state["actions"], np.cumsum(state["lengths"])[:-1])
        for copy, (seed, episode) in enumerate(zip(state["seeds"], episodes, strict=True)):
            if seed == NO_EPISODE:
                self.observations[copy] = 0.0
                continue
            failures = [self.reset(copy, int(seed))]
            for action in episode:
                failures += self.step(np.array([copy]), action[None]).failures
            if any(failures) or not np.array_equal(
                self.observations[copy], state["observations"][copy]
            ):
                raise EnvironmentFailed(
                    f"environment {self.environment.name!r} did not repeat the episode of copy {copy}: after "
                    f"reset(seed={seed}) and the same {len(episode)} actions it shows something else. It draws "
                    "random numbers that its seed does not govern, or its version changed; a run in it "
                    "cannot be resumed exactly. Start again, or make it obey its seed."
                )
