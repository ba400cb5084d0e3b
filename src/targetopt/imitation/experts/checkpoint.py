"""A training on disk: what ``kill -9`` at any moment leaves is a checkpoint to go on from, bit by bit.

The state is a pickle, private to the directory it lies in: go on only from directories you trust.
What is passed on, the expert, is a safetensors file, which runs no code when it is read.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from targetopt.files import write_atomically
from targetopt.imitation.experts import replay, snapshot
from targetopt.imitation.experts.learner import Learner


class Checkpoint:
    """The state of a training in ``directory``, and its replay buffer in pieces beside it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "checkpoint.pkl"
        self.pieces = directory / "replay"
        self.kept = 0

    def read(self) -> dict[str, Any] | None:
        """What :meth:`write` wrote last; None if nothing was."""
        try:
            with self.path.open("rb") as file:
                state: dict[str, Any] = pickle.load(file)
        except FileNotFoundError:
            return None
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise replay.BrokenCheckpoint(
                f"{self.path} cannot be read ({error}). It was written by other versions of the "
                "packages, or is damaged. Choose another directory to train anew."
            ) from error
        return state

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
        write_atomically(self.path, lambda file: pickle.dump(state, file))
        self.kept = steps
        if learner.replay is not None:
            replay.forget(self.pieces, learner.replay, steps)

    def resume(self, learner: Learner, state: dict[str, Any]) -> None:
        """Bring a learner made anew to ``state``."""
        if learner.replay is not None:
            replay.fill(self.pieces, learner.replay, state["steps"])
        learner.put(state["learner"])
        if None in state["environments"]:  # cannot be kept: their episodes begin anew
            learner.model._last_obs = None
        else:
            for env, kept in zip(learner.environments(), state["environments"], strict=True):
                snapshot.put_environment(env, kept)
        snapshot.put_generators(state["generators"])
        self.kept = state["steps"]
