"""L_θ, the smoothness of a linear problem in its parameters, and the steps that theory allows.

For targets ``z = Xθ`` (plus a bias) and a loss whose curvature in one target never exceeds L,

    h(θ) = (1/n) Σ ℓ_i(x_iᵀθ) + ½ λ ‖θ‖²      is smooth with      L_θ = L · λ_max(XᵀX)/n + λ.

With several outputs (softmax, multi-task) the same number holds, L then being the norm of one
example's curvature matrix. SGD's theoretical step is ``1/(2 L_θ)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from targetopt.types import BadArgument

# Up to this size a dense eigenvalue solver is as fast as Lanczos and has nothing to converge.
_DENSE_SIZE = 256


def linear_smoothness(
    X: Any, loss_smoothness: float, *, bias: bool = False, weight_decay: float = 0.0
) -> float:
    """L_θ = L · λ_max(XᵀX)/n + λ, on all rows of ``X``.

    The eigenvalue comes from Lanczos iteration on the smaller of XᵀX and XXᵀ, neither of which is
    formed (from a dense solver when that matrix is small). A sparse ``X`` is never densified.

    Args:
        X: data, one row per example: numpy array, torch tensor, or scipy sparse matrix.
        loss_smoothness: L of one example's loss in its target, e.g. ``losses.Logistic.smoothness``.
        bias: whether the model adds a bias: X gets a column of ones (which the weight_decay term covers too).
        weight_decay: λ of ½λ‖θ‖².

    Returns:
        L_θ, accurate to about 1e-10 relative.

    Example:
        >>> X = np.array([[3.0, 0.0], [0.0, 1.0]])
        >>> linear_smoothness(X, 0.25)  # ¼ · 9 / 2
        1.125

    Reference:
        Paper, App. E.1; Lanczos iteration: Lehoucq, Sorensen & Yang, ARPACK Users' Guide, 1998.
    """
    L, weight_decay = _checked_constants(loss_smoothness, weight_decay)
    return _finite(L * _mean_square_norm(_checked_data(X), bias) + weight_decay)


def batch_smoothness(
    X: Any,
    loss_smoothness: float,
    batches: Iterable[ArrayLike],
    *,
    bias: bool = False,
    weight_decay: float = 0.0,
) -> NDArray[np.float64]:
    """L_θ of each mini-batch loss, (1/|B|) Σ_{i∈B} ℓ_i + ½ λ ‖θ‖²; its ``max()`` bounds them all.

    Args:
        X, loss_smoothness, bias, weight_decay: as in :func:`linear_smoothness`.
        batches: row numbers of each batch.

    Returns:
        One L_θ per batch, in the order given.

    Example:
        >>> X = np.array([[3.0, 0.0], [0.0, 1.0]])
        >>> batch_smoothness(X, 1.0, [[0], [1], [0, 1]])
        array([9. , 1. , 4.5])
    """
    L, weight_decay = _checked_constants(loss_smoothness, weight_decay)
    data = _checked_data(X)
    norms = [_mean_square_norm(data[_checked_rows(rows, data.shape[0])], bias) for rows in batches]
    if not norms:
        raise BadArgument("batches is empty: there is no batch to take the smoothness of")
    values = np.array(norms) * L + weight_decay
    _finite(float(values.max()))
    return values


def theoretical_step(smoothness: float) -> float:
    """1/(2 L_θ), the constant step of SGD in the paper's experiments.

    Example:
        >>> theoretical_step(4.0)
        0.125
    """
    value = float(smoothness)
    if not (math.isfinite(value) and value > 0):
        raise BadArgument(
            f"smoothness={smoothness!r} must be positive and finite: 1/(2·smoothness) is the step. "
            "A smoothness of 0 means that the data are all zero."
        )
    return 0.5 / value


def _checked_constants(loss_smoothness: float, weight_decay: float) -> tuple[float, float]:
    if loss_smoothness is None or not 0 < float(loss_smoothness) < math.inf:
        raise BadArgument(
            f"loss_smoothness={loss_smoothness!r} must be positive and finite: it is L, the "
            "largest curvature of one example's loss (1 squared, ¼ logistic, ½ cross-entropy). A "
            "loss without one has no theoretical step; use a line-search such as baselines.SLS."
        )
    if not 0 <= float(weight_decay) < math.inf:
        raise BadArgument(
            f"weight_decay={weight_decay!r} must be finite and at least 0: it is the weight of ½‖θ‖²"
        )
    return float(loss_smoothness), float(weight_decay)


def _checked_data(X: Any) -> Any:
    """``X`` in float64, dense or CSR, known to be a finite matrix with rows and columns."""
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    sparse = scipy.sparse.issparse(X)
    if not sparse:
        X = np.asarray(X)
    if X.ndim != 2 or 0 in X.shape:
        raise BadArgument(
            f"X must have shape (examples, features), neither of them 0; got {tuple(X.shape)}"
        )
    if X.dtype.kind not in "buif":
        raise BadArgument(f"X must hold real numbers; got dtype {X.dtype}")
    data = X.tocsr().astype(np.float64, copy=False) if sparse else X.astype(np.float64, copy=False)
    finite = np.isfinite(data.data if sparse else data)
    if not finite.all():
        if sparse:
            rows = np.searchsorted(data.indptr, np.flatnonzero(~finite), side="right") - 1
        else:
            rows = np.flatnonzero(~finite.all(axis=1))
        raise BadArgument(
            f"X must be finite; rows {np.unique(rows)[:5].tolist()} hold nan or inf. Clean them."
        )
    return data


def _checked_rows(rows: ArrayLike, n: int) -> NDArray[np.intp]:
    index = np.asarray(rows)
    if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu":
        raise BadArgument(
            "each batch must be a non-empty list of row numbers; got "
            f"shape {index.shape}, dtype {index.dtype}"
        )
    if index.min() < 0 or index.max() >= n:
        raise BadArgument(
            f"a batch has row {int(index.min() if index.min() < 0 else index.max())}; X has rows "
            f"0 to {n - 1}"
        )
    return index.astype(np.intp, copy=False)


def _mean_square_norm(X: Any, bias: bool) -> float:
    """λ_max([X 1]ᵀ[X 1]) / n, [X 1] standing for X alone without a bias."""
    n, d = X.shape
    # Products are scaled by the largest entry so that squares neither overflow nor vanish.
    scale = max(float(abs(X).max()), float(bias))
    if scale == 0.0:
        return 0.0

    def forward(v: NDArray[np.float64]) -> NDArray[np.float64]:
        z: NDArray[np.float64] = X @ v[:d] / scale
        return z + v[d] / scale if bias else z

    def backward(u: NDArray[np.float64]) -> NDArray[np.float64]:
        v: NDArray[np.float64] = X.T @ u / scale
        return np.concatenate([v, u.sum(axis=0, keepdims=True) / scale]) if bias else v

    def gram(v: NDArray[np.float64]) -> NDArray[np.float64]:
        return forward(backward(v)) if n < d + bias else backward(forward(v))

    size = min(n, d + bias)
    if size <= _DENSE_SIZE:
        largest = np.linalg.eigvalsh(gram(np.eye(size)))[-1]
    else:
        operator = LinearOperator((size, size), matvec=gram, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(size)
        try:
            largest = eigsh(operator, k=1, which="LA", v0=start, return_eigenvectors=False)[0]
        except ArpackError as error:
            raise BadArgument(
                f"the largest eigenvalue of XᵀX was not found for X of shape {X.shape}: {error}"
            ) from error
    return float(largest) / int(n) * scale * scale


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise BadArgument("the smoothness of X overflows float64: rescale the data")
    return value
