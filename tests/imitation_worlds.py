"""Small environments of every kind of observation and action, with experts that solve them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from targetopt.distributions import CategoricalRows, MultiDiscrete, MultiDiscreteRows
from targetopt.imitation.policies.network import Array

SIDE = 8


class Walk(gymnasium.Env[Any, Any]):
    """A point on a square of 8 × 8 that is to reach the middle; each axis is moved by −1, 0 or 1.

    ``shows``: "numbers", the point; "dict", the point and what is left to the middle; "picture", a uint8 picture
    ``(8, 8, 1)``; ``moves``: "several" (MultiDiscrete), or "one" (Discrete, counted from 5: along the axis that is
    further off).
    """

    def __init__(self, shows: str = "numbers", moves: str = "several") -> None:
        self.shows, self.moves = shows, moves
        numbers = spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space = {
            "numbers": numbers,
            "dict": spaces.Dict({"point": numbers, "far": spaces.Box(-9.0, 9.0, (1, 2))}),
            "picture": spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8),
        }[shows]
        several = spaces.MultiDiscrete([3, 3])
        self.action_space = several if moves == "several" else spaces.Discrete(4, start=5)

    def _seen(self) -> Any:
        if self.shows == "picture":
            picture = np.zeros((SIDE, SIDE, 1), np.uint8)
            picture[tuple(self.point)] = 255
            return picture
        point = self.point.astype(np.float32)
        if self.shows == "dict":
            return {"point": point, "far": (4.0 - point)[None].astype(np.float32)}
        return point

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.point = self.np_random.integers(SIDE, size=2)
        self.age = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.moves == "several":
            move = np.asarray(action) - 1
        else:
            move = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[int(action) - 5]
        self.point = np.clip(self.point + move, 0, SIDE - 1)
        self.age += 1
        there = bool((self.point == 4).all())
        return self._seen(), float(there) - 0.1, there, self.age >= 30, {}


def points(shown: Any) -> Array:
    """Where the points are, whatever was shown."""
    if isinstance(shown, dict):
        assert shown["far"].shape[1:] == (1, 2)
        return np.asarray(shown["point"], dtype=np.float64)
    if shown.ndim == 4:
        flat = shown.reshape(len(shown), -1).argmax(axis=1)
        return np.stack([flat // SIDE, flat % SIDE], axis=1).astype(np.float64)
    return np.asarray(shown, dtype=np.float64)


def several(shown: Any) -> Array:
    """Both axes towards the middle."""
    return np.sign(4 - points(shown)) + 1


def one(shown: Any) -> Array:
    """Along the axis that is further off."""
    away = 4 - points(shown)
    first = np.abs(away[:, 0]) >= np.abs(away[:, 1])
    return np.where(first, np.where(away[:, 0] > 0, 0, 1), np.where(away[:, 1] > 0, 2, 3))


def odds(shown: Any) -> CategoricalRows:
    """Mostly `one`, sometimes another."""
    import torch

    logits = np.full((len(points(shown)), 4), 0.0)
    logits[np.arange(len(logits)), one(shown)] = 4.0
    return CategoricalRows(torch.from_numpy(logits))


def several_odds(shown: Any) -> MultiDiscreteRows:
    import torch

    moves = several(shown).astype(int)
    logits = np.zeros((len(moves), 6))
    rows = np.arange(len(moves))
    logits[rows, moves[:, 0]] = logits[rows, 3 + moves[:, 1]] = 4.0
    return MultiDiscrete((3, 3)).from_targets(torch.from_numpy(logits))
