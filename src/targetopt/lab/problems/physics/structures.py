"""The stiffness of a structure: compliance of a density field, by finite elements, with its adjoint gradient.

The plane is cut into unit squares with bilinear elements. Square e has the density x_e in [0, 1] and Young's
modulus E(x) = E_min + x³ (1 − E_min) (SIMP, penalty 3). With K(x) u = f the compliance and its gradient are

    c(x) = fᵀu        ∂c/∂x_e = −E′(x_e) u_eᵀ K₀ u_e

so one factorisation of K gives both. The densities here are the physical ones. Designs are filtered before (by a
cone of a few squares' radius, which keeps checkerboards away): `Structure.cone` is that filter's matrix.

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

from targetopt.lab.problems.physics.sparse import Array, Banded, Index, SolverFailed
from targetopt.types import BadArgument, positive_int

PENALTY = 3.0
SOFTEST = 1e-9
"""Young's modulus of an empty square, relative to a full one."""
POISSON_RATIO = 0.3
BALANCED = 1e-6
"""How well the work of the forces and the energy of the squares must agree, relatively."""


def young(x: Array) -> Array:
    """E(x), Young's modulus of a square with the density x, relative to a full one."""
    return np.asarray(SOFTEST + x**PENALTY * (1.0 - SOFTEST))


def young_slope(x: Array) -> Array:
    """E′(x)."""
    return np.asarray(PENALTY * x ** (PENALTY - 1.0) * (1.0 - SOFTEST))


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
    """Compliance, its gradient in the densities, and u_eᵀK₀u_e of every square (its energy at E = 1)."""

    compliance: float
    gradient: Array
    strains: Array


class _Equations(NamedTuple):
    """What depends on the mesh and on the case alone."""

    element: Array
    kept: Index
    pattern: Banded
    free: Index
    forces: Array


@dataclass(frozen=True)
class Structure:
    """A rectangle of ``nelx × nely`` squares, how it is held and loaded, and the radius of the filter.

    Densities are vectors of ``nelx · nely`` numbers, column by column. Every call of `solve` factorises
    one sparse matrix: that is the oracle's cost.

    Args:
        nelx: squares along the horizontal.
        nely: squares along the vertical.
        case: ``"mbb"``, ``"cantilever"`` or ``"bridge"`` (`CASES`).
        radius: of the filter `cone`, in squares; 1 means no filter.

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
        if not 1.0 <= self.radius < np.inf:
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
    def kernel(self) -> Array:
        """The filter's weights around a square: max(0, radius − distance)."""
        reach = np.arange(1 - int(np.ceil(self.radius)), int(np.ceil(self.radius)))
        return np.maximum(0.0, self.radius - np.hypot(reach[:, None], reach))

    @cached_property
    def cone(self) -> sp.csr_array:
        """The density filter: a weighted mean of the squares around; rows sum to one."""
        reach = len(self.kernel) // 2
        column, row = np.divmod(np.arange(self.size), self.nely)
        rows, columns, weights = [], [], []
        for (i, j), weight in np.ndenumerate(self.kernel):
            c, r = column + i - reach, row + j - reach
            inside = (c >= 0) & (c < self.nelx) & (r >= 0) & (r < self.nely) & (weight > 0)
            rows.append(np.flatnonzero(inside))
            columns.append((c * self.nely + r)[inside])
            weights.append(np.full(int(inside.sum()), weight))
        entries = (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns)))
        matrix = sp.csr_array(sp.coo_array(entries, shape=(self.size, self.size)))
        sums = np.asarray(matrix.sum(axis=1)).ravel()
        return sp.csr_array(sp.diags_array(1.0 / sums) @ matrix)

    @cached_property
    def _equations(self) -> _Equations:
        case = CASES[self.case](self.nelx, self.nely)
        count = 2 * (self.nelx + 1) * (self.nely + 1)
        free = np.setdiff1d(np.arange(count), case.fixed)
        place = np.full(count, -1)
        place[free] = np.arange(free.size)
        rows = place[np.repeat(self.degrees, 8, axis=1).ravel()]
        columns = place[np.tile(self.degrees, (1, 8)).ravel()]
        kept = np.flatnonzero((rows >= 0) & (columns >= 0))
        pattern = Banded(rows[kept], columns[kept], free.size)
        return _Equations(element_stiffness(), kept, pattern, free, case.forces[free])

    def solve(self, densities: Array) -> Solution:
        """Compliance, gradient and strain energies at these physical densities: one factorisation.

        Raises:
            SolverFailed: the stiffness matrix is singular (a part of the structure is not held), or the
                densities do not lie in [0, 1].
        """
        x = np.asarray(densities, dtype=np.float64)
        if x.shape != (self.size,):
            raise BadArgument(f"densities must have shape ({self.size},); got {x.shape}")
        if not ((x > -1e-9) & (x < 1.0 + 1e-9)).all():
            raise SolverFailed(
                f"densities must lie in [0, 1]; they reach from {x.min():.3g} to {x.max():.3g}"
            )
        x = np.maximum(x, 0.0)
        element, kept, pattern, free, forces = self._equations
        stiffness = young(x)
        moved = np.zeros(2 * (self.nelx + 1) * (self.nely + 1))
        entries = (stiffness[:, None] * element.ravel()).ravel()[kept]
        moved[free] = pattern.factor(entries).solve(forces)
        own = moved[self.degrees]
        strains = ((own @ element) * own).sum(axis=1)
        compliance, energy = float(forces @ moved[free]), float(stiffness @ strains)
        if not abs(compliance - energy) <= BALANCED * abs(energy):
            raise SolverFailed(
                f"the forces do the work {compliance:.6g} and the squares hold the energy {energy:.6g}: the "
                "stiffness matrix is singular, a part of the structure is not held"
            )
        return Solution(compliance, -young_slope(x) * strains, strains)
