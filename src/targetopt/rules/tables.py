"""Per-example memory of the rules that remember: rows of a table, found by data index or position."""

from __future__ import annotations

import math
import os
import tempfile

import torch
from torch import Tensor

from targetopt.types import BadAnswer, BadArgument, TargetPoint, all_finite


def memory_kind(point: TargetPoint) -> str:
    """``"per example"`` with ``index=``, else ``"per position"``: what the report says."""
    return "per position" if point.index is None else "per example"


def check_memory(owner: str, table: Tensor | None, z: Tensor, index: Tensor | None) -> None:
    """Refuse a batch that does not fit the memory, or a memory that would not fit the machine."""
    rows = z.shape[0] if index is None else int(index.max()) + 1
    if table is not None and table.shape[1:] != z.shape[1:]:
        raise BadArgument(
            f"the rule's memory holds rows of shape {tuple(table.shape[1:])}, the targets have "
            f"{tuple(z.shape[1:])}. One rule serves one forward; use a second optimiser."
        )
    if table is not None and index is None and table.shape[0] != rows:
        raise BadArgument(
            f"without index= the rule remembers each position of the batch, and the batch had "
            f"{table.shape[0]} examples before and has {rows} now. Pass index= (the data rows of "
            "this batch) to step, or drop the last short batch."
        )
    size = rows * math.prod(z.shape[1:]) * z.element_size()
    if index is not None and size > _memory_of_the_machine():
        raise BadArgument(
            f"index= names data row {rows - 1}, and {owner} keeps a row for each up to it: {size / 1e9:.3g} GB. "
            "Number the examples 0, 1, 2, … by their place in the data set; names or hashes will not do."
        )


def _memory_of_the_machine() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):  # not said on every system
        return 2.0**40


def check_sums(owner: str, sums: Tensor) -> None:
    """Refuse sums over gradients that have left the numbers of their type."""
    if not all_finite(sums):
        raise BadAnswer(
            f"{owner}: the sums over the gradients seen so far leave the range of {sums.dtype}. The oracle's "
            "gradients are far too large: scale the loss (and its gradients) down, or compute in float64."
        )


def grown(table: Tensor | None, point: TargetPoint) -> Tensor:
    """A fresh copy of the table with a (zero) row for every example of this point."""
    z = point.targets
    rows = z.shape[0] if point.index is None else int(point.index.max()) + 1
    if table is None:
        return z.new_zeros((rows, *z.shape[1:]))
    table = table.to(z)
    if table.shape[0] < rows:
        more = z.new_zeros((rows - table.shape[0], *z.shape[1:]))
        return torch.cat([table, more])
    return table.clone()


def averaged(entries: Tensor, point: TargetPoint) -> Tensor:
    """``entries``, with the mean of its copies for every data row that occurs more than once.

    Copies then write the same to their row, so none is lost and their order decides nothing; and a
    batch in which every example stands twice is remembered as if each stood there once.
    """
    if point.index is None:
        return entries
    rows, places, copies = torch.unique(point.index, return_inverse=True, return_counts=True)
    if rows.shape[0] == entries.shape[0]:
        return entries
    sums = entries.new_zeros((rows.shape[0], *entries.shape[1:])).index_add_(0, places, entries)
    means: Tensor = sums / copies.reshape(-1, *([1] * (entries.ndim - 1)))
    return means[places]


def rows_of(point: TargetPoint) -> Tensor | slice:
    """What selects this point's rows from a table."""
    return slice(None) if point.index is None else point.index


def on_disk(table: Tensor) -> bool:
    """Whether it is a file that is mapped into memory."""
    return table.untyped_storage().filename is not None


def table_on_disk(table: Tensor, directory: str | os.PathLike[str]) -> Tensor:
    """A copy in a file of this directory, mapped into memory; the file has no name and ends with the tensor."""
    try:
        handle, name = tempfile.mkstemp(dir=directory, prefix="targetopt-memory-")
    except OSError as error:
        raise BadArgument(
            f"directory={str(directory)!r}: no file can be made there ({error}). Choose another directory, or "
            "None to keep the tables in memory."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.truncate(max(1, table.numel()) * table.element_size())
        mapped = torch.from_file(name, shared=True, size=table.numel(), dtype=table.dtype)
    finally:
        os.unlink(name)
    mapped = mapped.reshape(table.shape)
    mapped.copy_(table)
    return mapped
