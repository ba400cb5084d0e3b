"""Scikit-learn's handwritten digits, as problems with teachers and attacks use them: offline, seeded, split once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

CLASSES = 10
PIXELS = 64


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


@lru_cache(maxsize=4)
def digits(n: int, held_out: int, seed: int) -> Digits:
    """``n`` images to train on and ``held_out`` to measure on, by a permutation that the seed decides."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(classes))
    x, y = torch.from_numpy(images[order] / 16.0), torch.from_numpy(classes[order])
    end = n + held_out
    return Digits(x[:n], y[:n], x[n:end], y[n:end], x[end:], y[end:])


def network(width: int) -> nn.Module:
    """From pixels to the logits of the ten classes."""
    return nn.Sequential(
        nn.Linear(PIXELS, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, CLASSES),
    )
