"""The fields that are to be recovered: two smooth inclusions in a uniform background."""

from __future__ import annotations

import numpy as np

from targetopt.lab.problems.physics.sparse import Array


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
