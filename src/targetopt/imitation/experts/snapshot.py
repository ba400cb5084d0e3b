"""The exact state of environments and of the global random generators, to go on from bit by bit."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch

from targetopt.imitation.experts.plain import is_plain
from targetopt.imitation.needs import package
from targetopt.imitation.simulation.environment import Env, wrappers

_MADE_ANEW = frozenset(
    {"env", "model", "mujoco_renderer", "spec", "_cached_spec", "action_space", "observation_space"}
)
"""What the constructor makes and no step changes, or what cannot be kept: never part of a state."""


def _layers(env: Env) -> list[Env]:
    """The wrappers, outermost first, then the environment itself."""
    return [*wrappers(env), env.unwrapped]


def take_environment(env: Env) -> list[dict[str, Any]] | None:
    """The state in the middle of an episode; None where a part of the environment is not plain.

    Plain are numbers, strings, arrays, generators and containers of them. Of MuJoCo's data all numbers that the
    model gives a fixed size are kept, generator and elapsed steps beside them.
    """
    layers = []
    for layer in _layers(env):
        kept = {name: value for name, value in vars(layer).items() if name not in _MADE_ANEW}
        state = {name: _numbers(v) if _is_mujoco(v) else v for name, v in kept.items()}
        if not all(map(is_plain, state.values())):
            return None
        layers.append(copy.deepcopy(state))
    return layers


def put_environment(env: Env, state: list[dict[str, Any]]) -> None:
    """Bring an environment made the same way to a state that was taken."""
    for layer, kept in zip(_layers(env), state, strict=True):
        for name, value in kept.items():
            if name in _MADE_ANEW or callable(getattr(type(layer), name, None)):
                raise ValueError(f"{name} is no state of {type(layer).__name__}")
            if _is_mujoco(getattr(layer, name, None)):
                # what draws and steps this environment holds on to the data it was made with
                _put_numbers(getattr(layer, name), value)
            else:
                setattr(layer, name, copy.deepcopy(value))


def _is_mujoco(value: Any) -> bool:
    return type(value).__name__ == "MjData"


def _numbers(data: Any) -> dict[str, Any]:
    """Every array of floating-point numbers whose size does not depend on what touches what, and the time.

    The next step begins by computing all else from these. Numbers that MuJoCo uses as places in its memory
    are not among them, so that no file can lead it astray.
    """
    fresh = package("mujoco", "Keeping an environment").MjData(data.model)
    names = [name for name in dir(fresh) if not name.startswith("_")]
    arrays = {name: getattr(data, name) for name in names if _is_real(getattr(fresh, name))}
    arrays = {name: x for name, x in arrays.items() if x.shape == getattr(fresh, name).shape}
    return {"time": float(data.time), **{name: x.copy() for name, x in arrays.items()}}


def _put_numbers(data: Any, numbers: dict[str, Any]) -> None:
    present = _numbers(data)
    if numbers.keys() != present.keys():
        raise ValueError("the state is of another version of MuJoCo")
    for name, value in present.items():
        if np.shape(numbers[name]) != np.shape(value):
            raise ValueError(f"{name} has the shape {np.shape(numbers[name])}, not {value.shape}")
    data.time = numbers.pop("time")
    for name, value in numbers.items():
        getattr(data, name)[...] = value


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64 and value.size > 0


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
