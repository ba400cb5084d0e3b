"""Copies whose episodes can be played again: their state is a seed and the actions since."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.simulation.copies import Copies, Failure, Ids, Outcome, unusable
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed

NO_EPISODE = -1
"""In place of a seed: the copy has not begun an episode, or lost it."""


class Episodes(Copies):
    """Remembers the seed of every copy's episode and the actions since.

    An environment's inside cannot be saved in general, nor carried to another process; an episode can be played
    again there. Whoever steps the copies says how in `_begin`, `_advance` and `_play`.
    """

    def __init__(self, environment: Environment, count: int) -> None:
        super().__init__(environment, count)
        self._seeds = [NO_EPISODE] * count
        self._actions: list[list[NDArray[Any]]] = [[] for _ in range(count)]

    @abstractmethod
    def _begin(self, copy: int, seed: int) -> Failure | None:
        """Reset one copy, and keep what it shows."""

    def _begun(self, copy: int, seed: int, reset: Callable[[], None]) -> Failure | None:
        """Call what resets a copy and keeps what it shows; the failure if it raised, or showed what is not finite."""
        try:
            reset()
        except Exception as error:
            return Failure(copy, f"reset(seed={seed}) raised {error!r}", error)
        if not np.isfinite(self.observations[copy]).all():
            return unusable(copy, self.observations[copy])
        return None

    @abstractmethod
    def _advance(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        """Step some copies, and keep what they show."""

    @abstractmethod
    def _play(self, episodes: dict[int, tuple[int, NDArray[Any]]]) -> None:
        """Bring copies to where these seeds and actions lead, and keep what they show there."""

    def reset(self, copy: int, seed: int) -> Failure | None:
        failure = self._begin(copy, seed)
        if failure is not None:
            return self._lost(failure)
        self._seeds[copy], self._actions[copy] = seed, []
        return None

    def step(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        outcome = self._advance(ids, actions)
        for copy, action in zip(ids.tolist(), actions, strict=True):
            self._actions[copy].append(action)
        for failure in outcome.failures:
            self._lost(failure)
        return outcome

    def _lost(self, failure: Failure) -> Failure:
        self._seeds[failure.copy], self._actions[failure.copy] = NO_EPISODE, []
        self.observations[failure.copy] = 0.0
        return failure

    def _underway(self, copies: list[int]) -> dict[int, tuple[int, NDArray[Any]]]:
        """The episodes of these copies, as far as they have come; those that have none are left out."""
        return {
            copy: (self._seeds[copy], self._as_array(self._actions[copy]))
            for copy in copies
            if self._seeds[copy] != NO_EPISODE
        }

    def _as_array(self, actions: list[NDArray[Any]]) -> NDArray[Any]:
        shape, kind = self.environment.action_shape, self.environment.action_dtype
        return np.array(actions, dtype=kind).reshape(-1, *shape)

    def _check_repeated(self, copies: list[int], expected: NDArray[Any]) -> None:
        """Refuse episodes that, played again, lead elsewhere."""
        for copy, observation in zip(copies, expected, strict=True):
            if not np.array_equal(self.observations[copy], observation):
                raise EnvironmentFailed(
                    f"environment {self.environment.name!r} did not repeat the episode of copy {copy}: after "
                    f"reset(seed={self._seeds[copy]}) and the same {len(self._actions[copy])} actions it shows "
                    "something else. It draws random numbers that its seed does not govern, or its version "
                    "changed; a run in it cannot be resumed exactly. Start again, or make it obey its seed."
                )

    def state_dict(self) -> dict[str, Any]:
        return {
            "seeds": np.array(self._seeds),
            "lengths": np.array([len(episode) for episode in self._actions]),
            "actions": self._as_array([a for episode in self._actions for a in episode]),
            "observations": self.observations.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        episodes = np.split(state["actions"], np.cumsum(state["lengths"])[:-1])
        self._seeds = [int(seed) for seed in state["seeds"]]
        self._actions = [list(episode) for episode in episodes]
        self.observations[:] = 0.0
        playing = self._underway(list(range(self.count)))
        self._play(playing)
        self._check_repeated(list(playing), state["observations"][list(playing)])
