"""A replay buffer on disk, piece by piece: each checkpoint writes only what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from targetopt.arrays import DamagedFile, read_arrays
from targetopt.files import write_atomically
from targetopt.types import TargetoptError

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class BrokenCheckpoint(TargetoptError, OSError):
    """A checkpoint lacks a part, or a part cannot be read."""


def _span(path: Path) -> tuple[int, int]:
    first, _, end = path.stem.partition("-")
    return int(first), int(end)


def keep(directory: Path, replay: Any, first: int, end: int) -> None:
    """Write the transitions ``first ≤ i < end`` of the training."""
    rows = np.arange(max(first, end - replay.buffer_size), end) % replay.buffer_size
    if len(rows):
        piece = {name: getattr(replay, name)[rows] for name in _ARRAYS}
        path = directory / f"{first:09d}-{end:09d}.npz"
        write_atomically(path, lambda file: np.savez(file, **piece))


def forget(directory: Path, replay: Any, end: int) -> None:
    """Remove pieces that a training which is past ``end``, and can go on from there, has lost."""
    for path in directory.glob("*.npz"):
        if _span(path)[1] <= end - replay.buffer_size:
            path.unlink()


def fill(directory: Path, replay: Any, end: int) -> None:
    """Put back the transitions up to ``end``."""
    size = replay.buffer_size
    have, chain = end, []
    for path in sorted(directory.glob("*.npz"), reverse=True):
        first, last = _span(path)
        if last == have:  # others are of a training that was killed before its checkpoint was whole
            have = first
            chain.append(path)
    if have > max(0, end - size):
        raise BrokenCheckpoint(
            f"{directory} lacks the transitions before step {have}: a file *-{have:09d}.npz is "
            "missing. Put it back, or choose another directory to train anew."
        )
    for path in reversed(chain):  # newer transitions take the places of the oldest
        last = _span(path)[1]
        try:
            piece = read_arrays(path, _ARRAYS)
            rows = np.arange(last - len(piece["rewards"]), last) % size
            for name in _ARRAYS:
                getattr(replay, name)[rows] = piece[name]
        except (DamagedFile, ValueError, TypeError, IndexError) as error:
            raise BrokenCheckpoint(
                f"{path} cannot be read ({error}). Put back a whole copy of it, or choose another "
                "directory to train anew."
            ) from error
    replay.pos, replay.full = end % size, end >= size
