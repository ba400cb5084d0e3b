"""Labelled states that are kept from round to round: in memory, or in a file where they are many."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.data import Replay
from targetopt.imitation.simulation.gather import Batch


class Kept:
    """What rounds learn from, for one run.

    States that are more than ``data.in_memory`` bytes with their labels lie in a temporary file, which is deleted with
    this object. An update then reads the rows that it draws, and nothing else.

    Args:
        data: what is kept.

    Example:
        >>> few = Batch(np.ones((2, 3)), np.ones((2, 1)), np.empty(0), np.empty(0, dtype=np.int64))
        >>> kept = Kept(Replay("all", batch=1, in_memory=100))
        >>> once = kept.joined(None, few)
        >>> kept.file is None, kept.joined(once, few).states.shape, kept.file is None
        (True, (4, 3), False)
    """

    def __init__(self, data: Replay) -> None:
        self.data = data
        self.file: Path | None = None
        self._columns: tuple[_Growing, _Growing] | None = None

    def joined(self, kept: Batch | None, new: Batch) -> Batch:
        """What is learned from in a round whose own states are ``new``; see `Replay.joined`."""
        if kept is None or not self._too_large(kept, new):
            return self.data.joined(kept, new)
        if self._columns is None:
            self._columns = self._opened(kept)
        at = len(kept.states)
        states, labels = self._columns
        if not states.holds(
            kept.states
        ):  # they were in memory, or are of a checkpoint that was loaded
            states.extended(0, kept.states)
            labels.extended(0, kept.labels)
        return Batch(
            states.extended(at, new.states),
            labels.extended(at, new.labels),
            new.finished_returns,
            new.finished_lengths,
        )

    def _too_large(self, kept: Batch, new: Batch) -> bool:
        """Only what is drawn from can stay in a file: an update on all states needs them all."""
        size = sum(each.nbytes for b in (kept, new) for each in (b.states, b.labels))
        return self.data.n == "all" and self.data.batch is not None and size > self.data.in_memory

    def _opened(self, kept: Batch) -> tuple[_Growing, _Growing]:
        folder = Path(tempfile.mkdtemp(prefix="targetopt-states-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.file = folder / "states"
        return _Growing(self.file, kept.states), _Growing(folder / "labels", kept.labels)


class _Growing:
    """Rows in a file that becomes longer; views of its beginning stay as they are."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._path, self._dtype, self._row = path, like.dtype, like.shape[1:]
        self._rows = 0
        self._array: NDArray[Any] = like[:0]

    def holds(self, rows: NDArray[Any]) -> bool:
        """Whether these are its own first rows."""
        return np.may_share_memory(self._array, rows)

    def extended(self, at: int, rows: NDArray[Any]) -> NDArray[Any]:
        """The first ``at`` rows and then these."""
        end = at + len(rows)
        if end > self._rows:
            self._rows = max(end, 2 * self._rows)
            each = self._dtype.itemsize * int(np.prod(self._row))
            with self._path.open("ab") as file:
                file.truncate(self._rows * each)
            self._array = np.memmap(self._path, self._dtype, "r+", shape=(self._rows, *self._row))
        self._array[at:end] = rows
        return np.asarray(self._array[:end])
