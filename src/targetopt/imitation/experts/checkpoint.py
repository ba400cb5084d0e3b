"""A training on disk: what ``kill -9`` at any moment leaves is a checkpoint to go on from, bit by bit.

The state is a tree of numbers, strings and arrays; reading it runs no code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from targetopt.arrays import DamagedFile
from targetopt.imitation.experts import plain, replay, snapshot
from targetopt.imitation.experts.learner import Learner

_PARTS = {"about", "log", "steps", "learner", "environments", "generators"}


class Checkpoint:
    """The state of a training in ``directory``, and its replay buffer in pieces beside it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "checkpoint.npz"
        self.pieces = directory / "replay"
        self.kept = 0

    def read(self) -> dict[str, Any] | None:
        """What :meth:`write` wrote last; None if nothing was."""
        try:
            state = plain.read(self.path)
            if not isinstance(state, dict) or _PARTS - state.keys():
                raise DamagedFile(f"it lacks {sorted(_PARTS - set(state))}")
        except FileNotFoundError:
            return None
        except (DamagedFile, TypeError) as error:
            raise self._broken(error) from error
        return state

    def _broken(self, error: Exception) -> replay.BrokenCheckpoint:
        return replay.BrokenCheckpoint(
            f"{self.path} cannot be read ({error}). It was written by other versions of the packages, or is "
            "damaged. Choose another directory to train anew."
        )

    def write(self, learner: Learner, about: dict[str, Any]) -> None:
        """Keep the learner, its environments and the generators; ``about`` is kept with them."""
        steps = learner.model.num_timesteps
        if learner.replay is not None:
            self.pieces.mkdir(parents=True, exist_ok=True)
            replay.keep(self.pieces, learner.replay, self.kept, steps)
        state = {
            **about,
            "steps": steps,
            "learner": learner.take(),
            "environments": [snapshot.take_environment(env) for env in learner.environments()],
            "generators": snapshot.take_generators(),
        }
        plain.write(self.path, state)
        self.kept = steps
        if learner.replay is not None:
            replay.forget(self.pieces, learner.replay, steps)

    def resume(self, learner: Learner, state: dict[str, Any]) -> None:
        """Bring a learner made anew to ``state``."""
        if learner.replay is not None:
            replay.fill(self.pieces, learner.replay, state["steps"])
        try:
            learner.put(state["learner"])
            if None in state["environments"]:  # cannot be kept: their episodes begin anew
                learner.model._last_obs = None
            else:
                for env, kept in zip(learner.environments(), state["environments"], strict=True):
                    snapshot.put_environment(env, kept)
            snapshot.put_generators(state["generators"])
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise self._broken(error) from error
        self.kept = state["steps"]
