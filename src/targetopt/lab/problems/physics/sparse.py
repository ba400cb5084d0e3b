"""Sparse symmetric systems whose pattern never changes: what depends on the pattern alone is done once.

Entries are given as they come from elements or edges, several for one place of the matrix. A pattern knows
where each of them goes, so that assembling is one pass of `numpy.bincount`, and in which order the unknowns
are best eliminated. Only the numbers are factorised at every call.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numpy.typing import NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from targetopt.types import TargetoptError

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]
Index = NDArray[np.int64]


class SolverFailed(TargetoptError, ArithmeticError):
    """The equations have no solution that can be trusted: the run that asked has failed, and no other."""


class Cholesky(NamedTuple):
    """A factorised positive definite matrix, its unknowns in the order of elimination."""

    factor: Array
    order: Index

    def solve(self, right: Array) -> Array:
        """The solution for one right-hand side or for several columns of them."""
        solution = np.empty_like(right)
        solved = la.cho_solve_banded((self.factor, True), right[self.order], check_finite=False)
        solution[self.order] = solved
        return solution


class Banded:
    """The pattern of a positive definite matrix on a grid, solved by Cholesky's method within its band.

    On a strip of a few dozen squares' width the band is narrow, and LAPACK's banded Cholesky factorisation is
    several times faster than a general sparse one. The unknowns keep their order or take that of reverse
    Cuthill and McKee, whichever has the narrower band.

    Args:
        rows: row of every entry.
        columns: column of every entry; of (i, j) and (j, i) both must be there.
        size: number of unknowns.

    Example:
        >>> pattern = Banded(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 1]), 2)
        >>> pattern.factor(np.array([2.0, 2.0, 1.0, 1.0])).solve(np.array([3.0, 3.0]))
        array([1., 1.])
    """

    def __init__(self, rows: Index, columns: Index, size: int) -> None:
        graph = sp.csr_array((np.ones(rows.size), (rows, columns)), shape=(size, size))
        narrow = reverse_cuthill_mckee(graph, symmetric_mode=True).astype(np.int64)
        orders = [np.arange(size), narrow]
        widths = [int(np.abs(_places(o)[rows] - _places(o)[columns]).max()) for o in orders]
        self.size = size
        self.width = min(widths)
        self.order: Index = orders[int(np.argmin(widths))]
        place = _places(self.order)
        below = place[rows] - place[columns]
        self._kept = np.flatnonzero(below >= 0)
        self._slots = (below * size + place[columns])[self._kept]

    def factor(self, entries: Array) -> Cholesky:
        """The factorised matrix with these entries.

        Raises:
            SolverFailed: it is not positive definite, or has entries that are not finite.
        """
        filled = np.bincount(
            self._slots, entries[self._kept], minlength=(self.width + 1) * self.size
        )
        band = filled.reshape(self.width + 1, self.size)
        if not np.isfinite(band).all():
            raise SolverFailed("the matrix has entries that are not finite")
        try:
            factor = la.cholesky_banded(band, overwrite_ab=True, lower=True, check_finite=False)
        except la.LinAlgError as error:
            raise SolverFailed(
                f"the matrix is not positive definite ({error}): a part of the structure or of the "
                "domain is not held"
            ) from error
        return Cholesky(factor, self.order)


class General:
    """The pattern of a complex symmetric matrix that is not definite, solved by sparse LU (SuperLU).

    The fill-reducing order is found at the first factorisation and used for all later ones.

    Example:
        >>> pattern = General(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 1]), 2)
        >>> solved = pattern.factor(np.array([1j, 1j, 1.0, 1.0])).solve(np.array([1 + 1j, 1 + 1j]))
        >>> bool(np.allclose(solved, 1.0))
        True
    """

    def __init__(self, rows: Index, columns: Index, size: int) -> None:
        self.size = size
        self._rows, self._columns = rows, columns
        self.order: Index = np.arange(size)
        self._arrange()
        ordered = self._splu(np.where(rows == columns, 8.0 + 1j, -1.0), "MMD_AT_PLUS_A").perm_c
        self.order = np.argsort(ordered).astype(np.int64)
        self._arrange()

    def _arrange(self) -> None:
        """Where every entry goes in the matrix of compressed columns, in the present order."""
        place = _places(self.order)
        key = place[self._columns] * self.size + place[self._rows]
        places, self._slots = np.unique(key, return_inverse=True)
        column, self._row = np.divmod(places, self.size)
        self._start = np.searchsorted(column, np.arange(self.size + 1))

    def _splu(
        self, entries: ComplexArray, permc_spec: Literal["NATURAL", "MMD_AT_PLUS_A"]
    ) -> spla.SuperLU[np.complex128]:
        count = self._row.size
        real = np.bincount(self._slots, entries.real, minlength=count)
        values = real + 1j * np.bincount(self._slots, entries.imag, minlength=count)
        shape = (self.size, self.size)
        self._matrix = sp.csc_array((values, self._row, self._start), shape=shape)
        with warnings.catch_warnings():
            warnings.simplefilter("error", spla.MatrixRankWarning)
            factor: spla.SuperLU[np.complex128] = spla.splu(
                self._matrix,
                permc_spec=permc_spec,
                diag_pivot_thresh=0.01,
                options={"SymmetricMode": True},
            )
        return factor

    def factor(self, entries: ComplexArray) -> LU:
        """The factorised matrix with these entries.

        Raises:
            SolverFailed: it is singular, or has entries that are not finite.
        """
        if not np.isfinite(entries).all():
            raise SolverFailed("the matrix has entries that are not finite")
        try:
            return LU(self._splu(entries, "NATURAL"), self._matrix, self.order)
        except (RuntimeError, spla.MatrixRankWarning) as error:
            raise SolverFailed(f"the matrix is singular ({error})") from error


class LU(NamedTuple):
    """A factorised complex symmetric matrix; every solution is checked."""

    factor: spla.SuperLU[np.complex128]
    matrix: sp.csc_array
    order: Index

    def solve(self, right: ComplexArray) -> ComplexArray:
        """The solutions for several columns of right-hand sides.

        Raises:
            SolverFailed: the residual is not small: the matrix is singular to working precision.
        """
        ordered = np.asarray(right[self.order], dtype=np.complex128)
        found = self.factor.solve(ordered)
        rest = float(np.abs(np.asarray(self.matrix @ found) - ordered).max())
        if not rest <= 1e-8 * float(np.abs(ordered).max()):
            raise SolverFailed(f"the solution leaves a residual of {rest:.3g}: a resonance")
        solution = np.empty_like(found)
        solution[self.order] = found
        return solution


def _places(order: Index) -> Index:
    """Where every unknown stands in an order."""
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return place
