"""Wave-form inversion: recover the squared slowness m = 1/c² from waves of several frequencies and sources.

In the unit square and an absorbing layer around it, time-harmonic waves obey −Δu − ω² m u = f. Bilinear finite
elements on squares of side h, with m constant on each, give for every angular frequency ω the equations
A_ω(m) u = f, with

    A_ω(m) = Σ_e  (s_y/s_x) K_x + (s_x/s_y) K_y − ω² m_e s_x s_y h² M

where s = 1 inside and s = 1 + iσ/ω in the layer (a perfectly matched layer, σ growing as the square of the depth). The
element matrices are integrated at the points ±√(2/3), which makes the error of the wave's speed fourth order
in ωh. With receivers R the misfit and its gradient are

    J(m) = (1/2M) Σ_ω,s ‖R u − d‖²/σ_ω²
    ∂J/∂m_e = Σ_ω,s ω² h² Re(s_x s_y λ_eᵀ M u_e)        A_ω λ = Rᵀ conj(R u − d)/(M σ_ω²)

so one factorisation for each frequency serves all sources and the adjoints (A is symmetric, not Hermitian). M
counts real numbers, so the true field has J ≈ ½. The measurements come from a mesh twice as fine.

References: Guddati, Yue, *Modified integration rules for reducing dispersion error in finite element methods*,
2004; Bérenger, *A perfectly matched layer for the absorption of electromagnetic waves*, 1994; Pratt, Shin, Hicks,
*Gauss–Newton and full Newton methods in frequency–space seismic waveform inversion*, 1998; Virieux, Operto, *An
overview of full-waveform inversion in exploration geophysics*, 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from targetopt.lab.problems.physics.sparse import (
    LU,
    Array,
    ComplexArray,
    General,
    Index,
    SolverFailed,
)
from targetopt.lab.problems.physics.truth import Hidden
from targetopt.types import BadArgument, positive_int

FINER = 2
"""How much finer the mesh is on which the measurements are made."""

LAYER = 0.25
"""Width of the absorbing layer, in sides of the square."""

DAMPING = 60.0
"""σ at the outer end of the layer."""

NEAREST = 0.3
"""Receivers nearer to a source than this do not listen to it: the direct wave would drown all else."""


def element_matrices() -> tuple[Array, Array, Array]:
    """K_x, K_y and M of a unit square; corners in the order (0, 0), (0, 1), (1, 0), (1, 1)."""
    mass = np.array([[5.0, 1.0], [1.0, 5.0]]) / 12.0  # integrated at ±√(2/3)
    stiffness = np.array([[1.0, -1.0], [-1.0, 1.0]])
    pairs = ((stiffness, mass), (mass, stiffness), (mass, mass))
    kx, ky, both = (np.asarray(np.kron(a, b), dtype=np.float64) for a, b in pairs)
    return kx, ky, both


@dataclass(frozen=True)
class Helmholtz(Hidden):
    """The forward problem on ``cells × cells`` squares, and the measurements of one true field.

    Args:
        cells: N, squares along a side of the domain (the absorbing layer comes on top).
        frequencies: how many waves of the background fit in a side, for each frequency. Ten squares
            a wavelength are enough.
        sources: how many nodes on the boundary send, one at a time.
        receivers: how many nodes on the boundary listen.
        noise: standard deviation of the measurements' noise, relative to their root mean square at
            each frequency.
        seed: of the true field and of the noise.

    Example:
        >>> problem = Helmholtz(12, frequencies=(1.0,), sources=4, receivers=8, noise=0.05)
        >>> misfit, gradient = problem.misfit(problem.truth)
        >>> gradient.shape, 0.3 < float(misfit) < 0.8
        ((144,), True)
    """

    contrast: ClassVar[float] = 1.3

    cells: int
    frequencies: tuple[float, ...] = (1.5, 3.0)
    sources: int = 8
    receivers: int = 32
    noise: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cells", "sources", "receivers"):
            positive_int(name, getattr(self, name))
        if not self.frequencies or not all(0 < f < np.inf for f in self.frequencies):
            raise BadArgument(f"frequencies={self.frequencies!r} must be positive numbers")
        self.check_noise()

    @cached_property
    def layer(self) -> int:
        """Squares across the absorbing layer."""
        return max(8, round(LAYER * self.cells))

    @property
    def _side(self) -> int:
        return self.cells + 2 * self.layer

    @cached_property
    def _corners(self) -> Index:
        """The four nodes of every element, layer included."""
        column, row = np.divmod(np.arange(self._side**2), self._side)
        first = column * (self._side + 1) + row
        return np.stack([first, first + 1, first + self._side + 1, first + self._side + 2], axis=1)

    @cached_property
    def _inside(self) -> Index:
        """The elements of the domain itself, column by column."""
        number = np.arange(self._side**2).reshape(self._side, self._side)
        cut = slice(self.layer, self.layer + self.cells)
        return number[cut, cut].ravel()

    @cached_property
    def _pattern(self) -> General:
        rows = np.repeat(self._corners, 4, axis=1).ravel()
        columns = np.tile(self._corners, (1, 4)).ravel()
        return General(rows, columns, (self._side + 1) ** 2)

    def _perimeter(self, count: int, begin: float) -> Index:
        """Nodes on the boundary of the domain, evenly spaced, from the share ``begin`` of a gap on."""
        along = np.round((np.arange(count) + begin) * 4 * self.cells / count).astype(np.int64)
        side, step = np.divmod(along % (4 * self.cells), self.cells)
        n = self.cells
        x = np.choose(side, [step, np.full_like(step, n), n - step, np.zeros_like(step)])
        y = np.choose(side, [np.zeros_like(step), step, np.full_like(step, n), n - step])
        return np.asarray((x + self.layer) * (self._side + 1) + y + self.layer)

    @cached_property
    def senders(self) -> Index:
        """The nodes that send."""
        return self._perimeter(self.sources, 0.5)

    @cached_property
    def listeners(self) -> Index:
        """The nodes that listen."""
        return self._perimeter(self.receivers, 0.0)

    def node_places(self, nodes: Index) -> Array:
        """Where nodes lie, in the unit square."""
        column, row = np.divmod(nodes, self._side + 1)
        return (np.stack([column, row], axis=-1) - self.layer) / self.cells

    @cached_property
    def _heard(self) -> Array:
        """For every receiver and source, 1 if the one listens to the other and 0 if it is too near."""
        a, b = self.node_places(self.listeners), self.node_places(self.senders)
        distance = np.sqrt(((a[:, None] - b[None]) ** 2).sum(axis=2))
        return np.asarray((distance >= NEAREST).astype(np.float64))

    def _stretches(self, omega: float) -> tuple[ComplexArray, ComplexArray, ComplexArray]:
        """s_y/s_x, s_x/s_y and s_x s_y of every element."""
        middle = np.arange(self._side) + 0.5
        outside = np.maximum(self.layer - middle, middle - self.layer - self.cells)
        depth = np.maximum(outside, 0.0) / self.layer
        s = 1.0 + 1j * DAMPING * depth**2 / omega
        x, y = np.repeat(s, self._side), np.tile(s, self._side)
        return y / x, x / y, x * y

    def factor(self, m: Array, omega: float) -> LU:
        """A_ω(m), factorised; outside the domain the squared slowness is 1."""
        whole = np.ones(self._side**2)
        whole[self._inside] = m
        kx, ky, mass = element_matrices()
        across, along, both = self._stretches(omega)
        weight = (omega / self.cells) ** 2 * whole * both
        entries = (
            across[:, None] * kx.ravel()
            + along[:, None] * ky.ravel()
            - weight[:, None] * mass.ravel()
        )
        return self._pattern.factor(entries.ravel())

    def waves(self, m: Array, omega: float) -> ComplexArray:
        """The waves of all sources at all nodes, one column each."""
        return self.factor(m, omega).solve(self._shots)

    @cached_property
    def _shots(self) -> ComplexArray:
        return self._points(self.senders)

    def _points(self, nodes: Index) -> ComplexArray:
        """Right-hand sides for sources at nodes: spread over the neighbours by the mass matrix.

        Without that every wave would be too loud by a factor 1 + O((ωh)²).
        """
        line = np.array([1.0, 10.0, 1.0]) / 12.0
        shots = np.zeros(((self._side + 1) ** 2, len(nodes)), dtype=np.complex128)
        for (i, j), weight in np.ndenumerate(np.outer(line, line)):
            shots[nodes + (i - 1) * (self._side + 1) + j - 1, np.arange(len(nodes))] = weight
        return shots

    @cached_property
    def measured(self) -> list[tuple[ComplexArray, float]]:
        """For every frequency what the receivers heard, and the standard deviation of its noise."""
        fine = Helmholtz(
            FINER * self.cells,
            self.frequencies,
            self.sources,
            self.receivers,
            self.noise,
            self.seed,
        )
        rng = np.random.default_rng([self.seed, 1])
        heard = self._heard
        found = []
        listeners = self._on(fine, self.listeners)
        shots = fine._points(self._on(fine, self.senders))
        for frequency in self.frequencies:
            omega = 2.0 * np.pi * frequency
            clean = fine.factor(fine.truth, omega).solve(shots)[listeners] * heard
            sigma = self.noise * float(np.sqrt(np.sum(np.abs(clean) ** 2) / heard.sum() / 2))
            noise = rng.normal(size=clean.shape) + 1j * rng.normal(size=clean.shape)
            found.append((clean + sigma * noise * heard, sigma))
        return found

    def _on(self, fine: Helmholtz, nodes: Index) -> Index:
        """The same places on a finer mesh."""
        column, row = np.divmod(nodes, self._side + 1)
        there = [(FINER * (each - self.layer) + fine.layer) for each in (column, row)]
        return np.asarray(there[0] * (fine._side + 1) + there[1])

    def misfit(self, m: Array) -> tuple[float, Array]:
        """J(m) and its gradient: for every frequency one factorisation and two solves for each source.

        Raises:
            SolverFailed: m is not positive and finite, or the equations cannot be solved.
        """
        m = np.asarray(m, dtype=np.float64)
        if m.shape != (self.size,):
            raise BadArgument(f"m must have shape ({self.size},); got {m.shape}")
        if not (np.isfinite(m).all() and (m > 0).all()):
            raise SolverFailed("m must be positive and finite: use exp in the forward")
        count = 2.0 * self._heard.sum() * len(self.frequencies)
        mass = element_matrices()[2]
        corners = self._corners[self._inside]
        value, gradient = 0.0, np.zeros(self.size)
        for frequency, (data, sigma) in zip(self.frequencies, self.measured, strict=True):
            omega = 2.0 * np.pi * frequency
            factor = self.factor(m, omega)
            u = factor.solve(self._shots)
            residual = (u[self.listeners] - data) * self._heard / sigma
            value += 0.5 * float(np.sum(np.abs(residual) ** 2)) / count
            pull = np.zeros_like(u)
            np.add.at(pull, self.listeners, residual.conj() / (sigma * count))
            adjoint = factor.solve(pull)  # the matrix is symmetric; inside, nothing is stretched
            own, other = u[corners], adjoint[corners]
            work = np.einsum("eis,ij,ejs->e", other, mass, own, optimize=True)
            gradient += (omega / self.cells) ** 2 * work.real
        return value, gradient
