"""The stiffness of a structure: compliance of a density field, by finite elements, with its adjoint gradient.

The plane is cut into unit squares with bilinear elements. Square e has the density x_e in [0, 1] and Young's
modulus E(x) = E_min + x³ (1 − E_min) (SIMP, penalty 3). With K(x) u = f the compliance and its gradient are

    c(x) = fᵀu        ∂c/∂x_e = −E′(x_e) u_eᵀ K₀ u_e

so one factorisation of K gives both. A density filter (a linear cone of a few squares' radius) keeps
checkerboards away; its transpose maps the gradient back.

References: Sigmund, *A 99 line topology optimization code written in Matlab*, 2001; Andreassen et al.,
*Efficient topology optimization in MATLAB using 88 lines of code*, 2011.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numpy.typing import NDArray

from targetopt.types import BadArgument, positive_int

Array = NDArray[np.float64]
Index = NDArray[np.int64]

PENALTY = 3.0
SOFTEST = 1e-9
"""Young's modulus of an empty square, relative to a full one."""
POISSON_RATIO = 0.3


class Case(NamedTuple):
    """Where a structure is held and pulled: degrees of freedom that are fixed, and the forces."""

    fixed: Index
    forces: Array


def _degree(nely: int, column: int, row: int, axis: int) -> int:
    """The number of a node's displacement; nodes are counted down each column."""
    return 2 * (column * (nely + 1) + row) + axis


def mbb_beam(nelx: int, nely: int) -> Case:
    """Half of a beam that rests on its two lower corners and is pressed in the middle of its upper edge."""
    forces = np.zeros(2 * (nelx + 1) * (nely + 1))
    forces[_degree(nely, 0, 0, 1)] = -1.0
    symmetric = [_degree(nely, 0, row, 0) for row in range(nely + 1)]
    return Case(np.array([*symmetric, _degree(nely, nelx, nely, 1)]), forces)


def cantilever(nelx: int, nely: int) -> Case:
    """A beam held along its left edge and pulled down in the middle of its right edge."""
    forces = np.zeros(2 * (nelx + 1) * (nely + 1))
    forces[_degree(nely, nelx, nely // 2, 1)] = -1.0
    held = [_degree(nely, 0, row, axis) for row in range(nely + 1) for axis in (0, 1)]
    return Case(np.array(held), forces)


def bridge(nelx: int, nely: int) -> Case:
    """A bridge held at its two lower corners, with a load spread over its lower edge."""
    forces = np.zeros(2 * (nelx + 1) * (nely + 1))
    for column in range(nelx + 1):
        forces[_degree(nely, column, nely, 1)] = -1.0 / (nelx + 1)
    held = [_degree(nely, column, nely, axis) for column in (0, nelx) for axis in (0, 1)]
    return Case(np.array(held), forces)


CASES: dict[str, Callable[[int, int], Case]] = {
    "mbb": mbb_beam,
    "cantilever": cantilever,
    "bridge": bridge,
}


def element_stiffness() -> Array:
    """K₀ of a unit square in plane stress, 8 × 8; corners in the order of `Structure.degrees`."""
    nu = POISSON_RATIO
    k = np.array(
        [
            0.5 - nu / 6,
            0.125 + nu / 8,
            -0.25 - nu / 12,
            -0.125 + 3 * nu / 8,
            -0.25 + nu / 12,
            -0.125 - nu / 8,
            nu / 6,
            0.125 - 3 * nu / 8,
        ]
    )
    places = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 7, 6, 5, 4, 3, 2],
        [2, 7, 0, 5, 6, 3, 4, 1],
        [3, 6, 5, 0, 7, 2, 1, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 3, 2, 1, 0, 7, 6],
        [6, 3, 4, 1, 2, 7, 0, 5],
        [7, 2, 1, 4, 3, 6, 5, 0],
    ]
    return np.asarray(k[np.array(places)] / (1 - nu**2))


class Solution(NamedTuple):
    """Compliance, its gradient in the densities, and the energies u_eᵀK₀u_e of the (filtered) squares."""

    compliance: float
    gradient: Array
    energies: Array
    filtered: Array


