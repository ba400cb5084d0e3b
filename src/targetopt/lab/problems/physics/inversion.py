"""Inversions as problems of the engine: a network gives a coefficient, a solver compares with measurements.

The targets are the logarithms of the coefficients, as is usual for positive quantities without a natural scale.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from targetopt.lab.problems.physics.diffusion import Diffusion
from targetopt.lab.problems.physics.fields import Bounded, Kind
from targetopt.lab.problems.physics.helmholtz import Helmholtz
from targetopt.lab.problems.physics.oracle import (
    Answer,
    Size,
    SolverOracle,
    SolverProblem,
    checked_size,
)
from targetopt.lab.problems.physics.sparse import Array
from targetopt.lab.problems.registry import register
from targetopt.reference import Reference

TOLERANCE = 1.1
"""τ of the discrepancy principle: residuals of up to τ times the noise are explained by it."""

STOPPING_LEVEL = 0.5 * TOLERANCE**2
"""The misfit at which a fit should stop: below ½ it follows the noise."""


class Experiment(Protocol):
    """What is measured, and what would be measured of another field."""

    @property
    def cells(self) -> int: ...

    @property
    def truth(self) -> Array: ...

    def misfit(self, field: Array, /) -> tuple[float, Array]:
        """The misfit and its gradient."""


class DiffusionSize(NamedTuple):
    """Cells along a side, and heated spots."""

    cells: int
    sources: int


class WaveSize(NamedTuple):
    """Cells along a side, frequencies in waves per side, sources and receivers."""

    cells: int
    frequencies: tuple[float, ...]
    sources: int
    receivers: int


DIFFUSION: dict[str, DiffusionSize] = {
    "smoke": DiffusionSize(16, 4),
    "quick": DiffusionSize(24, 9),
    "full": DiffusionSize(48, 16),
}
WAVES: dict[str, WaveSize] = {
    "smoke": WaveSize(16, (1.0, 2.0), 4, 16),
    "quick": WaveSize(32, (1.5, 3.0), 8, 32),
    "full": WaveSize(64, (2.0, 4.0, 6.0), 16, 64),
}


def _problem(
    experiment: Experiment, label: str, model: str, spread: float, cost: float
) -> SolverProblem:
    logarithm = np.log(experiment.truth)

    def solver(targets: Array) -> Answer:
        coefficients = np.exp(targets)
        value, gradient = experiment.misfit(coefficients)
        return Answer(value, gradient * coefficients)

    def measure(targets: Array) -> dict[str, float]:
        """``error``: distance from the true logarithms, relative to their length."""
        return {"error": float(np.linalg.norm(targets - logarithm) / np.linalg.norm(logarithm))}

    def reference() -> Reference:
        value = experiment.misfit(experiment.truth)[0]
        why = (
            "the misfit of the true field, about ½ by the choice of units: whatever is below it follows the noise "
            f"(discrepancy principle; stop at {STOPPING_LEVEL:.3g})"
        )
        return Reference(value, gap=value, attained=True, certificate=why)

    return SolverProblem(
        label,
        (experiment.cells, experiment.cells),
        model,
        Bounded(spread),
        solver,
        oracle=SolverOracle(solver, cost=cost),
        measure=measure,
        reference=reference,
        truth=logarithm,
        level=STOPPING_LEVEL,
    )


@register(
    "conductivity",
    "recover a conductivity from temperatures with noise: a network gives the field, a diffusion solver the misfit",
)
def conductivity(
    size: Size = "quick",
    model: Kind = "fourier",
    noise: float = 0.02,
    cost: float = 0.0,
    seed: int = 0,
) -> SolverProblem:
    """The inversion of `Diffusion`; κ between 1/20 and 20.

    Args:
        size: ``"smoke"``, ``"quick"`` or ``"full"``.
        model: the network that gives the conductivity, or ``"pixels"``.
        noise: of the measurements, relative to their root mean square.
        cost: seconds that every solve takes beside its own.
        seed: of the true field and the noise.
    """
    cells, sources = DIFFUSION[checked_size(size, DIFFUSION)]
    experiment = Diffusion(cells, sources, noise, seed)
    label = f"conductivity {cells}×{cells}, {model}, noise {noise:g}"
    return _problem(experiment, label, model, 20.0, cost)


@register(
    "waveform",
    "recover a wave speed from waves that crossed it: a network gives the field, a Helmholtz solver the misfit",
)
def waveform(
    size: Size = "quick",
    model: Kind = "fourier",
    noise: float = 0.02,
    cost: float = 0.0,
    seed: int = 0,
) -> SolverProblem:
    """The inversion of `Helmholtz`; the squared slowness between ½ and 2.

    Args:
        size: ``"smoke"``, ``"quick"`` or ``"full"``.
        model: the network that gives the squared slowness, or ``"pixels"``.
        noise: of the measurements, relative to their root mean square at each frequency.
        cost: seconds that every solve takes beside its own.
        seed: of the true field and the noise.
    """
    cells, frequencies, sources, receivers = WAVES[checked_size(size, WAVES)]
    experiment = Helmholtz(cells, frequencies, sources, receivers, noise, seed)
    label = f"waveform {cells}×{cells}, {model}, noise {noise:g}"
    return _problem(experiment, label, model, 2.0, cost)
