"""CSR products with numpy and scipy; same functions as ``targetopt.linear.kernels.data.csr``."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]


def _csr(indptr: Index, indices: Columns, data: Array, columns: int) -> sp.csr_array:
    return sp.csr_array((data, indices, indptr), shape=(indptr.size - 1, columns), copy=False)


def csr_matvec(indptr: Index, indices: Columns, data: Array, theta: Array) -> Array:
    """Xθ for θ of shape ``(d,)`` or ``(d, k)``."""
    return np.asarray(_csr(indptr, indices, data, theta.shape[0]) @ theta)


def csr_rmatvec(indptr: Index, indices: Columns, data: Array, u: Array, columns: int) -> Array:
    """Xᵀu for u of shape ``(n,)`` or ``(n, k)``."""
    return np.asarray(_csr(indptr, indices, data, columns).T @ u)


def csr_gram_dual(indptr: Index, indices: Columns, data: Array, columns: int) -> Array:
    """XXᵀ as a dense ``(n, n)`` array."""
    X = _csr(indptr, indices, data, columns)
    return np.asarray((X @ X.T).toarray())


def csr_gram_primal(
    indptr: Index, indices: Columns, data: Array, weights: Array, columns: int
) -> Array:
    """Xᵀ diag(weights) X as a dense ``(d, d)`` array."""
    X = _csr(indptr, indices, data, columns)
    weighted = _csr(indptr, indices, data * np.repeat(weights, np.diff(indptr)), columns)
    return np.asarray((X.T @ weighted).toarray())


def csr_take(
    indptr: Index, indices: Columns, data: Array, index: Index
) -> tuple[Index, Columns, Array]:
    """``indptr, indices, data`` of the rows ``index``."""
    lengths = indptr[index + 1] - indptr[index]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    source = np.repeat(indptr[index] - taken[:-1], lengths) + np.arange(taken[-1])
    return taken, indices[source], data[source]
