"""Xᵀ diag(w) X, what it costs, and Cholesky factors of such matrices.

Dense rows are weighted a block at a time and handed to BLAS, which computes one half of the symmetric product.
Sparse rows are either made dense for it, or every pair of entries of a row is added up by itself; the cheaper of
the two is done. Costs are nanoseconds on one core of a current machine, measured for each operation by itself;
only their ratios matter, and only for speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import blas, lapack

from targetopt.linear import backend
from targetopt.linear.newton.objective import Array, PenalisedLoss, is_sparse
from targetopt.losses import Spare

PER_FLOP = 0.025  # multiply-and-add in a dense symmetric product, both halves counted
PER_DENSE = {True: 2.0, False: 0.45}  # one entry of the rows handed to it, sparse or dense before
PER_PAIR = {"numba": 0.6, "numpy": 8.0}  # two entries of a sparse row multiplied and added
PER_CUBE = 0.01  # a Cholesky factor, per cubed order
BLOCK_ENTRIES = 1 << 16  # rows in a block have so many entries, half a megabyte
JOINT_ENTRIES = 1 << 20  # the same for softmax with all outputs together
WORTH_LOADING = 100_000  # entries below which loading numba takes longer than any fit
SMALLEST = 1e-290  # a diagonal entry below is zero: its inverse would overflow
JITTERS = (1e-15, 1e-13, 1e-11)  # added to a diagonal of ones: the first with which it is definite

Factor = tuple[Array, Array]


def gram_cost(objective: PenalisedLoss, rows: float) -> float:
    """What `gram` of so many rows costs."""
    dense = dense_cost(objective, rows, int(objective.ridge.shape[0]))
    return min(dense, _pair_cost(objective, rows)) if objective.sparse else dense


def dense_cost(objective: PenalisedLoss, rows: float, columns: int) -> float:
    """What a dense symmetric product of so many rows and columns costs."""
    return rows * columns * (PER_FLOP * columns + PER_DENSE[objective.sparse])


def factor_cost(order: int) -> float:
    """What `factor` of a matrix of this order costs."""
    return PER_CUBE * float(order) ** 3


def _kernels(X: Any) -> str:
    return backend.name() if X.nnz >= WORTH_LOADING else "numpy"


def _pair_cost(objective: PenalisedLoss, rows: float) -> float:
    return PER_PAIR[_kernels(objective.X)] * rows * objective.pairs


def by_pairs(objective: PenalisedLoss, rows: int) -> bool:
    """Whether the product of so many rows is added up pair by pair; weights may be negative then."""
    return objective.sparse and _pair_cost(objective, rows) <= gram_cost(objective, rows)


def gram(objective: PenalisedLoss, X: Any, weights: Array) -> Array:
    """Xᵀ diag(weights) X with the intercept's row and column, for rows of the objective's matrix.

    It is written to a spare array; only what lies on and below the diagonal is sure to be filled.
    """
    d, spare = int(objective.ridge.shape[0]), objective.loss.spare
    if not objective.sparse and not (weights == weights[0]).all():
        return _dense_blocks(X, weights, d, spare)
    if by_pairs(objective, weights.size):
        features = _pairs(objective, X, weights)
    else:
        features = _blocks(X, weights, spare)
    if not objective.intercept:
        return features
    H = spare.take((d, d)).T
    H[:-1, :-1] = features
    H[-1, :-1] = X.T @ weights
    H[:-1, -1] = 0.0  # nobody reads it, but a nan that lies there would warn when H is scaled
    H[-1, -1] = weights.sum()
    return H


def _pairs(objective: PenalisedLoss, X: Any, weights: Array) -> Array:
    with backend.use(_kernels(objective.X)):
        kernels = backend.kernels()
    indptr = X.indptr.astype(np.int64, copy=False)
    return kernels.csr_gram_primal(indptr, X.indices, X.data, weights, X.shape[1])


def _blocks(X: Any, weights: Array, spare: Spare) -> Array:
    """Of sparse rows, made dense a block at a time, or of dense rows whose weights are all the same."""
    n, d = X.shape
    H = spare.take((d, d)).T  # by columns, as BLAS has it
    if not is_sparse(X):  # then rows need not be scaled
        by_rows = X.flags.c_contiguous
        H[:] = 0.0
        H = blas.dsyrk(weights[0], X.T if by_rows else X, 0.0, H, int(not by_rows), 1, 1)
        return np.asarray(H)
    root = np.sqrt(weights, out=spare.take(weights.shape))
    size = max(1, BLOCK_ENTRIES // max(1, d))
    buffer = spare.take((size, d))
    H[:] = 0.0
    for start in range(0, n, size):
        part = slice(start, start + size)
        rows = buffer[: min(size, n - start)]
        X[part].toarray(out=rows)
        rows *= root[part, None]
        H = blas.dsyrk(1.0, rows.T, 1.0, H, 0, 1, 1)
    return np.asarray(H)


def _dense_blocks(X: Any, weights: Array, order: int, spare: Spare) -> Array:
    """Of dense rows, weighted a block at a time; an intercept is one more column, of ones."""
    n, d = X.shape
    H = spare.take((order, order)).T
    H[:] = 0.0
    root = np.sqrt(weights, out=spare.take(weights.shape))
    size = min(n, max(1, BLOCK_ENTRIES // max(1, order)))
    buffer = spare.take((size, order))
    for start in range(0, n, size):
        part = slice(start, start + size)
        rows = buffer[: min(size, n - start)]
        np.multiply(X[part], root[part, None], out=rows[:, :d])
        if order > d:
            rows[:, d] = root[part]
        H = blas.dsyrk(1.0, rows.T, 1.0, H, 0, 1, 1)
    return np.asarray(H)


def joint_cost(objective: PenalisedLoss, rows: float) -> float:
    """What the Hessian of so many rows costs, all outputs together."""
    d, k = objective.ridge.shape
    if by_pairs(objective, int(rows)):
        return float(gram_cost(objective, rows) * k * (k + 1) / 2)
    return dense_cost(objective, rows, d * k)


def joint_gram(objective: PenalisedLoss, X: Any, weights: Array, p: Array) -> Array:
    """Σ_i ω_i x_i x_iᵀ ⊗ (diag(p_i) − p_i p_iᵀ), in a spare array."""
    order = objective.ridge.size
    H = objective.loss.spare.take((order, order))
    fill = _fill_by_pairs if by_pairs(objective, weights.size) else _fill_by_blocks
    fill(objective, X, weights, p, H)
    return H


def _fill_by_pairs(objective: PenalisedLoss, X: Any, weights: Array, p: Array, H: Array) -> None:
    """Block (b, c) of the Hessian is Xᵀ diag(ω p_c (1 − p_c)) X for b = c, Xᵀ diag(−ω p_b p_c) X elsewhere."""
    d, k = objective.ridge.shape
    blocks = H.reshape(d, k, d, k)
    for c in range(k):
        for b in range(c + 1):
            curved = weights * p[:, c] * ((1.0 if b == c else 0.0) - p[:, b])
            block = gram(objective, X, curved)
            lower = np.tril(block)
            lower += np.tril(block, -1).T
            blocks[:, b, :, c] = blocks[:, c, :, b] = lower


def _fill_by_blocks(objective: PenalisedLoss, X: Any, weights: Array, p: Array, H: Array) -> None:
    """The outputs' own blocks less BᵀB, a block of rows at a time."""
    d, k = objective.ridge.shape
    H[:] = 0.0
    blocks = H.reshape(d, k, d, k)
    size = max(1, JOINT_ENTRIES // (d * k))
    for start in range(0, weights.size, size):
        part = slice(start, start + size)
        rows = X[part].toarray() if is_sparse(X) else X[part]
        if objective.intercept:
            rows = np.column_stack([rows, np.ones(rows.shape[0])])
        rows = rows * np.sqrt(weights[part, None])
        spread = (rows[:, :, None] * p[part, None, :]).reshape(-1, d * k)
        H -= spread.T @ spread
        for c in range(k):
            blocks[:, c, :, c] += (rows.T * p[part, c]) @ rows


def factor(matrix: Array, spare: Spare) -> Factor:
    """D and the Cholesky factor of DAD, where D makes the diagonal of DAD one; A by its lower half."""
    order = matrix.shape[0]
    scale = np.sqrt(inverse(matrix.diagonal()))
    for jitter in JITTERS:
        scaled = spare.take((order, order)).T
        np.multiply(matrix, scale, out=scaled)
        scaled *= scale[:, None]
        on_diagonal(scaled)[:] = 1.0 + jitter
        lower, failed = lapack.dpotrf(scaled, lower=1, clean=0, overwrite_a=1)
        if not failed:
            return scale, lower
    return scale, np.eye(order, order="F")  # the diagonal alone is still a metric


def solve(factored: Factor, g: Array) -> Array:
    """A⁻¹g."""
    scale, lower = factored
    solution, _ = lapack.dpotrs(lower, scale * g, lower=1)
    return np.asarray(scale * solution)


def on_diagonal(matrix: Array) -> Array:
    """A view of the diagonal of a contiguous matrix that may be written to."""
    by_rows = matrix.T if matrix.flags.f_contiguous else matrix
    view: Array = by_rows.reshape(-1)[:: matrix.shape[0] + 1]
    return view


def inverse(diagonal: Array) -> Array:
    """1/diagonal, and 0 for a column that is empty and not penalised."""
    if np.minimum.reduce(diagonal, axis=None, initial=np.inf) > SMALLEST:
        return np.reciprocal(diagonal)
    return np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > SMALLEST)
