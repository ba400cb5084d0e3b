"""Samples of rows that a Hessian is computed from: how many, and which.

There are two reasons to take fewer than all. Where all rows would cost many steps, the Hessian is that of a sample
throughout. Where they cost a few, a sample is enough as long as the minimum is far, for there the curvature changes
between two steps by more than a sample is wrong by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from targetopt.linear.newton.objective import Array, PenalisedLoss

LEAST = 1024  # rows of a sample, at least
THROUGHOUT = 8  # rows for each column: eigenvalues are then off by a third or so
FAR = 24  # the same while the minimum is far: off by a fifth
FEWER = 4  # so many times fewer than all must they be
STEPS_OF_SAMPLES = (
    8  # a quadratic takes about as many steps with samples; one is enough with all rows
)


def sample_size(
    objective: PenalisedLoss,
    price: Callable[[PenalisedLoss, float], float],
    columns: int,
    affordable: float,
) -> int:
    """All rows if they cost no more than is ``affordable``, else as many as make a good sample."""
    rows = int(objective.weights.size)
    return rows if price(objective, rows) <= affordable else max(LEAST, THROUGHOUT * columns)


def far_sample(objective: PenalisedLoss) -> int:
    """Rows that will do while the minimum is far."""
    return max(LEAST, FAR * int(objective.ridge.shape[0]))


def few(rows: int, sample: int) -> bool:
    """Whether so many rows are all taken where a sample of that size would do."""
    return rows <= 2 * sample


def sample(weights: Array, importance: Array, size: int) -> tuple[Any, Array]:
    """Rows in proportion to their importance, and weights for them with the same sums on average.

    Rows of large importance come several times. Few rows are all taken.
    """
    if few(weights.size, size) or not (total := float(importance.sum())) > 0:
        return slice(None), weights
    levels = (np.arange(size) + 0.5) * (total / size)
    chosen = np.minimum(np.searchsorted(np.cumsum(importance), levels), weights.size - 1)
    return chosen, weights[chosen] * (total / size) / importance[chosen]


def rows_of(X: Any, chosen: Any) -> Any:
    """The rows chosen; X itself if they are all."""
    return X if isinstance(chosen, slice) else X[chosen]
