"""A parsed data set, and the fingerprint that identifies its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class LabelledMatrix:
    """Rows of features with one label each, in canonical form.

    Canonical: CSR with sorted int32 column indices and float64 values, no stored zeros. Labels are
    those of the file, as numbers.

    Example:
        >>> import scipy.sparse as sp
        >>> data = LabelledMatrix.canonical(sp.csr_array([[0.0, 2.0], [1.0, 0.0]]), [1, 2])
        >>> data.X.nnz, data.label_counts
        (2, {1.0: 1, 2.0: 1})
    """

    X: sp.csr_array[np.float64, tuple[int, int]]
    labels: NDArray[np.float64]

    @classmethod
    def canonical(
        cls, X: sp.csr_array[np.float64, tuple[int, int]], labels: ArrayLike
    ) -> LabelledMatrix:
        """Bring any CSR matrix and labels into canonical form (the input is left alone)."""
        X = X.astype(np.float64, copy=True)
        X.sum_duplicates()
        X.eliminate_zeros()
        X.indices = X.indices.astype(np.int32, copy=False)
        X.indptr = X.indptr.astype(np.int64 if X.nnz > np.iinfo(np.int32).max else np.int32)
        return cls(X, np.asarray(labels, dtype=np.float64))

    def is_canonical(self) -> bool:
        """Whether it is in canonical form, every number in it finite and every index in range."""
        X, labels = self.X, self.labels
        types = (X.indptr.dtype.name, X.indices.dtype.name, X.data.dtype.name, labels.dtype.name)
        if types[0] not in ("int32", "int64") or types[1:] != ("int32", "float64", "float64"):
            return False
        try:
            X.check_format(full_check=True)
        except ValueError:
            return False
        fits = labels.shape == (X.shape[0],) and X.data.size == X.indices.size == X.nnz
        finite = bool(np.isfinite(X.data).all() and np.isfinite(labels).all())
        return fits and finite and bool(X.data.all()) and bool(X.has_canonical_format)

    @property
    def label_counts(self) -> dict[float, int]:
        """How often each label occurs."""
        values, counts = np.unique(self.labels, return_counts=True)
        return {float(v): int(c) for v, c in zip(values, counts, strict=True)}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of shape, structure, values and labels.

        Independent of how the numbers were written (``1``, ``1.0``, ``1e0``), of compression and of
        the machine's byte order; any change of a number, of the order of rows or of the shape
        changes it.
        """
        digest = hashlib.sha256()
        digest.update(np.array(self.X.shape, dtype="<i8").tobytes())
        digest.update(self.X.indptr.astype("<i8").tobytes())
        digest.update(self.X.indices.astype("<i4").tobytes())
        digest.update(self.X.data.astype("<f8").tobytes())
        digest.update(self.labels.astype("<f8").tobytes())
        return digest.hexdigest()
