"""Topology optimisation on the pixels themselves: the field's own method, for reference values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from targetopt.lab.problems.physics.structures import Array, Structure
from targetopt.types import BadArgument

MOVE = 0.2
"""No density changes by more than this in one iteration."""


def optimality_criteria(structure: Structure, volume: float) -> Iterator[tuple[Array, float]]:
    """The iterates of the optimality criteria method from a uniform density, with their compliances.

    x_e ← x_e √(−∂c/∂x_e / μ), kept within ±`MOVE` and [0, 1], with μ found by bisection so that the mean
    density stays ``volume``. Each iterate costs one solve.

    Example:
        >>> from itertools import islice
        >>> beam = Structure(30, 10)
        >>> values = [value for _, value in islice(optimality_criteria(beam, 0.5), 20)]
        >>> values[-1] < 0.4 * values[0]
        True

    Reference: Bendsøe, Sigmund, *Topology Optimization*, 2004, §1.2; Andreassen et al. 2011.
    """
    if not 0 < volume < 1:
        raise BadArgument(f"volume={volume!r} must lie between 0 and 1: it is the mean density")
    x = np.full(structure.size, volume)
    while True:
        solution = structure.solve(x)
        yield x, solution.compliance
        pull = np.sqrt(np.maximum(-solution.gradient, 0.0))
        low, high = 0.0, 1e9
        while high - low > 1e-10 * (low + high):
            middle = 0.5 * (low + high)
            moved = np.clip(x * pull / np.sqrt(middle), x - MOVE, x + MOVE)
            fresh = np.clip(moved, 0.0, 1.0)
            low, high = (middle, high) if fresh.mean() > volume else (low, middle)
        x = fresh
