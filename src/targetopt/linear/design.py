"""Design matrices, dense or sparse, behind one small interface.

A :class:`Design` is X of shape ``(n, d)`` in ``z = Xθ``. It is validated once, when made; after
that every product is right by construction. Sparse designs are CSR in float64 with int32 column
numbers and are never turned into dense ones. No transpose is stored: Xᵀu runs over the rows of X,
which measured 1.62 ms against 1.67 ms with a stored transpose on 1.5 million non-zeros, so its
memory would buy nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any
from weakref import WeakSet

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike, NDArray

from targetopt.linear import backend
from targetopt.types import BadArgument

FEW_COLUMNS = 4096
"""The numbers of so many columns fit into the first cache (32 kB), in whatever order."""
SMALL_COPY = 2**24
"""Non-zeros of which a second copy (200 MB) is no burden."""

Array = NDArray[np.float64]
Index = NDArray[np.int64]


LARGEST = 1e140
"""Entries of X and labels are below this in size: sums of many of their squares are finite numbers."""


class Design(ABC):
    """X, shape ``(n, d)``: what a linear forward needs of its data.

    ``θ`` and ``u`` are vectors or have one column per output; ``weights`` are one number per row.
    """

    shape: tuple[int, int]
    nnz: int
    is_sparse: bool

    @cached_property
    def runs(self) -> WeakSet[Any]:
        """Those under way on this design, which share what kernels keep."""
        return WeakSet()

    @cached_property
    def kept(self) -> dict[bool, Any]:
        """What compiled kernels have gathered of it last; see ``targetopt.linear.kernels.data.pieces``."""
        return {}

    @abstractmethod
    def matvec(self, theta: Array) -> Array:
        """Xθ, shape ``(n,)`` or ``(n, k)``."""

    @abstractmethod
    def rmatvec(self, u: Array) -> Array:
        """Xᵀu, shape ``(d,)`` or ``(d, k)``."""

    @abstractmethod
    def gram_dual(self) -> Array:
        """XXᵀ, shape ``(n, n)``."""

    @abstractmethod
    def gram_primal(self, weights: Array | None = None) -> Array:
        """Xᵀ diag(weights) X, shape ``(d, d)``."""

    @abstractmethod
    def take(self, index: Index) -> Design:
        """The rows ``index`` (validated, int64), as a design of their own."""

    @abstractmethod
    def with_bias(self) -> Design:
        """X with a last column of ones, so that the bias is the last entry of θ."""

    @abstractmethod
    def row_norms_squared(self) -> Array:
        """‖x_i‖² for each row."""

    def rows(self, index: ArrayLike) -> Design:
        """The rows named by ``index`` (integers or a boolean mask), in that order.

        Example:
            >>> design(np.eye(3)).rows([2, 0]).matvec(np.array([1.0, 2.0, 3.0]))
            array([3., 1.])
        """
        return self.take(checked_index(index, self.shape[0]))

    def __repr__(self) -> str:
        kind = f"sparse, {self.nnz} non-zeros" if self.is_sparse else "dense"
        return f"<design {self.shape[0]} × {self.shape[1]}, {kind}>"


class DenseDesign(Design):
    """A dense X. Made by :func:`design`."""

    is_sparse = False

    def __init__(self, array: Array) -> None:
        self.array = array
        self.shape = (array.shape[0], array.shape[1])
        self.nnz = array.size

    def matvec(self, theta: Array) -> Array:
        return self.array @ theta

    def rmatvec(self, u: Array) -> Array:
        return self.array.T @ u

    def gram_dual(self) -> Array:
        return self.array @ self.array.T

    def gram_primal(self, weights: Array | None = None) -> Array:
        if weights is None:
            return self.array.T @ self.array
        return (self.array.T * weights) @ self.array

    def take(self, index: Index) -> DenseDesign:
        return DenseDesign(self.array[index])

    def with_bias(self) -> DenseDesign:
        return DenseDesign(np.hstack([self.array, np.ones((self.shape[0], 1))]))

    def row_norms_squared(self) -> Array:
        squares: Array = np.square(self.array).sum(axis=1)
        return squares


class SparseDesign(Design):
    """A CSR X. Made by :func:`design`; ``indptr`` is int64, ``indices`` int32, ``data`` float64."""

    is_sparse = True

    def __init__(
        self,
        indptr: Index,
        indices: NDArray[np.int32],
        data: Array,
        columns: int,
    ) -> None:
        self.indptr, self.indices, self.data = indptr, indices, data
        self.shape = (indptr.size - 1, columns)
        self.nnz = data.size

    def matvec(self, theta: Array) -> Array:
        return backend.kernels().csr_matvec(self.indptr, self.indices, self.data, theta)

    def rmatvec(self, u: Array) -> Array:
        return backend.kernels().csr_rmatvec(self.indptr, self.indices, self.data, u, self.shape[1])

    def gram_dual(self) -> Array:
        return backend.kernels().csr_gram_dual(self.indptr, self.indices, self.data, self.shape[1])

    def gram_primal(self, weights: Array | None = None) -> Array:
        if weights is None:
            weights = np.ones(self.shape[0])
        return backend.kernels().csr_gram_primal(
            self.indptr, self.indices, self.data, weights, self.shape[1]
        )

    def take(self, index: Index) -> SparseDesign:
        indptr, indices, data = backend.kernels().csr_take(
            self.indptr, self.indices, self.data, index
        )
        return SparseDesign(indptr, indices, data, self.shape[1])

    def with_bias(self) -> SparseDesign:
        n, d = self.shape
        ends = self.indptr[1:]
        return SparseDesign(
            self.indptr + np.arange(n + 1),
            np.insert(self.indices, ends, np.int32(d)),
            np.insert(self.data, ends, 1.0),
            d + 1,
        )

    @property
    def gains_by_order(self) -> bool:
        """Whether `by_use` puts columns in another order: they are many, and a copy costs little memory."""
        return self.shape[1] > FEW_COLUMNS and self.nnz <= SMALL_COPY

    @cached_property
    def by_use(self) -> tuple[SparseDesign, NDArray[np.intp]]:
        """A design of the columns that hold anything, the fullest first, and their numbers in this one.

        In text a few columns are in most rows and most are in a few: side by side, the numbers that belong to
        the former stay in the fastest cache.
        """
        count = np.bincount(self.indices, minlength=self.shape[1])
        columns = count.nonzero()[0]
        if self.gains_by_order:
            columns = columns[np.argsort(-count[columns], kind="stable")]
        place = np.empty(self.shape[1], np.int32)
        place[columns] = np.arange(columns.size, dtype=np.int32)
        indices, data = place[self.indices], self.data
        if self.gains_by_order:
            shape = (self.shape[0], columns.size)
            ordered = sp.csr_array((data.copy(), indices, self.indptr), shape=shape)
            ordered.sort_indices()
            indices, data = ordered.indices.astype(np.int32, copy=False), ordered.data
        ordered_design = SparseDesign(self.indptr, indices, data, columns.size)
        ordered_design.runs = self.runs
        return ordered_design, columns

    def row_norms_squared(self) -> Array:
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        squares = np.bincount(row, weights=self.data**2, minlength=self.shape[0])
        return squares.astype(np.float64, copy=False)


def design(X: Any) -> Design:
    """Validate X and wrap it: a numpy array, torch tensor, nested list, or scipy sparse matrix.

    Any index and number type, contiguous or not, duplicates and unsorted columns included; the
    caller's object is never changed, and not copied when it already is float64 with int32 columns.
    A :class:`Design` is returned as it is.

    Example:
        >>> design(sp.csr_array(np.eye(2))).rmatvec(np.array([1.0, 2.0]))
        array([1., 2.])
    """
    if isinstance(X, Design):
        return X
    if sp.issparse(X):
        return _sparse_design(X)
    if isinstance(X, torch.Tensor):
        if X.layout != torch.strided:
            raise BadArgument(
                f"X is a torch tensor of layout {X.layout}; pass it as a scipy CSR matrix, whose "
                "products are a hundred times faster."
            )
        X = X.detach().cpu().numpy()
    try:
        array = np.asarray(X)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
    except (TypeError, ValueError) as error:
        raise BadArgument(
            f"X must hold real numbers, (examples, features); got {type(X).__name__}: {error}"
        ) from None
    if array.ndim != 2:
        raise BadArgument(
            f"X must have two axes (examples, features); got shape {array.shape}. For one feature "
            "use X[:, None], for one example X[None, :]."
        )
    _check_size(array.shape)
    array = writeable(array, np.float64)
    if not np.isfinite(array).all():
        _raise_not_finite((~np.isfinite(array)).any(axis=1).nonzero()[0])
    _check_scale(array)
    return DenseDesign(array)


def _sparse_design(X: Any) -> SparseDesign:
    if X.ndim != 2:
        raise BadArgument(f"X must have two axes (examples, features); got shape {X.shape}")
    _check_size(X.shape)
    if X.dtype.kind not in "biuf":
        raise BadArgument(f"X must hold real numbers; got a sparse matrix of dtype {X.dtype}")
    if X.shape[1] > np.iinfo(np.int32).max:
        raise BadArgument(
            f"X has {X.shape[1]} columns; at most {np.iinfo(np.int32).max} can be numbered. Hash "
            "the features into fewer columns."
        )
    csr = X.tocsr()
    _check_structure(csr)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    data = writeable(csr.data, np.float64)
    indptr = writeable(csr.indptr, np.int64)
    if not np.isfinite(data).all():
        entries = (~np.isfinite(data)).nonzero()[0]
        _raise_not_finite(np.unique(np.searchsorted(indptr, entries, side="right") - 1))
    _check_scale(data)
    return SparseDesign(indptr, writeable(csr.indices, np.int32), data, csr.shape[1])


def _check_scale(entries: Array) -> None:
    """Squares of entries must neither overflow nor vanish, or no step would be seen to do anything."""
    largest = max(float(entries.max()), -float(entries.min())) if entries.size else 0.0
    if largest != 0.0 and not 1.0 / LARGEST < largest < LARGEST:
        raise BadArgument(
            f"X must have its largest entry between {1.0 / LARGEST:g} and {LARGEST:g} in size, since its "
            f"squares are needed; it is {largest:g}. Rescale the features."
        )


def _check_structure(csr: Any) -> None:
    """Compiled loops trust the index arrays, so a broken matrix must stop here."""
    indptr, indices = csr.indptr, csr.indices
    sound = (
        indptr.size == csr.shape[0] + 1
        and indptr[0] == 0
        and (np.diff(indptr) >= 0).all()
        and indptr[-1] <= min(indices.size, csr.data.size)
        and (indices.size == 0 or (indices.min() >= 0 and indices.max() < csr.shape[1]))
    )
    if not sound:
        raise BadArgument(
            "X is a broken sparse matrix: its indptr or indices point outside it. Rebuild it, for "
            "example with scipy.sparse.csr_array((data, (rows, columns)), shape=...)."
        )


def _check_size(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise BadArgument(f"X must have at least one example and one feature; got shape {shape}")


def _raise_not_finite(rows: NDArray[np.intp]) -> None:
    raise BadArgument(
        f"X must be finite; rows {rows[:5].tolist()} hold nan or inf ({rows.size} rows in all). "
        "Impute or drop them."
    )


def writeable(array: Any, dtype: Any) -> Any:
    """A contiguous array that may be written to (compiled code is specialised on that)."""
    return np.require(array, dtype=dtype, requirements=["C", "W"])


def checked_index(index: ArrayLike, n: int) -> Index:
    """Row numbers as int64 inside ``[0, n)``; accepts masks, negative numbers and torch tensors."""
    if isinstance(index, torch.Tensor):
        index = index.detach().cpu().numpy()
    array = np.asarray(index)
    if array.ndim == 1 and array.dtype == np.bool_ and array.size == n:
        array = array.nonzero()[0]
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise BadArgument(
            f"index must be a non-empty list of row numbers or a mask of length {n}; got shape "
            f"{array.shape}, dtype {array.dtype}"
        )
    array = array.astype(np.int64)
    if array.min() < -n or array.max() >= n:
        wrong = array[(array < -n) | (array >= n)][0]
        raise BadArgument(f"index holds row {wrong}; X has {n} rows, 0 … {n - 1}")
    return np.where(array < 0, array + n, array)


def as_array(tensor: torch.Tensor) -> Array:
    """A detached float64 numpy view or copy."""
    return tensor.detach().cpu().numpy().astype(np.float64, copy=False)
