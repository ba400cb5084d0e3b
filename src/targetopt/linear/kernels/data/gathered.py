"""The batches of many steps, gathered at once: what they cost is paid once, however many runs see them.

Rows are copied and renumbered to the columns that their batch touches (see `batch`). A Gram matrix is
computed when a step first asks for it, and kept. None of this depends on the run, so runs on the same
data with the same batches take turns on what one of them has gathered.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates.choice import DUAL
from targetopt.linear.kernels.compiler.jit import Request, entry, jit, loop, request
from targetopt.linear.kernels.data import batch, csr
from targetopt.linear.kernels.data.batch import NO_MATRIX, Batch, Matrix

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]
Flags = NDArray[np.bool_]

# With so many non-zeros per column, renumbering a batch to the columns it touches costs more than it
# saves. (An exact solve does renumber: a column that nothing touches would make it singular.)
NEARLY_ALL = 2


class Gathered(NamedTuple):
    """Batches one after the other; what belongs to batch t begins at place t of an index."""

    order: Index  # the rows' numbers
    dense: Array  # the rows, or
    indptr: Index  # those of a batch begin at 0, and there is one more of them than rows
    indices: Columns
    data: Array
    active: Columns  # the columns that a batch touches, by their local numbers
    rows: Index
    nonzeros: Index
    actives: Index
    whole: Flags  # whether a batch keeps all columns, as they are
    columns: int  # of X
    meetings: Array  # Σ_c n_c², see `batch.cheapest`; −1 until it is asked for
    gram: Array  # XXᵀ or XᵀX, whichever is smaller
    grams: Index
    known: Flags  # whether that has been computed


def everything(X: Matrix) -> Gathered:
    """All rows as the only batch, which every step then uses; nothing is copied."""
    n = max(X.indptr.size - 1, X.dense.shape[0])
    nnz = X.data.size
    return Gathered(
        np.arange(n),
        X.dense,
        X.indptr,
        X.indices,
        X.data,
        np.empty(0, np.int32),
        np.array([0, n]),
        np.array([0, nnz]),
        np.zeros(2, np.int64),
        np.ones(1, np.bool_),
        X.columns,
        np.full(1, -1.0),
        np.empty(0),
        np.zeros(2, np.int64),
        np.zeros(1, np.bool_),
    )


@entry
def gather(X: Matrix, order: Index, ends: Index, exact: bool, room: Array, most: int) -> Gathered:
    """The batches ``order[ends[t-1]:ends[t]]``; Gram matrices are kept if they are ``most`` numbers at most.

    ``room`` is used for those if it suffices.
    """
    count = ends.size
    rows = np.zeros(count + 1, np.int64)
    for t in range(count):
        rows[t + 1] = ends[t]
    nonzeros, actives = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    whole, grams = np.ones(count, np.bool_), np.zeros(count + 1, np.int64)
    dense, indptr = np.empty((0, 0)), np.empty(0, np.int64)
    indices, active, data = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)
    if X.dense.shape[0] > 0:
        dense = np.empty((order.size, X.columns))
        _take_rows(X.dense, order, dense)
    else:
        indptr = np.empty(order.size + count, np.int64)
        _measure_rows(X.indptr, order, rows, indptr, nonzeros)
        indices, data = np.empty(nonzeros[-1], np.int32), np.empty(nonzeros[-1])
        _copy_rows(X, order, rows, indptr, nonzeros, indices, data)
        longest = 0
        for t in range(count):
            nnz = nonzeros[t + 1] - nonzeros[t]
            whole[t] = nnz >= NEARLY_ALL * X.columns and not exact
            longest += 0 if whole[t] else min(nnz, X.columns)
        active = np.empty(longest + 1, np.int32)  # one too long: see `_number`
        mark = np.empty(X.columns if longest > 0 else 0, np.int32)
        for column in range(mark.size):
            mark[column] = -1
        for t in range(count):
            actives[t + 1] = actives[t]
            if not whole[t]:
                own = indices[nonzeros[t] : nonzeros[t + 1]]
                touched = active[actives[t] :]
                width = _number(own, touched, mark)
                actives[t + 1] += width
                if width < rows[t + 1] - rows[t]:
                    _renumber(touched[:width], own, mark)
                _clear(touched[:width], mark)
    for t in range(count):
        width = X.columns if whole[t] else actives[t + 1] - actives[t]
        side = min(width, rows[t + 1] - rows[t])
        grams[t + 1] = grams[t] + side * side
    if grams[-1] > most:
        for t in range(count):
            grams[t + 1] = 0
    gram = room if room.size >= grams[-1] else np.empty(grams[-1])
    return Gathered(
        order,
        dense,
        indptr,
        indices,
        data,
        active,
        rows,
        nonzeros,
        actives,
        whole,
        X.columns,
        np.full(count, -1.0),
        gram,
        grams,
        np.zeros(count, np.bool_),
    )


@cache
def gathering() -> Request:
    """`gather`, with the types that it always has."""
    index = np.empty(0, np.int64)
    return request(gather, NO_MATRIX, index, index, False, np.empty(0), 0)


@loop
def _take_rows(matrix: Array, order: Index, out: Array) -> None:
    for i in range(order.size):
        row, place = matrix[order[i]], out[i]
        for j in range(place.size):
            place[j] = row[j]


@loop
def _copy(matrix: Array, out: Array) -> None:
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i, j] = matrix[i, j]


@loop
def _measure_rows(
    X_indptr: Index, order: Index, rows: Index, indptr: Index, nonzeros: Index
) -> None:
    for t in range(rows.size - 1):
        total, begin = 0, rows[t] + t
        indptr[begin] = 0
        for i in range(rows[t], rows[t + 1]):
            total += X_indptr[order[i] + 1] - X_indptr[order[i]]
            indptr[t + i + 1] = total
        nonzeros[t + 1] = nonzeros[t] + total


@loop
def _copy_rows(
    X: Matrix,
    order: Index,
    rows: Index,
    indptr: Index,
    nonzeros: Index,
    indices: Columns,
    data: Array,
) -> None:
    for t in range(rows.size - 1):
        csr.copy_rows(
            X.indptr,
            X.indices,
            X.data,
            order[rows[t] : rows[t + 1]],
            indptr[rows[t] + t : rows[t + 1] + t + 1],
            indices[nonzeros[t] : nonzeros[t + 1]],
            data[nonzeros[t] : nonzeros[t + 1]],
        )


@loop
def _number(indices: Columns, active: Columns, mark: Columns) -> int:
    """Turn columns into local numbers, by first appearance; ``active`` becomes the columns.

    Every column is written down as if it were new; if it is not, the next one takes its place. (An
    `if` here would be mispredicted every third time.)
    """
    width = np.uint32(0)
    for j in range(indices.size):
        column = indices[j]
        place = np.uint32(column)
        known = mark[place]
        active[width] = column
        new = known < 0
        local = np.int32(width) if new else known
        mark[place], indices[j] = local, local
        width += np.uint32(new)
    return np.int64(width)  # type: ignore[return-value]


@jit
def _renumber(active: Columns, indices: Columns, mark: Columns) -> None:
    """Number columns by their place in X: then numbers ascend along a row, as XᵀX wants it."""
    place, before = np.empty(active.size, np.int32), np.empty(active.size, np.int32)
    _sort_columns(active, indices, mark, place, before)


@loop
def _sort_columns(
    active: Columns, indices: Columns, mark: Columns, place: Columns, before: Columns
) -> None:
    for local in range(active.size):
        before[local] = active[local]
    gap = 1
    while gap < active.size // 3:
        gap = 3 * gap + 1
    while gap > 0:  # Shell's sort: numba's own takes a second and a half to compile
        for i in range(gap, active.size):
            column, j = active[i], i
            while j >= gap and active[j - gap] > column:
                active[j] = active[j - gap]
                j -= gap
            active[j] = column
        gap //= 3
    for local in range(active.size):
        mark[active[local]] = local
    for local in range(active.size):
        place[local] = mark[before[local]]
    for j in range(indices.size):
        indices[j] = place[indices[j]]


@loop
def _clear(active: Columns, mark: Columns) -> None:
    for local in range(active.size):
        mark[np.uint32(active[local])] = -1


@jit
def view(gathered: Gathered, t: int) -> Batch:
    """Batch t, where it lies."""
    rows = gathered.rows[t + 1] - gathered.rows[t]
    begin = gathered.rows[t] + t
    dense = gathered.dense[gathered.rows[t] : gathered.rows[t + 1]]
    indptr = gathered.indptr[begin : begin + rows + 1]
    indices = gathered.indices[gathered.nonzeros[t] : gathered.nonzeros[t + 1]]
    data = gathered.data[gathered.nonzeros[t] : gathered.nonzeros[t + 1]]
    active = gathered.active[gathered.actives[t] : gathered.actives[t + 1]]
    whole = gathered.whole[t]
    width = gathered.columns if whole else active.size
    return Batch(indptr, indices, data, dense, active, whole, rows, width)


@jit
def form_of(gathered: Gathered, t: int, X: Batch, steps: int, exact: bool) -> int:
    """The form of batch t that costs least."""
    form, gathered.meetings[t] = batch.cheapest(X, gathered.meetings[t], steps, exact)
    return form


@jit
def gram_of(gathered: Gathered, t: int, X: Batch, form: int) -> Array:
    """XXᵀ (dual form) or XᵀX (primal form) of batch t, computed unless it was before."""
    side = X.rows if form == DUAL else X.width
    begin, end = gathered.grams[t], gathered.grams[t + 1]
    if end - begin != side * side:  # too large to be kept, or not the smaller one
        return batch.gram_dual(X) if form == DUAL else batch.gram_primal(X, np.ones(X.rows))
    kept = gathered.gram[begin:end].reshape(side, side)
    if not gathered.known[t]:
        fresh = batch.gram_dual(X) if form == DUAL else batch.gram_primal(X, np.ones(X.rows))
        _copy(fresh, kept)
        gathered.known[t] = True
    return kept
