"""Some rows of X where they lie: nothing is copied, and columns keep their numbers.

For steps that make two or three products; an inner loop makes many, and renumbers (`batch`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.kernels.compiler.jit import loop
from targetopt.linear.kernels.data.batch import Matrix

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]


@loop
def matvec(X: Matrix, rows: Index, theta: Array, out: Array) -> None:
    """out = X_B θ."""
    for i in range(rows.size):
        total = 0.0
        if X.dense.shape[0] > 0:
            row = X.dense[rows[i]]
            for j in range(row.size):
                total += row[j] * theta[j]
        else:
            begin, end = X.indptr[rows[i]], X.indptr[rows[i] + 1]
            values, columns = X.data[begin:end], X.indices[begin:end]
            for j in range(values.size):
                total += values[j] * theta[np.uint32(columns[j])]
        out[i] = total


@loop
def add_rmatvec(X: Matrix, rows: Index, u: Array, out: Array) -> None:
    """out += X_Bᵀ u."""
    for i in range(rows.size):
        scale = u[i]
        if X.dense.shape[0] > 0:
            row = X.dense[rows[i]]
            for j in range(row.size):
                out[j] += scale * row[j]
        else:
            begin, end = X.indptr[rows[i]], X.indptr[rows[i] + 1]
            values, columns = X.data[begin:end], X.indices[begin:end]
            for j in range(values.size):
                out[np.uint32(columns[j])] += scale * values[j]


@loop
def collect(X: Matrix, rows: Index, g: Array, columns: Columns, values: Array) -> int:
    """Move the non-zeros of g = X_Bᵀu to a list, whose length is returned; g becomes all 0.

    Every entry is written down; if it is 0 (or was, after the first row that has its column took it),
    the next one takes its place. The lists need one place more than X has columns.
    """
    length = np.uint32(0)
    entries = 0
    if X.dense.shape[0] == 0:
        for row in rows:
            entries += X.indptr[row + 1] - X.indptr[row]
    if X.dense.shape[0] > 0 or entries >= X.columns:
        for column in range(X.columns):
            value = g[column]
            columns[length], values[length] = column, value
            length += np.uint32(value != 0.0)
            g[column] = 0.0
        return np.int64(length)  # type: ignore[return-value]
    for row in rows:
        touched = X.indices[X.indptr[row] : X.indptr[row + 1]]
        for j in range(touched.size):
            place = np.uint32(touched[j])
            value = g[place]
            columns[length], values[length] = touched[j], value
            length += np.uint32(value != 0.0)
            g[place] = 0.0
    return np.int64(length)  # type: ignore[return-value]
