"""A small game that is seen as a picture: catch falling balls. The task of the picture expert that is shipped."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

SIDE = 8
BALLS = 10


class Catch(gymnasium.Env[NDArray[np.uint8], int]):  # type: ignore[misc]
    """Ten balls fall, one after the other; a paddle of three columns is moved left, not at all, or right.

    A ball begins in a random column of the top row and moves down one row a step. The picture, ``(8, 8, 1)`` of
    bytes, has the ball and, in the bottom row, the paddle at 255. The reward is 1 for a ball that is caught and −1 for
    one that is not, so the return lies between −10 and 10. Random play has about −5.

    Example:
        >>> Catch().reset(seed=0)[0].shape
        (8, 8, 1)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 as Gymnasium has it
    observation_space = gymnasium.spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.paddle = SIDE // 2
        self.left = 0

    def _throw(self) -> None:
        self.row, self.column = 0, int(self.np_random.integers(SIDE))

    def _picture(self) -> NDArray[np.uint8]:
        picture = np.zeros((SIDE, SIDE, 1), np.uint8)
        picture[self.row, self.column] = 255
        picture[-1, self.paddle - 1 : self.paddle + 2] = 255
        return picture

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed)
        self.paddle, self.left = SIDE // 2, BALLS
        self._throw()
        return self._picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 1, SIDE - 2))
        self.row += 1
        reward = 0.0
        if self.row == SIDE - 1:
            reward = 1.0 if abs(self.column - self.paddle) <= 1 else -1.0
            self.left -= 1
            self._throw()
        return self._picture(), reward, self.left == 0, False, {}

    def render(self) -> NDArray[np.uint8]:
        """The picture in eight times its size, in grey."""
        return np.repeat(np.repeat(np.repeat(self._picture(), 8, 0), 8, 1), 3, 2)