@dataclass(frozen=True)
class Structure:
    """A rectangle of ``nelx × nely`` squares, how it is held and loaded, and the radius of the filter.

    Densities are vectors of ``nelx · nely`` numbers, column by column. Every call of `solve` factorises
    one sparse matrix: that is the oracle's cost.

    Example:
        >>> beam = Structure(12, 4)
        >>> full, half = beam.solve(np.ones(48)), beam.solve(np.full(48, 0.5))
        >>> bool(abs(half.compliance / full.compliance - 8) < 1e-6)  # E(½) = ⅛
        True
    """

    nelx: int
    nely: int
    case: str = "mbb"
    radius: float = 1.5

    def __post_init__(self) -> None:
        positive_int("nelx", self.nelx)
        positive_int("nely", self.nely)
        if self.case not in CASES:
            raise BadArgument(f"case={self.case!r} is unknown. Use one of {', '.join(CASES)}.")
        if not self.radius >= 1.0:
            raise BadArgument(f"radius={self.radius!r} must be at least 1, which means no filter")

    @property
    def size(self) -> int:
        return self.nelx * self.nely

    @cached_property
    def degrees(self) -> Index:
        """The eight degrees of freedom of every square."""
        column, row = np.divmod(np.arange(self.size), self.nely)
        upper = column * (self.nely + 1) + row
        corners = np.stack([upper + 1, upper + self.nely + 2, upper + self.nely + 1, upper], axis=1)
        return np.asarray((2 * corners[:, :, None] + np.arange(2)).reshape(self.size, 8))

    @cached_property
    def cone(self) -> sp.csr_array:
        """The density filter: rows sum to one."""
        reach = int(np.ceil(self.radius)) - 1
        column, row = np.divmod(np.arange(self.size), self.nely)
        rows, columns, weights = [], [], []
        for dx in range(-reach, reach + 1):
            for dy in range(-reach, reach + 1):
                weight = self.radius - np.hypot(dx, dy)
                c, r = column + dx, row + dy
                inside = (c >= 0) & (c < self.nelx) & (r >= 0) & (r < self.nely)
                if weight > 0:
                    rows.append(np.flatnonzero(inside))
                    columns.append((c * self.nely + r)[inside])
                    weights.append(np.full(int(inside.sum()), weight))
        shape = (self.size, self.size)
        entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))
        matrix = sp.csr_array(sp.coo_array(entries, shape=shape))
        sums = np.asarray(matrix.sum(axis=1)).ravel()
        return sp.csr_array(sp.diags_array(1.0 / sums) @ matrix)

    @cached_property
    def _assembly(self) -> tuple[Array, Index, Index, Index, Array]:
        case = CASES[self.case](self.nelx, self.nely)
        count = 2 * (self.nelx + 1) * (self.nely + 1)
        free = np.setdiff1d(np.arange(count), case.fixed)
        place = np.full(count, -1)
        place[free] = np.arange(free.size)
        rows = place[np.repeat(self.degrees, 8, axis=1).ravel()]
        columns = place[np.tile(self.degrees, (1, 8)).ravel()]
        kept = np.flatnonzero((rows >= 0) & (columns >= 0))
        return element_stiffness(), kept, rows[kept], columns[kept], case.forces[free]

    @cached_property
    def _free(self) -> Index:
        count = 2 * (self.nelx + 1) * (self.nely + 1)
        return np.setdiff1d(np.arange(count), CASES[self.case](self.nelx, self.nely).fixed)

    def solve(self, densities: Array) -> Solution:
        """Compliance, gradient and energies at these densities: one factorisation.

        Raises:
            SolverFailed: the stiffness matrix is singular or the densities are not in [0, 1].
        """
        x = np.asarray(densities, dtype=np.float64)
        if x.shape != (self.size,):
            raise BadArgument(f"densities must have shape ({self.size},); got {x.shape}")
        filtered = self.cone @ x
        element, kept, rows, columns, forces = self._assembly
        stiffness = SOFTEST + np.clip(filtered, 0.0, None) ** PENALTY * (1.0 - SOFTEST)
        entries = (stiffness[:, None] * element.ravel()).ravel()[kept]
        matrix = sp.csc_array(
            sp.coo_array((entries, (rows, columns)), shape=(forces.size, forces.size))
        )
        moved = np.zeros(2 * (self.nelx + 1) * (self.nely + 1))
        moved[self._free] = spla.splu(
            matrix,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        ).solve(forces)
        own = moved[self.degrees]
        energies = np.einsum("ei,ij,ej->e", own, element, own)
        slope = PENALTY * np.clip(filtered, 0.0, None) ** (PENALTY - 1) * (1.0 - SOFTEST)
        gradient = -(self.cone.T @ (slope * energies))
        return Solution(float(forces @ moved[self._free]), gradient, energies, filtered)
