"""Which rows each step of a run sees: a function of four values alone.

Two ways to sample. In ``"epochs"`` every epoch is a fresh permutation of the examples, cut into
batches. In ``"independent"`` each step draws its batch afresh, whatever came before: what theorems on
stochastic methods assume. One example at a time, that is i.i.d. sampling with replacement.
"""

from __future__ import annotations

from functools import lru_cache
from numbers import Integral
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadArgument, checked_whole

Index = NDArray[np.int64]
Sampling = Literal["epochs", "independent"]

# Independent batches are drawn so many rows at a time: a few kB, and one call of the generator.
ROWS_PER_DRAW = 1024


def sample_order(n: int, seed: int, epoch: int) -> Index:
    """The order of the examples in one epoch (from 0): a function of these numbers alone.

    ``np.random.default_rng([seed, epoch]).permutation(n)``. Batches are consecutive pieces of it; the
    last of an epoch may be shorter. A batch of all examples takes them as they stand.

    Example:
        >>> sample_order(4, seed=0, epoch=1)
        array([3, 0, 2, 1])
    """
    return np.random.default_rng([seed, epoch]).permutation(n)


class Batches:
    """The rows of every step: with ``batch_size``, ``seed`` and ``sampling`` of `linear.fit`.

    ``batches.rows(t)`` are those of the step after t steps. An epoch is ``steps_per_epoch`` steps,
    ⌈n / batch_size⌉, in either way of sampling.

    Args:
        n: examples there are.
        batch_size: examples in a batch; ``None`` for all, as they stand.
        seed: of the draws, a whole number ≥ 0.
        sampling: ``"epochs"``: each epoch e cuts the permutation `sample_order` (n, seed, e) into
            batches, the last of which may be shorter. ``"independent"``: each batch is a uniformly drawn
            set of ``batch_size`` different examples, independent of all others.
        echo: how many steps in a row see the same batch (data echoing); an epoch has as many times the steps.

    Example:
        >>> shuffled = Batches(4, 3, seed=0)
        >>> shuffled.rows(0), shuffled.rows(1)
        (array([2, 0, 1]), array([3]))
        >>> independent = Batches(4, 1, seed=0, sampling="independent")
        >>> [int(independent.rows(t)[0]) for t in range(6)]
        [3, 2, 2, 1, 1, 0]
        >>> echoed = Batches(4, 3, seed=0, echo=2)
        >>> [echoed.rows(t).tolist() for t in range(4)]
        [[2, 0, 1], [2, 0, 1], [3], [3]]
    """

    def __init__(
        self,
        n: int,
        batch_size: int | None = None,
        seed: int = 0,
        sampling: Sampling = "epochs",
        echo: int = 1,
    ) -> None:
        if batch_size is not None:
            whole = isinstance(batch_size, Integral) and not isinstance(batch_size, bool)
            if not whole or not 1 <= batch_size <= n:
                raise BadArgument(
                    f"batch_size={batch_size!r} must be a whole number in 1 … {n}, the rows of X; None "
                    "takes all"
                )
        if sampling not in get_args(Sampling):
            raise BadArgument(
                f"sampling={sampling!r} must be 'epochs' (a fresh permutation each epoch) or "
                "'independent' (each batch drawn from all examples)"
            )
        self.n = n
        self.batch_size = n if batch_size is None else int(batch_size)
        self.seed = checked_whole("fit", "seed", seed, least=0)
        self.sampling = sampling
        self.echo = checked_whole("fit", "echo", echo, least=1)
        batches = -(-n // self.batch_size)
        self.steps_per_epoch = batches * self.echo
        shuffled = sampling == "epochs" and self.batch_size < n
        self._batches_per_draw = batches if shuffled else max(1, ROWS_PER_DRAW // self.batch_size)

    def rows(self, step: int) -> Index:
        """The rows of the step after ``step`` steps."""
        return self.stretch(step, 1)[0].copy()

    def stretch(self, step: int, most: int) -> tuple[Index, Index]:
        """The rows of the next steps, at most so many, and where each step's end among them.

        They may be fewer than asked for, never none: ask again for the rest.
        """
        order, ends, position = self.draw(step)
        begin = ends[position - 1] if position > 0 else 0
        ends = ends[position : position + most]
        return order[begin : ends[-1]], ends - begin

    def draw(self, step: int) -> tuple[Index, Index, int]:
        """The rows that are drawn at once with those of the next step, where each step's end, and its place.

        In ``"epochs"`` that is the epoch. Equal draws are the same arrays, and nobody writes to them.

        Example:
            >>> Batches(4, 3, seed=0).draw(1)
            (array([2, 0, 1, 3]), array([3, 4]), 1)
        """
        number, position = divmod(step, self._batches_per_draw * self.echo)
        if self.batch_size == self.n:
            number = 0  # all draws are the same
        drawn = (self.n, self.batch_size, self.seed, self.sampling, self._batches_per_draw, number)
        order, ends = _drawn(*drawn, self.echo)
        return order, ends, position


@lru_cache(maxsize=2)
def _drawn(
    n: int, batch_size: int, seed: int, sampling: Sampling, batches: int, number: int, echo: int
) -> tuple[Index, Index]:
    order = _order(n, batch_size, seed, sampling, batches, number)
    ends = np.minimum(batch_size * np.arange(1, batches + 1), order.size)
    if echo == 1:
        return order, ends
    each = np.split(order, ends[:-1])
    return np.concatenate([np.tile(rows, echo) for rows in each]), np.cumsum(
        np.repeat([rows.size for rows in each], echo)
    )


def _order(
    n: int, batch_size: int, seed: int, sampling: Sampling, steps: int, number: int
) -> Index:
    if batch_size == n:
        return np.tile(np.arange(n), steps)
    if sampling == "epochs":
        return sample_order(n, seed, number)
    # Floyd's sampling: the k-th of b draws comes from the first n − b + k rows; a row that is in
    # the batch already gives way to the last of them. Every set is as likely as any other.
    first = n - batch_size
    bounds = np.arange(first + 1, n + 1)
    drawn = np.random.default_rng([seed, number]).integers(bounds, size=(steps, batch_size))
    if batch_size > 1:
        for batch in drawn:
            taken: set[int] = set()
            for k, row in enumerate(batch.tolist()):
                if row in taken:
                    row = batch[k] = first + k
                taken.add(row)
    return drawn.ravel()
