"""Recover a conductivity from measurements: −div(κ ∇u) = f on the unit square, several sources, noisy sensors.

The square is cut into N × N cells with κ constant on each; temperatures u live at the cells' centres and are
zero on the boundary (finite volumes; the flux between two cells sees the mean of their κ). With
K(κ) u_s = f_s for source s and sensors P, the misfit and its gradient are

    J(κ) = (1/2M) Σ_s ‖P u_s − d_s‖²/σ²        ∂J/∂κ_c = −Σ_s λ_sᵀ (∂K/∂κ_c) u_s,    Kλ_s = ∂J/∂u_s

so one factorisation serves all sources and the adjoints. M is the number of measurements, so the true
field has J ≈ ½ (the discrepancy principle): below that a fit follows the noise. The measurements come from a
mesh three times as fine, so that the misfit cannot be made zero by the same errors on both sides.

References: Tarantola, *Inverse Problem Theory*, 2005; Plessix, *A review of the adjoint-state method*, 2006; Morozov,
*Methods for Solving Incorrectly Posed Problems*, 1984 (the discrepancy principle).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from targetopt.lab.problems.physics.sparse import Array, Banded, Cholesky, Index, SolverFailed
from targetopt.lab.problems.physics.truth import Hidden, centres
from targetopt.types import BadArgument, positive_int

FINER = 3
"""How much finer the mesh is on which the measurements are made; odd, so that centres meet centres."""

WIDTH = 0.1
"""Of the heated spots: the standard deviation of a Gaussian, in sides of the square."""


@dataclass(frozen=True)
class Diffusion(Hidden):
    """The forward problem on ``cells × cells`` squares, and the measurements of one true field.

    Args:
        cells: N.
        sources: how many spots are heated, one at a time.
        noise: standard deviation of the measurements' noise, relative to their root mean square.
        seed: of the true field and of the noise.

    Example:
        >>> problem = Diffusion(16, sources=4, noise=0.02)
        >>> misfit, gradient = problem.misfit(problem.truth)
        >>> gradient.shape, 0.3 < misfit < 0.7
        ((256,), True)
    """

    contrast: ClassVar[float] = 4.0

    cells: int
    sources: int = 9
    noise: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        positive_int("cells", self.cells)
        positive_int("sources", self.sources)
        self.check_noise()

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
    def _pattern(self) -> Banded:
        left, right = self._pairs
        own = np.arange(self.size)
        rows, columns = (
            np.concatenate([own, left, right]),
            np.concatenate([own, right, left]),
        )
        return Banded(rows, columns, self.size)

    @cached_property
    def heat(self) -> Array:
        """The right-hand sides: a smooth spot at each point of a square lattice, with total power 1."""
        side = int(np.ceil(np.sqrt(self.sources)))
        line = (np.arange(side) + 1.0) / (side + 1.0)
        spots = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
        distance = ((centres(self.cells)[:, None] - spots[None, : self.sources]) ** 2).sum(axis=2)
        heat = np.exp(-distance / (2 * WIDTH**2))
        return np.asarray(heat / (2 * np.pi * WIDTH**2 * self.size))

    @cached_property
    def sensors(self) -> Index:
        """Every other cell in both directions."""
        number = np.arange(self.size).reshape(self.cells, self.cells)
        return number[::2, ::2].ravel()

    def factor(self, kappa: Array) -> Cholesky:
        """K(κ), factorised."""
        left, right = self._pairs
        edge = 0.5 * (kappa[left] + kappa[right])
        diagonal = 2.0 * kappa * self._walls
        for cells in (left, right):
            diagonal += np.bincount(cells, edge, minlength=self.size)
        return self._pattern.factor(np.concatenate([diagonal, -edge, -edge]))

    @cached_property
    def measured(self) -> tuple[Array, float]:
        """What the sensors read, and the standard deviation of their noise."""
        fine = Diffusion(FINER * self.cells, self.sources, self.noise, self.seed)
        number = np.arange(fine.size).reshape(fine.cells, fine.cells)
        middle = FINER // 2  # the fine cell at the centre of each coarse one
        places = number[middle::FINER, middle::FINER].ravel()[self.sensors]
        clean = fine.factor(fine.truth).solve(fine.heat)[places]
        sigma = self.noise * float(np.sqrt(np.mean(clean**2)))
        rng = np.random.default_rng([self.seed, 1])
        return clean + sigma * rng.normal(size=clean.shape), sigma

    def misfit(self, kappa: Array) -> tuple[float, Array]:
        """J(κ) and its gradient: one factorisation, two solves for each source.

        Raises:
            SolverFailed: κ is not positive and finite, or so uneven that the equations cannot be solved.
        """
        kappa = np.asarray(kappa, dtype=np.float64)
        if kappa.shape != (self.size,):
            raise BadArgument(f"kappa must have shape ({self.size},); got {kappa.shape}")
        if not (np.isfinite(kappa).all() and (kappa > 0).all()):
            raise SolverFailed("kappa must be positive and finite: use exp in the forward")
        factor = self.factor(kappa)
        u = factor.solve(self.heat)
        data, sigma = self.measured
        residual = (u[self.sensors] - data) / sigma
        value = 0.5 * float(np.mean(residual**2))
        pull = np.zeros_like(u)
        pull[self.sensors] = residual / (sigma * residual.size)
        adjoint = factor.solve(pull)  # the matrix is symmetric
        left, right = self._pairs
        across = ((u[left] - u[right]) * (adjoint[left] - adjoint[right])).sum(axis=1)
        gradient = -2.0 * self._walls * (u * adjoint).sum(axis=1)
        for cells in (left, right):
            gradient -= 0.5 * np.bincount(cells, across, minlength=self.size)
        return value, gradient
