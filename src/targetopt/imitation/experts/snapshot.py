"""The exact state of environments and of the global random generators, to go on from bit by bit."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

from targetopt.imitation.needs import package
from targetopt.imitation.simulation.environment import Env, wrappers

_MADE_ANEW = frozenset(
    {"env", "model", "mujoco_renderer", "spec", "_cached_spec", "action_space", "observation_space"}
)
"""What the constructor makes and no step changes, or what cannot be kept: never part of a state."""


def _layers(env: Env) -> list[Env]:
    """The wrappers, outermost first, then the environment itself."""
    return [*wrappers(env), env.unwrapped]


def take_environment(env: Env) -> list[bytes] | None:
    """The state in the middle of an episode; None where the environment cannot be pickled.

    Environments of MuJoCo are kept whole (``MjData``), generator and elapsed steps included.
    """
    try:
        return [
            pickle.dumps({k: v for k, v in vars(layer).items() if k not in _MADE_ANEW})
            for layer in _layers(env)
        ]
    except (TypeError, AttributeError, pickle.PicklingError):
        return None


def put_environment(env: Env, state: list[bytes]) -> None:
    """Bring an environment made the same way to a state that was taken."""
    for layer, pickled in zip(_layers(env), state, strict=True):
        for name, value in pickle.loads(pickled).items():
            if type(value).__name__ == "MjData":
                # what draws and steps this environment holds on to the data it was made with
                package("mujoco", "Resuming").mj_copyData(getattr(layer, name), layer.model, value)
            else:
                setattr(layer, name, value)


def take_generators() -> dict[str, Any]:
    """The states of the global generators, which Stable-Baselines3 draws from."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 the global one is what must be kept
        "torch": torch.get_rng_state(),
    }


def put_generators(state: dict[str, Any]) -> None:
    """Undo what was drawn since :func:`take_generators`."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])
