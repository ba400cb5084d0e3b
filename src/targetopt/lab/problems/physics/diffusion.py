"""Recover a conductivity from measurements: −div(κ ∇u) = f on the unit square, several sources, noisy sensors.

The square is cut into N × N cells with κ constant on each; pressures u live at the cells' centres and are
zero on the boundary (finite volumes; the flux between two cells sees the harmonic mean of their κ). With
K(κ) u_s = f_s for source s and sensors P, the misfit and its gradient are

    J(κ) = (1/2M) Σ_s ‖P u_s − d_s‖²/σ²        ∂J/∂κ_c = −Σ_s λ_sᵀ (∂K/∂κ_c) u_s,    Kλ_s = ∂J/∂u_s

so one factorisation serves all sources and the adjoints. M is the number of measurements, so the true
field has J ≈ ½ (the discrepancy principle): below that a fit follows the noise.

Reference: Tarantola, *Inverse Problem Theory*, 2005; Plessix, *A review of the adjoint-state method*, 2006.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from numpy.typing import NDArray

from targetopt.types import BadArgument, positive_int

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Diffusion:
    """The forward problem on ``cells × cells`` squares, and the measurements of one true field.

    Args:
        cells: N.
        sources: how many places are heated, one at a time.
        noise: standard deviation of the measurements' noise, relative to their root mean square.
        seed: of the true field's places and of the noise.

    Example:
        >>> problem = Diffusion(8, sources=4, noise=0.01)
        >>> misfit, gradient = problem.misfit(problem.truth)
        >>> gradient.shape, 0.3 < misfit < 0.7
        ((64,), True)
    """

    cells: int
    sources: int = 9
    noise: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        positive_int("cells", self.cells)
        positive_int("sources", self.sources)
        if not 0 < self.noise < np.inf:
            raise BadArgument(f"noise={self.noise!r} must be positive and finite")

    @property
    def size(self) -> int:
        return self.cells**2

    @cached_property
    def places(self) -> Array:
        """The centres of the cells, row by row, in the unit square."""
        middle = (np.arange(self.cells) + 0.5) / self.cells
        return np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)

    @cached_property
    def truth(self) -> Array:
        """κ = 1 with two smooth inclusions, one conducting four times better, one four times worse."""
        rng = np.random.default_rng(self.seed)
        kappa = np.zeros(self.size)
        for sign in (1.0, -1.0):
            centre = rng.uniform(0.25, 0.75, 2)
            width = rng.uniform(0.1, 0.18)
            kappa += sign * np.exp(-((self.places - centre) ** 2).sum(axis=1) / (2 * width**2))
        return np.asarray(np.exp(np.log(4.0) * kappa))

    @cached_property
    def _pairs(self) -> tuple[Index, Index]:
        """The two cells of every inner edge."""
        number = np.arange(self.size).reshape(self.cells, self.cells)
        left = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
        right = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
        return left, right

    @cached_property
    def _walls(self) -> Array:
        """For every cell, how many of its edges lie on the boundary."""
        walls = np.zeros((self.cells, self.cells))
        for edge in (walls[0], walls[-1], walls[:, 0], walls[:, -1]):
            edge += 1.0
        return walls.ravel()

    @cached_property
    def _heat(self) -> Array:
        """The right-hand sides: a cell near each point of a square lattice, heated with total power 1."""
        side = int(np.ceil(np.sqrt(self.sources)))
        line = (np.arange(side) + 1.0) / (side + 1.0)
        wanted = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)[
            : self.sources
        ]
        nearest = ((self.places[None] - wanted[:, None]) ** 2).sum(axis=2).argmin(axis=1)
        heat = np.zeros((self.size, self.sources))
        heat[nearest, np.arange(self.sources)] = 1.0
        return heat

    @cached_property
    def sensors(self) -> Index:
        """Every other cell in both directions."""
        number = np.arange(self.size).reshape(self.cells, self.cells)
        return number[::2, ::2].ravel()

    def _conductances(self, kappa: Array) -> tuple[Array, Array]:
        left, right = self._pairs
        return 2.0 * kappa[left] * kappa[right] / (
            kappa[left] + kappa[right]
        ), 2.0 * kappa * self._walls

    def _factor(self, kappa: Array) -> spla.SuperLU:
        left, right = self._pairs
        edge, wall = self._conductances(kappa)
        diagonal = wall.copy()
        np.add.at(diagonal, left, edge)
        np.add.at(diagonal, right, edge)
        own = np.arange(self.size)
        rows = np.concatenate([own, left, right])
        columns = np.concatenate([own, right, left])
        entries = np.concatenate([diagonal, -edge, -edge])
        return spla.splu(
            sp.csc_array(sp.coo_array((entries, (rows, columns)), shape=(self.size, self.size)))
        )

    @cached_property
    def _measured(self) -> tuple[Array, float]:
        """What the sensors read, and the standard deviation of their noise."""
        clean = self._factor(self.truth).solve(self._heat)[self.sensors]
        sigma = self.noise * float(np.sqrt(np.mean(clean**2)))
        rng = np.random.default_rng([self.seed, 1])
        return clean + sigma * rng.normal(size=clean.shape), sigma

    def misfit(self, kappa: Array) -> tuple[float, Array]:
        """J(κ) and its gradient: one factorisation, two solves for each source."""
        kappa = np.asarray(kappa, dtype=np.float64)
        if kappa.shape != (self.size,):
            raise BadArgument(f"kappa must have shape ({self.size},); got {kappa.shape}")
        if not (np.isfinite(kappa).all() and (kappa > 0).all()):
            raise BadArgument("kappa must be positive and finite: use exp in the forward")
        factor = self._factor(kappa)
        u = factor.solve(self._heat)
        data, sigma = self._measured
        residual = (u[self.sensors] - data) / sigma
        value = 0.5 * float(np.mean(residual**2))
        pull = np.zeros_like(u)
        pull[self.sensors] = residual / (sigma * residual.size)
        adjoint = factor.solve(pull)  # the matrix is symmetric
        left, right = self._pairs
        total = kappa[left] + kappa[right]
        across = ((u[left] - u[right]) * (adjoint[left] - adjoint[right])).sum(axis=1)
        gradient = -2.0 * self._walls * (u * adjoint).sum(axis=1)
        np.add.at(gradient, left, -2.0 * (kappa[right] / total) ** 2 * across)
        np.add.at(gradient, right, -2.0 * (kappa[left] / total) ** 2 * across)
        return value, gradient
