"""The rows of one mini-batch, renumbered to the columns they touch: products and Gram matrices.

A batch of sparse rows touches few of the d columns; everything the inner loop does happens on those
("active") columns, so its arrays are short and stay in cache. A dense batch keeps all columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates import choice
from targetopt.linear.coordinates.choice import DUAL
from targetopt.linear.design import DenseDesign, Design, SparseDesign
from targetopt.linear.kernels.compiler.jit import jit, loop
from targetopt.linear.kernels.data import csr

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]

choose_form = loop(choice.choose_form)


class Matrix(NamedTuple):
    """All of X: CSR arrays, or ``dense`` (the other one is empty)."""

    indptr: Index
    indices: Columns
    data: Array
    dense: Array
    columns: int


NO_MATRIX = Matrix(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0), np.empty((0, 0)), 0)
"""A matrix of the types that all matrices have."""


def matrix_of(X: Design) -> Matrix:
    """The arrays of a design, as kernels take them."""
    if isinstance(X, SparseDesign):
        return Matrix(X.indptr, X.indices, X.data, np.empty((0, 0)), X.shape[1])
    assert isinstance(X, DenseDesign)
    return Matrix(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0), X.array, X.shape[1])


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
def cheapest(X: Batch, meetings: float, steps: int, exact: bool) -> tuple[int, float]:
    """The form that costs least, and Σ_c n_c² (see `choose_form`), counted only where it decides.

    ``meetings`` is that sum if it is known, and negative if not.
    """
    if X.dense.shape[0] > 0:
        return choose_form(X.rows, X.width, X.dense.size, 0.0, False, steps, exact), meetings
    nnz = X.indices.size
    fewest = nnz * nnz / max(X.width, 1)  # if all columns were equally full
    form = choose_form(X.rows, X.width, nnz, fewest, True, steps, exact)
    if form == DUAL:
        if meetings < 0.0:
            meetings = _count_meetings(X.indices, np.zeros(X.width, np.int32))
        form = choose_form(X.rows, X.width, nnz, meetings, True, steps, exact)
    return form, meetings


@loop
def _count_meetings(indices: Columns, in_column: Columns) -> float:
    """``in_column`` is all 0."""
    for j in range(indices.size):
        in_column[np.uint32(indices[j])] += np.int32(1)
    meetings = 0.0
    for c in range(in_column.size):
        meetings += float(in_column[c]) * float(in_column[c])
    return meetings


@loop
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


@loop
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
        gram = np.empty((X.rows, X.rows))
        np.dot(X.dense, X.dense.T, gram)
        return gram
    return csr.gram_dual(X.indptr, X.indices, X.data, X.width)


@jit
def gram_primal(X: Batch, weights: Array) -> Array:
    """Xᵀ diag(weights) X on the active columns."""
    if X.dense.shape[0] > 0:
        weighted, gram = np.empty(X.dense.shape), np.empty((X.width, X.width))
        for i in range(weights.size):
            for j in range(X.width):
                weighted[i, j] = weights[i] * X.dense[i, j]
        np.dot(X.dense.T, weighted, gram)
        return gram
    return csr.gram_primal(X.indptr, X.indices, X.data, weights, X.width)


@jit
def read(X: Batch, theta: Array) -> Array:
    """θ on the active columns (a copy)."""
    if X.all_columns:
        return theta.copy()
    local = np.empty(X.width)
    _gather(X.active, theta, local)
    return local


@loop
def _gather(active: Columns, theta: Array, local: Array) -> None:
    for j in range(local.size):
        local[j] = theta[active[j]]


@loop
def write(X: Batch, local: Array, theta: Array) -> None:
    """Put the active columns of θ back."""
    if X.all_columns:
        for j in range(X.width):
            theta[j] = local[j]
    else:
        for j in range(X.width):
            theta[X.active[j]] = local[j]
