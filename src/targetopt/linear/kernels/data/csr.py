"""CSR products; same functions as ``targetopt.linear.coordinates.csr``.

Hot loops run over slices from 0 and index by unsigned numbers: then numba need not ask at each access
whether an index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates import csr as plain
from targetopt.linear.kernels.compiler.jit import entry, jit, loop

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]

TILE = 32


@loop
def matvec(indptr: Index, indices: Columns, data: Array, theta: Array, out: Array) -> None:
    """out = Xθ."""
    for i in range(out.size):
        values, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        total = 0.0
        for j in range(values.size):
            total += values[j] * theta[np.uint32(columns[j])]
        out[i] = total


@loop
def add_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, out: Array) -> None:
    """out += Xᵀu."""
    for i in range(indptr.size - 1):
        values, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        scale = u[i]
        for j in range(values.size):
            out[np.uint32(columns[j])] += scale * values[j]


@loop
def add_meetings(starts: Index, places: Columns, values: Array, weights: Array, out: Array) -> None:
    """Σ_l weights_l v_l v_lᵀ over the sparse vectors v_l, whose places ascend, off the diagonal.

    Only meetings of two non-zeros cost anything; half of them are added, two rows at a time, and
    the rest is mirrored.
    """
    for line in range(starts.size - 1):
        begin, end = starts[line], starts[line + 1]
        v, at, weight = values[begin:end], places[begin:end], weights[line]
        i = 1
        if v.size % 2 == 0 and v.size > 0:
            out[np.uint32(at[1]), np.uint32(at[0])] += weight * v[1] * v[0]
            i = 2
        while i < v.size:
            scale0, row0 = weight * v[i], out[np.uint32(at[i])]
            scale1, row1 = weight * v[i + 1], out[np.uint32(at[i + 1])]
            for j in range(i):
                place = np.uint32(at[j])
                row0[place] += scale0 * v[j]
                row1[place] += scale1 * v[j]
            row1[np.uint32(at[i])] += scale1 * v[i]
            i += 2
    _mirror(out)


@loop
def _mirror(out: Array) -> None:
    """Copy the lower triangle to the upper one, by tiles that stay in the first cache."""
    n = out.shape[0]
    for i in range(0, n, TILE):
        for j in range(0, i + 1, TILE):
            for row in range(i, min(i + TILE, n)):
                for column in range(j, min(j + TILE, row)):
                    out[column, row] = out[row, column]


@entry
def gram_primal(
    indptr: Index, indices: Columns, data: Array, weights: Array, columns: int
) -> Array:
    out = np.zeros((columns, columns))
    _add_squares_of_columns(indptr, indices, data, weights, out)
    add_meetings(indptr, indices, data, weights, out)
    return out


@loop
def _add_squares_of_columns(
    indptr: Index, indices: Columns, data: Array, weights: Array, out: Array
) -> None:
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            column = np.uint32(indices[j])
            out[column, column] += weights[i] * data[j] * data[j]


@entry
def gram_dual(indptr: Index, indices: Columns, data: Array, columns: int) -> Array:
    out = np.zeros((indptr.size - 1, indptr.size - 1))
    _fill_squares_of_rows(indptr, data, out)
    starts, rows, shared = _shared_columns(indptr, indices, data, columns)
    add_meetings(starts, rows, shared, np.ones(starts.size), out)
    return out


@loop
def _fill_squares_of_rows(indptr: Index, data: Array, out: Array) -> None:
    for i in range(indptr.size - 1):
        values = data[indptr[i] : indptr[i + 1]]
        total = 0.0
        for j in range(values.size):
            total += values[j] * values[j]
        out[i, i] = total


@jit
def _shared_columns(
    indptr: Index, indices: Columns, data: Array, columns: int
) -> tuple[Index, Columns, Array]:
    """The columns with several non-zeros, one after the other: where they start, rows and values.

    In a batch of text most columns have a single one, which meets no other.
    """
    count = np.zeros(columns, np.int32)
    starts, place = np.empty(columns + 1, np.int64), np.empty(columns, np.int64)
    shared = _count_shared(indptr, indices, count, starts, place)
    total = starts[shared]
    # The last place takes the single ones.
    rows, values = np.empty(total + 1, np.int32), np.empty(total + 1)
    _fill_shared(indptr, indices, data, count, place, rows, values)
    return starts[: shared + 1], rows, values


@loop
def _count_shared(
    indptr: Index, indices: Columns, count: Columns, starts: Index, place: Index
) -> int:
    """How many columns have several non-zeros; fills where each begins."""
    for j in range(indptr[-1]):
        count[np.uint32(indices[j])] += np.int32(1)
    shared, total = 0, 0
    for c in range(count.size):
        starts[shared], place[c] = total, total
        several = count[c] > 1
        total += count[c] if several else 0
        shared += 1 if several else 0
    starts[shared] = total
    return shared


@loop
def _fill_shared(
    indptr: Index,
    indices: Columns,
    data: Array,
    count: Columns,
    place: Index,
    rows: Columns,
    values: Array,
) -> None:
    last = rows.size - 1
    for i in range(indptr.size - 1):
        own, numbers = indices[indptr[i] : indptr[i + 1]], data[indptr[i] : indptr[i + 1]]
        for j in range(own.size):
            column = np.uint32(own[j])
            at = place[column]
            place[column] = at + 1
            at = np.uint64(at if count[column] > 1 else last)
            rows[at], values[at] = i, numbers[j]


@entry
def take(
    indptr: Index, indices: Columns, data: Array, index: Index
) -> tuple[Index, Columns, Array]:
    """``indptr, indices, data`` of the rows ``index``."""
    taken = np.zeros(index.size + 1, np.int64)
    _add_lengths(indptr, index, taken)
    columns = np.empty(taken[-1], np.int32)
    values = np.empty(taken[-1], np.float64)
    copy_rows(indptr, indices, data, index, taken, columns, values)
    return taken, columns, values


@loop
def _add_lengths(indptr: Index, index: Index, taken: Index) -> None:
    for i in range(index.size):
        taken[i + 1] = taken[i] + indptr[index[i] + 1] - indptr[index[i]]


@loop
def copy_rows(
    indptr: Index,
    indices: Columns,
    data: Array,
    index: Index,
    taken: Index,
    columns: Columns,
    values: Array,
) -> None:
    for i in range(index.size):
        begin, end = indptr[index[i]], indptr[index[i] + 1]
        from_columns, from_values = indices[begin:end], data[begin:end]
        to_columns = columns[taken[i] : taken[i + 1]]
        to_values = values[taken[i] : taken[i + 1]]
        for j in range(from_values.size):  # two loops: each is a plain copy
            to_values[j] = from_values[j]
        for j in range(from_columns.size):
            to_columns[j] = from_columns[j]


@entry
def _matvec(indptr: Index, indices: Columns, data: Array, theta: Array, out: Array) -> None:
    matvec(indptr, indices, data, theta, out)


@entry
def _add_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, out: Array) -> None:
    add_rmatvec(indptr, indices, data, u, out)


def csr_matvec(indptr: Index, indices: Columns, data: Array, theta: Array) -> Array:
    """Xθ for θ of shape ``(d,)`` or ``(d, k)``; several outputs go to scipy, as fast there."""
    if theta.ndim == 2:
        return plain.csr_matvec(indptr, indices, data, theta)
    out = np.empty(indptr.size - 1)
    _matvec(indptr, indices, data, np.ascontiguousarray(theta), out)
    return out


def csr_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, columns: int) -> Array:
    """Xᵀu for u of shape ``(n,)`` or ``(n, k)``."""
    if u.ndim == 2:
        return plain.csr_rmatvec(indptr, indices, data, u, columns)
    out = np.zeros(columns)
    _add_rmatvec(indptr, indices, data, np.ascontiguousarray(u), out)
    return out


def csr_gram_dual(indptr: Index, indices: Columns, data: Array, columns: int) -> Array:
    """XXᵀ as a dense ``(n, n)`` array."""
    return np.asarray(gram_dual(indptr, indices, data, columns))


def csr_gram_primal(
    indptr: Index, indices: Columns, data: Array, weights: Array, columns: int
) -> Array:
    """Xᵀ diag(weights) X as a dense ``(d, d)`` array."""
    return np.asarray(gram_primal(indptr, indices, data, np.ascontiguousarray(weights), columns))


def csr_take(
    indptr: Index, indices: Columns, data: Array, index: Index
) -> tuple[Index, Columns, Array]:
    """``indptr, indices, data`` of the rows ``index``."""
    taken: tuple[Index, Columns, Array] = take(indptr, indices, data, index)
    return taken
