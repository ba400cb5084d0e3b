"""A question: rows for which an oracle's answer is wanted, with a digest that names it for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, starmap

from targetopt.oracle.columns import Columns, digest, pack, taken


@dataclass(frozen=True)
class Question:
    """What is asked of an oracle in one step.

    Attributes:
        oracle: the oracle's name and version.
        columns: ``targets`` and, if there are any, ``inputs``; what the oracle does not need is left out.
        draw: distinguishes questions with the same rows whose answers are drawn anew (noise); else "".
    """

    oracle: str
    columns: Columns
    draw: str = ""

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def packed(self) -> bytes:
        """The rows as bytes."""
        return pack(self.columns)

    @cached_property
    def digest(self) -> str:
        """A name: the same for the same rows asked of the same oracle, in whatever process."""
        return digest(self.oracle.encode(), self.draw.encode(), self.packed)

    def take(self, positions: Sequence[int]) -> Columns:
        """Some of the rows."""
        return taken(self.columns, positions)


def as_ranges(positions: Sequence[int]) -> list[list[int]]:
    """Ascending positions, each there once, as [start, stop) pairs.

    Example:
        >>> as_ranges([0, 1, 2, 5])
        [[0, 3], [5, 6]]
    """
    if positions and positions[-1] - positions[0] == len(positions) - 1:  # as most are
        return [[positions[0], positions[-1] + 1]]
    ranges: list[list[int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1][1] += 1
        else:
            ranges.append([position, position + 1])
    return ranges


def from_ranges(ranges: Sequence[Sequence[int]]) -> list[int]:
    """The positions that `as_ranges` shortened."""
    return list(chain.from_iterable(starmap(range, ranges)))
