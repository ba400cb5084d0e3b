"""Who takes part in a step: this process alone, or the ranks of a process group.

The mean inner product of `targetopt.types` is over all rows, wherever they are. Every place that takes a mean over
rows, or decides something from what this process alone can see, asks the `World` that is present. Alone, the answer
is what was computed here, bit for bit and at no cost; `targetopt.distributed` has the world of several ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor


class World:
    """This process alone.

    Every method is a meeting of all ranks: all must call it, in the same order. That holds by itself, since
    all ranks run the same step and every decision is taken from what such a meeting said.

    Example:
        >>> World().mean(torch.tensor([1.0, 3.0]))
        tensor(2.)
    """

    rank: int = 0
    size: int = 1

    def mean(self, entries: Tensor) -> Tensor:
        """The sum of all entries over the number of all rows, a 0-d tensor."""
        return self.average(entries.sum(), entries.shape[0])

    def average(self, sums: Tensor, count: int) -> Tensor:
        """Sums over this rank's ``count`` rows, added up over the ranks and divided by the number of all rows."""
        return sums / count

    def sums(self, numbers: Tensor) -> Tensor:
        """The entries of a small tensor, added up over the ranks."""
        return numbers

    def lengths(self, norms: Tensor) -> Tensor:
        """Lengths of vectors whose parts lie on the ranks, from the lengths of this rank's parts."""
        return norms

    def rows(self, count: int) -> int:
        """The number of rows on all ranks."""
        return count

    def before(self, count: int) -> int:
        """The number of rows on the ranks before this one, which has ``count``."""
        return 0

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers."""
        return number

    def all(self, truth: bool) -> bool:
        """Whether it is true on every rank."""
        return truth

    def joined(self, rows: Tensor) -> Tensor:
        """The rows of all ranks below each other, in the order of the ranks."""
        return rows

    def first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor; all have one of this shape and type."""
        return tensor

    def added(self, tensors: list[Tensor]) -> list[Tensor]:
        """Large tensors (gradients) added up over the ranks; those that were given may be used for the answer."""
        return tensors

    def meet(self) -> None:
        """Go on only if no rank has failed."""

    def agree(self, settings: str, params: Sequence[Tensor]) -> None:
        """Refuse ranks that differ in what must be equal: settings, and the values of the parameters."""


ALONE = World()
_present: ContextVar[World] = ContextVar("targetopt_world", default=ALONE)


def present() -> World:
    """The world of the step that is being done."""
    return _present.get()


@contextmanager
def inhabited(world: World) -> Iterator[World]:
    """Within this block, ``world`` is the one that `present` gives."""
    token = _present.set(world)
    try:
        yield world
    finally:
        _present.reset(token)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (a ``DTensor``, as FSDP2 makes them); any other tensor as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        part: Tensor = tensor.to_local()
    return part


def replicas(tensor: Any) -> float | None:
    """On how many ranks each entry of a sharded tensor is held; ``None`` for a tensor that is whole on every rank."""
    if not hasattr(tensor, "to_local"):
        return None
    mesh, copies = tensor.device_mesh, 1
    for dimension, placement in enumerate(tensor.placements):
        copies *= mesh.size(dimension) if placement.is_replicate() else 1
    return float(copies)
