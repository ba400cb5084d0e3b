"""Arrays that are used again, for loops that would otherwise ask for fresh memory in every pass.

The first touch of fresh memory is a page fault for each 4 kB of it. For vectors of 10 000 numbers that took eight
times as long as adding them up, measured on a virtual machine; a third of the time of a fit was spent so.
"""

from __future__ import annotations

from math import prod
from sys import getrefcount

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

UNUSED = (
    3  # references to an array that nobody else holds: the list's, the loop's and the question's
)

SMALL = 4096
"""Numbers of an array up to which fresh memory costs less than looking for a spare one: it is never given back."""


class Spare:
    """Arrays by their shape. `take` gives one that nobody holds any more, so nothing in use is written to.

    Views of an array, and torch tensors made of it, hold it too. Small arrays are always fresh. One thread at a time.

    Example:
        >>> spare = Spare()
        >>> first = spare.take((10_000,))
        >>> spare.take((10_000,)) is first
        False
        >>> second = id(first)
        >>> del first
        >>> id(spare.take((10_000,))) == second
        True
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, ...], list[Array]] = {}

    def take(self, shape: tuple[int, ...]) -> Array:
        """An array of this shape with anything in it."""
        if prod(shape) <= SMALL:
            return np.empty(shape)
        held = self._arrays.setdefault(shape, [])
        for array in held:
            if getrefcount(array) == UNUSED:
                return array
        held.append(np.empty(shape))
        return held[-1]

    def like(self, z: Tensor) -> Tensor | None:
        """The same as a tensor; None if ``z`` is small, or not float64 in main memory."""
        if z.numel() <= SMALL or z.dtype is not torch.float64 or z.device.type != "cpu":
            return None
        return torch.from_numpy(self.take(tuple(z.shape)))
