"""The fields that are to be recovered: two smooth inclusions in a uniform background."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from targetopt.lab.problems.physics.sparse import Array
from targetopt.types import BadArgument


def centres(cells: int) -> Array:
    """The centres of ``cells × cells`` squares of the unit square, column by column."""
    middle = (np.arange(cells) + 0.5) / cells
    return np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)


def inclusions(places: Array, contrast: float, seed: int) -> Array:
    """1 with two Gaussian bumps of its logarithm: up to ``contrast`` times more here, as much less there.

    The bumps lie on either side of the middle, in a direction and of widths that the seed decides. It is a
    function of the place, so that data can come from a finer mesh than the one that is inverted on.
    """
    rng = np.random.default_rng([seed, 0])
    angle = rng.uniform(0.0, 2.0 * np.pi)
    towards = np.array([np.cos(angle), np.sin(angle)])
    logarithm = np.zeros(len(places))
    for sign in (1.0, -1.0):
        centre = 0.5 + sign * rng.uniform(0.17, 0.23) * towards
        width = rng.uniform(0.09, 0.13)
        distance = ((places - centre) ** 2).sum(axis=1)
        logarithm += sign * np.exp(-distance / (2 * width**2))
    return np.asarray(np.exp(np.log(contrast) * logarithm))


class Hidden:
    """A field on ``cells × cells`` squares that is to be found from measurements with noise."""

    contrast: ClassVar[float]
    """Of the true field: an inclusion has so many times the background's value, another so many times less."""

    cells: int
    noise: float
    seed: int

    def check_noise(self) -> None:
        if not 0 < self.noise < np.inf:
            raise BadArgument(f"noise={self.noise!r} must be positive and finite")

    @property
    def size(self) -> int:
        return self.cells**2

    @cached_property
    def truth(self) -> Array:
        """The field that is to be found, on this mesh."""
        return inclusions(centres(self.cells), self.contrast, self.seed)
