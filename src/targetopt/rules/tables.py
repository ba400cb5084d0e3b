"""Per-example memory of the rules that remember: rows of a table, found by data index or position."""

from __future__ import annotations

import math
import os
import tempfile

import torch
from torch import Tensor

from targetopt.types import (
    BadAnswer,
    BadArgument,
    BadForward,
    MissingCapability,
    TargetPoint,
    all_finite,
)


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


def check_coverage(
    owner: str,
    z: Tensor,
    everything: Tensor | None,
    index: Tensor | None,
    table: Tensor | None,
    shape: torch.Size | None = None,
) -> None:
    """Refuse what a rule whose surrogate is of all examples cannot place among them.

    Args:
        owner: the rule.
        z: the targets of the batch.
        everything: those of all examples, if they are given.
        index: the places of the batch among them, if they are given.
        table: what is remembered, one row for each example; None before the first step.
        shape: of one row of the table, if it must be that of the targets.
    """
    b = z.shape[0]
    if everything is None:
        covered = b if index is None else int(torch.unique(index).shape[0])
        n = b if index is None else int(index.max()) + 1
        n = n if table is None else max(n, table.shape[0])
        if covered < n:
            raise MissingCapability(
                f"{owner} minimises the surrogate of all {n} examples, and this batch has {covered} of them. Pass "
                "regularise_on=lambda: model(x_all), the forward of all of them, beside index=. Without it "
                "every batch must be the full one."
            )
    else:
        n = everything.shape[0]
        if index is None and b != n:
            raise BadArgument(
                f"{owner} needs index=, the places of the batch's {b} examples among the {n} of regularise_on()"
            )
        if index is not None and int(index.max()) >= n:
            raise BadArgument(
                f"index= names row {int(index.max())}; regularise_on() gives the rows 0 … {n - 1}. The index "
                "must be the place of each example in what regularise_on() gives."
            )
        if not all_finite(everything):
            raise BadForward(
                "regularise_on() returned targets that are not finite: the model has diverged, or its input "
                "has nan or inf. Nothing was asked of the oracle."
            )
    if table is None:
        return
    fits = table.shape[0] == n and shape in (None, table.shape[1:])
    if not fits:
        known = "" if shape is None else f" with targets of shape {tuple(table.shape[1:])}"
        now = "" if shape is None else f" of shape {tuple(shape)}"
        raise BadArgument(
            f"{owner} holds {table.shape[0]} examples{known}; now there are {n}{now}. The examples must stay the same; "
            "use a second optimiser for other data."
        )
