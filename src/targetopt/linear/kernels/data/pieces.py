"""Which batches are gathered at once, and who else gets them.

A lone run gathers a few at a time, which then lie in the second cache when it comes to them. Runs on
one design that are under way together gather a whole draw and keep it with the design: the first of them
to come to it pays for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from targetopt.linear.design import Design
from targetopt.linear.kernels.arguments import Index, Stretch
from targetopt.linear.kernels.data.batch import matrix_of
from targetopt.linear.kernels.data.gathered import Gathered, everything, gather

# Numbers of X gathered at once: by a lone run, and at most by several; and of Gram matrices kept by those.
ALONE, TOGETHER, GRAMS = 100_000, 8_000_000, 16_000_000


@dataclass(frozen=True)
class Piece:
    """The batches from ``first`` to before ``last`` of the draw ``order``."""

    order: Index
    first: int
    last: int
    gathered: Gathered


@contextmanager
def batches_of(X: Design, stretch: Stretch, at: int, exact: bool) -> Iterator[Piece]:
    """The piece with batch ``at`` of the draw, for one user at a time: others gather their own."""
    # An exact solve has its batches numbered in its own way.
    kept = X.kept.pop(exact, None)
    if kept is None or kept.order is not stretch.order or not kept.first <= at < kept.last:
        kept = _gathered(X, stretch, at, exact, kept)
    try:
        yield kept
    finally:
        X.kept[exact] = kept


def _gathered(X: Design, stretch: Stretch, at: int, exact: bool, before: Piece | None) -> Piece:
    order, ends = stretch.order, stretch.ends
    if ends[0] == X.shape[0]:
        return Piece(order, 0, ends.size, everything(matrix_of(X)))
    together = len(X.runs) > 1
    per_batch = max(1, X.nnz * int(ends[0]) // X.shape[0])
    count = max(1, (TOGETHER if together else ALONE) // per_batch)
    first = at // count * count if together else at
    last = min(first + count, ends.size)
    begin = ends[first - 1] if first > 0 else 0
    room = np.empty(0) if before is None else before.gathered.gram
    most = GRAMS if together else 0
    rows, their_ends = order[begin : ends[last - 1]], ends[first:last] - begin
    return Piece(order, first, last, gather(matrix_of(X), rows, their_ends, exact, room, most))
