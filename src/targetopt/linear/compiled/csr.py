"""CSR products; same functions as ``targetopt.linear.plain.csr``.

Hot loops run over slices from 0 and index by unsigned numbers: then numba need not ask at each access
whether an index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled.jit import jit
from targetopt.linear.plain import csr as plain

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]


@jit
def matvec(indptr: Index, indices: Columns, data: Array, theta: Array, out: Array) -> None:
    """out = Xθ."""
    for i in range(out.size):
        values, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        total = 0.0
        for j in range(values.size):
            total += values[j] * theta[np.uint32(columns[j])]
        out[i] = total


@jit
def add_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, out: Array) -> None:
    """out += Xᵀu."""
    for i in range(indptr.size - 1):
        values, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        scale = u[i]
        for j in range(values.size):
            out[np.uint32(columns[j])] += scale * values[j]


@jit
def by_column(
    indptr: Index, indices: Columns, data: Array, columns: int
) -> tuple[Index, Columns, Array]:
    """The same matrix column by column: ``starts, rows, values``, rows ascending in each column."""
    starts = np.zeros(columns + 1, np.int64)
    for j in range(indptr[-1]):
        starts[indices[j] + 1] += 1
    for c in range(columns):
        starts[c + 1] += starts[c]
    place = starts[:-1].copy()
    rows = np.empty(indptr[-1], np.int32)
    values = np.empty(indptr[-1], np.float64)
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            at = place[indices[j]]
            place[indices[j]] = at + 1
            rows[at] = i
            values[at] = data[j]
    return starts, rows, values


@jit
def outer_sums(starts: Index, places: Columns, values: Array, weights: Array, out: Array) -> None:
    """out += Σ_l weights_l v_l v_lᵀ over the sparse vectors v_l, whose places ascend.

    Only meetings of two non-zeros cost anything; half of them are added, two rows at a time, and
    the rest is mirrored.
    """
    for line in range(starts.size - 1):
        begin, end = starts[line], starts[line + 1]
        if end - begin == 1:  # most columns of a batch of text
            out[places[begin], places[begin]] += weights[line] * values[begin] * values[begin]
            continue
        v, at = values[begin:end], places[begin:end]
        weight, paired = weights[line], v.size - v.size % 2
        for i in range(0, paired, 2):
            scale0, row0 = weight * v[i], out[at[i]]
            scale1, row1 = weight * v[i + 1], out[at[i + 1]]
            for j in range(i + 1):
                place = np.uint32(at[j])
                row0[place] += scale0 * v[j]
                row1[place] += scale1 * v[j]
            row1[at[i + 1]] += scale1 * v[i + 1]
        if paired < v.size:
            scale0, row0 = weight * v[paired], out[at[paired]]
            for j in range(v.size):
                row0[np.uint32(at[j])] += scale0 * v[j]
    for i in range(out.shape[0]):
        for j in range(i):
            out[j, i] = out[i, j]


@jit
def gram_dual(indptr: Index, indices: Columns, data: Array, columns: int) -> Array:
    starts, rows, values = by_column(indptr, indices, data, columns)
    out = np.zeros((indptr.size - 1, indptr.size - 1))
    outer_sums(starts, rows, values, np.ones(columns), out)
    return out


@jit
def take(
    indptr: Index, indices: Columns, data: Array, index: Index
) -> tuple[Index, Columns, Array]:
    """``indptr, indices, data`` of the rows ``index``."""
    taken = np.zeros(index.size + 1, np.int64)
    for i in range(index.size):
        taken[i + 1] = taken[i] + indptr[index[i] + 1] - indptr[index[i]]
    columns = np.empty(taken[-1], np.int32)
    values = np.empty(taken[-1], np.float64)
    for i in range(index.size):
        source = indptr[index[i]]
        for j in range(taken[i + 1] - taken[i]):
            columns[taken[i] + j] = indices[source + j]
            values[taken[i] + j] = data[source + j]
    return taken, columns, values


def csr_matvec(indptr: Index, indices: Columns, data: Array, theta: Array) -> Array:
    """Xθ for θ of shape ``(d,)`` or ``(d, k)``; several outputs go to scipy, as fast there."""
    if theta.ndim == 2:
        return plain.csr_matvec(indptr, indices, data, theta)
    out = np.empty(indptr.size - 1)
    matvec(indptr, indices, data, np.ascontiguousarray(theta), out)
    return out


def csr_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, columns: int) -> Array:
    """Xᵀu for u of shape ``(n,)`` or ``(n, k)``."""
    if u.ndim == 2:
        return plain.csr_rmatvec(indptr, indices, data, u, columns)
    out = np.zeros(columns)
    add_rmatvec(indptr, indices, data, np.ascontiguousarray(u), out)
    return out


def csr_gram_dual(indptr: Index, indices: Columns, data: Array, columns: int) -> Array:
    """XXᵀ as a dense ``(n, n)`` array."""
    return np.asarray(gram_dual(indptr, indices, data, columns))


def csr_gram_primal(
    indptr: Index, indices: Columns, data: Array, weights: Array, columns: int
) -> Array:
    """Xᵀ diag(weights) X as a dense ``(d, d)`` array."""
    out = np.zeros((columns, columns))
    outer_sums(indptr, indices, data, np.ascontiguousarray(weights), out)
    return out


def csr_take(
    indptr: Index, indices: Columns, data: Array, index: Index
) -> tuple[Index, Columns, Array]:
    """``indptr, indices, data`` of the rows ``index``."""
    taken: tuple[Index, Columns, Array] = take(indptr, indices, data, index)
    return taken
