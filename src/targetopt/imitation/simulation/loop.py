"""The plain path: any Gymnasium environment, stepped one copy after another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.simulation.copies import Failure, Ids, Outcome, unusable
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed
from targetopt.imitation.simulation.episodes import Episodes


class LoopCopies(Episodes):
    """Gymnasium environments in a Python loop."""

    def __init__(self, environment: Environment, count: int) -> None:
        super().__init__(environment, count)
        self.envs = environment.copies(count)
        self.shared = not environment.multiplies

    def _begin(self, copy: int, seed: int) -> Failure | None:
        env = self.envs[copy]
        return self._begun(copy, seed, lambda: self._show(copy, env.reset(seed=seed)[0]))

    def _advance(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        outcome = Outcome.blank(len(ids))
        for row, (copy, action) in enumerate(zip(ids.tolist(), actions, strict=True)):
            try:
                observation, reward, terminated, truncated, _ = self.envs[copy].step(action)
                self._show(copy, observation)
                outcome.rewards[row] = reward
                outcome.terminated[row], outcome.truncated[row] = terminated, truncated
            except Exception as error:
                failure = Failure(copy, f"step({action}) raised {error!r}", error)
                outcome.failures.append(failure)
                continue
            if not np.isfinite(self.observations[copy]).all():
                outcome.failures.append(unusable(copy, self.observations[copy]))
        return outcome

    def frame(self, copy: int) -> NDArray[np.uint8] | None:
        env = self.envs[copy]
        return np.array(env.render(), dtype=np.uint8) if env.render_mode == "rgb_array" else None

    def _play(self, episodes: dict[int, tuple[int, NDArray[Any]]]) -> None:
        for copy, (seed, actions) in episodes.items():
            failure = self._begin(copy, seed)
            for action in actions:
                failure = failure or next(
                    iter(self._advance(np.array([copy]), action[None]).failures), None
                )
            if failure is not None and self.observations.dtype.kind != "f":
                raise EnvironmentFailed(
                    f"environment {self.environment.name!r} did not repeat the episode of copy {copy}: {failure.reason}"
                )
            if failure is not None:
                self.observations[copy] = np.nan  # which is no observation of an episode

    def _show(self, copy: int, observation: Any) -> None:
        """Keep what a copy shows, in the shape and kind that its observation space promised."""
        self.observations[copy] = self.environment.observations.row(observation)
