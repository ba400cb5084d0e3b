"""Least squares to the last digit, dense or sparse: argmin (1/2n)‖Xθ − y‖² + ½ λ ‖θ‖²."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from targetopt.lab.problems.base import Array, is_sparse

_DENSE_ENTRIES = 5_000_000  # a sparse matrix that is small anyway is treated as a dense one
_ITERATIONS = 3000
_CONVERGED = 1e-13  # of the gradient at θ = 0


def least_squares(X: Any, y: Array, weight_decay: float) -> tuple[Array, str | None]:
    """A minimiser and how it was found; None for "how" where rounding or patience ended first.

    Dense or small X: by orthogonal factorisation of X itself (not of XᵀX), so that ill-conditioned
    problems lose no digits. Large sparse X: by conjugate gradients; where weight_decay = 0 and hence nothing
    bounds the condition number, only on the *core* that :func:`peel` leaves. That core
    may still be too ill-conditioned to converge on.
    """
    n, d = X.shape
    if not is_sparse(X) or n * d <= _DENSE_ENTRIES:
        theta = _by_factorisation(X, y, n * weight_decay)
        return theta, "least squares by singular value decomposition"
    if weight_decay > 0:
        theta, converged = _conjugate_gradients(X, y, n * weight_decay)
        return theta, "conjugate gradients on ridge regression" if converged else None
    theta = np.zeros(d)
    core, layers = peel(X)
    how: str | None = "every row owns a column in turn: all residuals are zero"
    if len(core):
        A = X[core]
        used = np.unique(A.indices)
        A = A[:, used]
        how = f"least squares on the {len(core)} × {len(used)} core"
        if len(core) * len(used) <= _DENSE_ENTRIES:
            theta[used] = _by_factorisation(A, y[core], 0.0)
        else:
            theta[used], converged = _conjugate_gradients(A, y[core], 0.0)
            how = how if converged else None
    for rows, columns, values in reversed(layers):
        theta[columns] = 0.0
        theta[columns] = (y[rows] - X[rows] @ theta) / values
    return theta, how


def _by_factorisation(X: Any, y: Array, ridge: float) -> Array:
    X = X.toarray() if is_sparse(X) else X
    if ridge > 0:
        d = X.shape[1]
        X, y = np.vstack([X, np.sqrt(ridge) * np.eye(d)]), np.concatenate([y, np.zeros(d)])
    negligible = max(X.shape) * np.finfo(np.float64).eps  # singular values that are rounding
    return np.asarray(scipy.linalg.lstsq(X, y, cond=negligible, lapack_driver="gelsd")[0])


Layer = tuple[NDArray[np.intp], NDArray[np.intp], Array]


def peel(X: Any) -> tuple[NDArray[np.intp], list[Layer]]:
    """Take away rows that have a column of their own, again and again; what is left is the core.

    A row with a column that no other (remaining) row uses can be fitted exactly whatever the other
    coefficients are, so it has no part in the minimum. The RCV1-v2 subset keeps 8411 of 20242 rows.

    Returns:
        The rows of the core, and the layers in the order in which they were taken: rows, the column
        each of them owns, and its value there.

    Example:
        >>> import scipy.sparse as sp
        >>> core, layers = peel(sp.csr_array([[1.0, 0, 2], [0, 3, 4], [0, 5, 0], [0, 6, 0]]))
        >>> core.tolist(), [rows.tolist() for rows, _, _ in layers]
        ([2, 3], [[0], [1]])
    """
    rows = np.arange(X.shape[0])
    layers: list[Layer] = []
    while len(rows):
        A = X[rows]
        entry_row = np.repeat(np.arange(len(rows)), np.diff(A.indptr))
        users = np.bincount(A.indices, minlength=X.shape[1])
        entries = np.flatnonzero(users[A.indices] == 1)
        # of the columns that a row owns, the one with the largest value: the least amplification
        entries = entries[np.argsort(-np.abs(A.data[entries]), kind="stable")]
        owners, first = np.unique(entry_row[entries], return_index=True)
        if not len(owners):
            break
        chosen = entries[first]
        layers.append((rows[owners], A.indices[chosen].astype(np.intp), A.data[chosen]))
        rows = np.delete(rows, owners)
    return rows, layers


def _conjugate_gradients(X: Any, y: Array, ridge: float) -> tuple[Array, bool]:
    """θ with (XᵀX + ridge·I)θ = Xᵀy, and whether the gradient vanished to rounding."""
    theta = best = np.zeros(X.shape[1])
    best_norm, first = np.inf, float(np.linalg.norm(X.T @ y))
    left = _ITERATIONS
    while True:
        r = X.T @ (y - X @ theta) - ridge * theta  # the true residual, not the recursion's
        norm = float(np.linalg.norm(r))
        if norm >= 0.5 * best_norm or left == 0:
            break
        best, best_norm = theta, norm
        theta = theta.copy()
        p, square, previous = np.zeros_like(theta), norm**2, np.inf
        while left > 0 and square > (1e-8 * norm) ** 2:
            left -= 1
            p = r + (square / previous) * p
            image = X @ p
            step = square / (float(image @ image) + ridge * float(p @ p))
            theta += step * p
            r -= step * (X.T @ image + ridge * p)
            previous, square = square, float(r @ r)
    best, best_norm = (theta, norm) if norm < best_norm else (best, best_norm)
    return best, best_norm <= _CONVERGED * first
