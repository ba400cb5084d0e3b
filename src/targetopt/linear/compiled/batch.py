"""The rows of one mini-batch, renumbered to the columns they touch.

A batch of sparse rows touches few of the d columns; everything the inner loop does happens on those
("active") columns, so its arrays are short and stay in cache. A dense batch keeps all columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear import spec
from targetopt.linear.compiled import csr
from targetopt.linear.compiled.jit import jit
from targetopt.linear.spec import DUAL, PRIMAL

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]

choose_form = jit(spec.choose_form)

# With so many non-zeros per column, renumbering a batch to the columns it touches costs more than it
# saves. (An exact solve does renumber: a column that nothing touches would make it singular.)
NEARLY_ALL = 2


class Matrix(NamedTuple):
    """All of X: CSR arrays, or ``dense`` (the other one is empty)."""

    indptr: Index
    indices: Columns
    data: Array
    dense: Array
    columns: int


class Batch(NamedTuple):
    """X_B on its active columns: local CSR arrays, or ``dense`` (the other one is empty)."""

    indptr: Index
    indices: Columns
    data: Array
    dense: Array
    active: Columns  # empty if all columns are kept
    all_columns: bool
    rows: int
    width: int


@jit
def _is_everything(X: Matrix, rows: Index) -> bool:
    """Whether ``rows`` is 0, 1, …, n − 1: then nothing need be copied."""
    if rows.size != X.indptr.size - 1:
        return False
    same = True
    for i in range(rows.size):
        same &= rows[i] == i
    return same


@jit
def load(
    X: Matrix, rows: Index, form: int, steps: int, exact: bool, mark: Columns
) -> tuple[Batch, int]:
    """Gather ``rows`` and settle the form (``form`` < 0 asks the cost model).

    ``mark`` is scratch of length d, all −1, and is left so.
    """
    if X.dense.shape[0] > 0:
        dense = X.dense[rows]
        width = dense.shape[1]
        if form < 0:
            form = choose_form(rows.size, width, dense.size, 0.0, False, steps, exact)
        empty = np.empty(0, np.int32)
        no_csr = (np.empty(0, np.int64), empty, np.empty(0))
        return Batch(no_csr[0], no_csr[1], no_csr[2], dense, empty, True, rows.size, width), form
    if _is_everything(X, rows):
        if form < 0:
            form = _cheapest(X.indices, rows.size, X.columns, steps, exact)
        everything = Batch(
            X.indptr, X.indices, X.data, X.dense, mark[:0], True, rows.size, X.columns
        )
        return everything, form
    indptr, indices, data = csr.take(X.indptr, X.indices, X.data, rows)
    nnz = indptr[-1]
    if nnz >= NEARLY_ALL * X.columns and not exact:
        if form < 0:
            form = _cheapest(indices, rows.size, X.columns, steps, exact)
        dense = np.empty((0, 0))
        return Batch(indptr, indices, data, dense, mark[:0], True, rows.size, X.columns), form
    active = np.empty(min(nnz, X.columns) + 1, np.int32)  # one too long: see `_number`
    width = _number(indices, active, mark)
    active = active[:width]
    if form < 0:
        form = _cheapest(indices, rows.size, width, steps, exact)
    if form == PRIMAL:  # the Gram loop wants local numbers to ascend along a row
        _renumber(active, indices, mark)
    for column in active:
        mark[column] = -1
    return Batch(indptr, indices, data, np.empty((0, 0)), active, False, rows.size, width), form


@jit
def _cheapest(indices: Columns, rows: int, width: int, steps: int, exact: bool) -> int:
    """The form that costs least for sparse rows; meetings are counted only where they decide."""
    nnz = indices.size
    fewest = nnz * nnz / max(width, 1)  # if all columns were equally full
    form = choose_form(rows, width, nnz, fewest, True, steps, exact)
    if form != DUAL:
        return form
    in_column = np.zeros(width, np.int32)
    for j in range(nnz):
        in_column[np.uint32(indices[j])] += np.int32(1)
    meetings = 0.0
    for count in in_column:
        meetings += float(count) * float(count)
    return choose_form(rows, width, nnz, meetings, True, steps, exact)


@jit
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
    """Number the active columns by their place in X instead of by their first appearance."""
    place = np.empty(active.size, np.int32)
    before = active.copy()
    active.sort()
    for local in range(active.size):
        mark[active[local]] = local
    for local in range(active.size):
        place[local] = mark[before[local]]
    for j in range(indices.size):
        indices[j] = place[indices[j]]


@jit
def matvec(X: Batch, theta: Array, out: Array) -> None:
    """out = Xθ, θ on the active columns."""
    if X.dense.shape[0] > 0:
        for i in range(out.size):
            row = X.dense[i]
            total = 0.0
            for j in range(row.size):
                total += row[j] * theta[j]
            out[i] = total
    else:
        csr.matvec(X.indptr, X.indices, X.data, theta, out)


@jit
def add_rmatvec(X: Batch, u: Array, out: Array) -> None:
    """out += Xᵀu on the active columns."""
    if X.dense.shape[0] > 0:
        for i in range(u.size):
            row = X.dense[i]
            scale = u[i]
            for j in range(row.size):
                out[j] += scale * row[j]
    else:
        csr.add_rmatvec(X.indptr, X.indices, X.data, u, out)


@jit
def gram_dual(X: Batch) -> Array:
    """XXᵀ."""
    if X.dense.shape[0] > 0:
        gram: Array = np.dot(X.dense, X.dense.T)
        return gram
    return csr.gram_dual(X.indptr, X.indices, X.data, X.width)


@jit
def gram_primal(X: Batch, weights: Array) -> Array:
    """Xᵀ diag(weights) X on the active columns."""
    if X.dense.shape[0] > 0:
        weighted = np.empty_like(X.dense)
        for i in range(weights.size):
            for j in range(X.width):
                weighted[i, j] = weights[i] * X.dense[i, j]
        gram: Array = np.dot(X.dense.T, weighted)
        return gram
    return csr.gram_primal(X.indptr, X.indices, X.data, weights, X.width)


@jit
def read(X: Batch, theta: Array) -> Array:
    """θ on the active columns (a copy)."""
    if X.all_columns:
        return theta.copy()
    local = np.empty(X.width)
    for j in range(X.width):
        local[j] = theta[X.active[j]]
    return local


@jit
def write(X: Batch, local: Array, theta: Array) -> None:
    """Put the active columns of θ back."""
    if X.all_columns:
        theta[:] = local
    else:
        for j in range(X.width):
            theta[X.active[j]] = local[j]
