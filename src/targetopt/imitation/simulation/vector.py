"""Vector environments of Gymnasium: many copies behind one ``reset`` and one ``step``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.simulation.copies import Failure, Flags, Ids, Outcome, unusable
from targetopt.imitation.simulation.environment import Environment, EnvironmentFailed
from targetopt.imitation.simulation.episodes import Episodes
from targetopt.types import BadArgument


class VectorCopies(Episodes):
    """The copies inside one ``gymnasium.vector.VectorEnv``, begun singly and stepped together.

    A vector environment steps all of its copies or none. Copies that are between two episodes are stepped along with
    the others, by an action that nobody sees, and are reset when their next episode begins. So the copies that are
    stepped must be all of those that are in an episode.

    Args:
        environment: opened on a vector environment, or on a function that makes one.
    """

    together = True

    def __init__(self, environment: Environment, count: int | None = None) -> None:
        (self.env,) = environment.copies(1)
        width = int(self.env.num_envs)
        if count not in (None, width):
            raise BadArgument(
                f"copies={count}: env={environment.name!r} is a vector environment of {width}. Leave copies= out, or "
                f"make it with num_envs={count}."
            )
        super().__init__(environment, width)
        self.shared = not environment.multiplies
        self._over: Flags = np.ones(width, dtype=bool)  # must be reset before the next step

    def _reset(self, mask: Flags, seeds: list[int | None]) -> Any:
        # the first reset is of all, as there is nothing to keep
        everyone = bool(self._over.all())
        options = None if everyone else {"reset_mask": mask.copy()}
        shown, _ = self.env.reset(seed=seeds, options=options)
        self._over[:] = False if everyone else self._over & ~mask
        return shown

    def _begin(self, copy: int, seed: int) -> Failure | None:
        mask = np.arange(self.count) == copy
        seeds = [seed if here else None for here in mask.tolist()]
        return self._begun(copy, seed, lambda: self._show(copy, self._reset(mask, seeds)))

    def _advance(self, ids: Ids, actions: NDArray[Any]) -> Outcome:
        stepped = np.isin(np.arange(self.count), ids)
        outcome = Outcome.blank(len(ids))
        try:
            if (idle := self._over & ~stepped).any():
                self._reset(idle, [None] * self.count)
            given = np.zeros((self.count, *actions.shape[1:]), actions.dtype)
            given[:] = actions[0]  # an action of the set, whoever takes it
            given[ids] = actions
            shown, rewards, terminated, truncated, _ = self.env.step(given)
            self._over = np.asarray(terminated) | np.asarray(truncated)
            outcome.rewards[:] = np.asarray(rewards)[ids]
            outcome.terminated[:] = np.asarray(terminated)[ids]
            outcome.truncated[:] = np.asarray(truncated)[ids]
            for copy in ids.tolist():
                self._show(copy, shown)
        except Exception as error:
            self._over[:] = True
            reason = f"the step of all copies raised {error!r}"
            outcome.failures.extend(Failure(copy, reason, error) for copy in ids.tolist())
            return outcome
        bad = ids[~np.isfinite(self.observations[ids]).all(axis=1)]
        outcome.failures.extend(unusable(copy, self.observations[copy]) for copy in bad.tolist())
        return outcome

    def _play(self, episodes: dict[int, tuple[int, NDArray[Any]]]) -> None:
        """All episodes at once, so that they end together: the longest begins first."""
        self._over[:] = True
        longest = max((len(actions) for _, actions in episodes.values()), default=0)
        for left in range(longest, -1, -1):
            for copy, (seed, actions) in episodes.items():
                if len(actions) == left:
                    self._repeated(self._begin(copy, seed))
            ids = np.array([c for c, (_, actions) in episodes.items() if len(actions) >= left])
            if left and ids.size:
                taken = [episodes[copy][1][-left] for copy in ids.tolist()]
                self._repeated(*self._advance(ids, np.array(taken)).failures)

    def _repeated(self, *failures: Failure | None) -> None:
        for failure in filter(None, failures):
            raise EnvironmentFailed(
                f"environment {self.environment.name!r} did not repeat the episode of copy {failure.copy}: "
                f"{failure.reason}"
            )

    def _show(self, copy: int, shown: Any) -> None:
        """Keep what a copy shows, out of what all of them show."""
        one = {k: v[copy] for k, v in shown.items()} if isinstance(shown, dict) else shown[copy]
        self.observations[copy] = self.environment.observations.row(one)
