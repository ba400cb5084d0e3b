"""Topology optimisation as problems of the engine: a network draws a structure, a solver says how it bends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from targetopt.lab.problems.base import Problem
from targetopt.lab.problems.physics.compliance import ComplianceBound, compliance
from targetopt.lab.problems.physics.fields import Density, Kind
from targetopt.lab.problems.physics.oracle import Size, SolverOracle, SolverProblem, checked_size
from targetopt.lab.problems.physics.sparse import Array
from targetopt.lab.problems.physics.structures import Structure
from targetopt.lab.problems.registry import register
from targetopt.reference import Reference


class Mesh(NamedTuple):
    """Squares along both sides, the filter's radius, and the best compliance that a pixel method reached."""

    nelx: int
    nely: int
    radius: float
    best: float
    by: str


_MMA = "the method of moving asymptotes, until no design variable changed by more than 0.01"
_LONG = "600 iterations of the method of moving asymptotes"
MESHES: dict[str, dict[str, Mesh]] = {
    "mbb": {
        "smoke": Mesh(24, 8, 1.5, 274.1423, _MMA),
        "quick": Mesh(60, 20, 2.4, 233.4876, _MMA),
        "full": Mesh(150, 50, 6.0, 233.8615, _LONG),
    },
    "cantilever": {
        "smoke": Mesh(16, 8, 1.5, 172.2917, _MMA),
        "quick": Mesh(48, 24, 2.0, 98.5778, _MMA),
        "full": Mesh(120, 60, 4.8, 100.2501, _LONG),
    },
    "bridge": {
        "smoke": Mesh(24, 12, 1.5, 4.743549, _MMA),
        "quick": Mesh(60, 30, 2.4, 5.145430, _MMA),
        "full": Mesh(120, 60, 4.8, 5.644252, _LONG),
    },
}
"""For every case and size; the values are recomputed by ``tests/test_physics_references.py``."""

VOLUMES = {"mbb": 0.5, "cantilever": 0.4, "bridge": 0.4}
"""The share of the rectangle that may be filled."""


def structure(case: str, size: str) -> Structure:
    """The structure of a case at a size."""
    mesh = MESHES[case][checked_size(size, MESHES[case])]
    return Structure(mesh.nelx, mesh.nely, case, mesh.radius)


def _measure(densities: Array) -> dict[str, float]:
    """``volume``, the mean density, and ``grey``, 4x(1 − x) on average: 0 for black and white, 1 for ½."""
    return {
        "volume": float(densities.mean()),
        "grey": float(np.mean(4.0 * densities * (1.0 - densities))),
    }


def _reference(beam: Structure, mesh: Mesh) -> Reference:
    """The best that the field's own methods reach; the full plate is a lower bound, with the same load."""
    least = beam.solve(np.ones(beam.size)).compliance
    return Reference(
        value=mesh.best,
        gap=mesh.best - least,
        attained=True,
        certificate=f"on the pixels, by {mesh.by}; the problem is not convex, and all that is proven of the "
        f"minimum is that it is above {least:.4g}, a full plate's",
    )


def _problem(
    case: str, label: str, size: str, model: str, noise: float, cost: float, seed: int
) -> SolverProblem:
    beam = structure(case, size)
    mesh, volume = MESHES[case][size], VOLUMES[case]
    solver = partial(compliance, beam)
    return SolverProblem(
        f"{label} {mesh.nelx}×{mesh.nely}, {model}{f', noise {noise:g}' if noise else ''}",
        (mesh.nelx, mesh.nely),
        model,
        Density((mesh.nelx, mesh.nely), beam.kernel, volume),
        solver,
        oracle=SolverOracle(solver, noise, cost, seed, bound=ComplianceBound),
        measure=_measure,
        reference=lambda: _reference(beam, mesh),
    )


def _declare(name: str, case: str, label: str, about: str) -> Callable[..., Problem]:
    @register(name, about)
    def build(
        size: Size = "quick",
        model: Kind = "fourier",
        noise: float = 0.0,
        cost: float = 0.0,
        seed: int = 0,
    ) -> SolverProblem:
        return _problem(case, label, size, model, noise, cost, seed)

    build.__doc__ = f"""{about}.

    Args:
        size: ``"smoke"``, ``"quick"`` or ``"full"``.
        model: the network that gives the densities, or ``"pixels"``.
        noise: relative error of the solver's answers.
        cost: seconds that every solve takes beside its own.
        seed: of the noise.
    """
    return build


mbb_beam = _declare(
    "mbb-beam",
    "mbb",
    "MBB beam",
    "a stiff beam from half the material: a network gives the densities, a finite element solver the compliance",
)
cantilever = _declare(
    "cantilever", "cantilever", "cantilever", "a stiff bracket held along one side, in the same way"
)
bridge = _declare(
    "bridge", "bridge", "bridge", "a stiff bridge with a load along its deck, in the same way"
)
