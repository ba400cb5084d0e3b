"""The equation-solving oracles: gradients against finite differences, known values, symmetries."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from targetopt.lab.problems.physics.diffusion import Diffusion
from targetopt.lab.problems.physics.pixels import optimality_criteria
from targetopt.lab.problems.physics.structures import CASES, Structure, element_stiffness
from targetopt.types import BadArgument


def directional(function, x, d):
    """The derivative of ``function`` along ``d``, by Richardson's extrapolation of central differences."""

    def central(h):
        return (function(x + h * d) - function(x - h * d)) / (2 * h)

    return (4 * central(5e-4) - central(1e-3)) / 3


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("radius", [1.0, 2.4])
def test_compliance_gradient(case, radius):
    rng = np.random.default_rng(0)
    structure = Structure(12, 6, case, radius)
    x, d = rng.uniform(0.3, 0.9, structure.size), 0.1 * rng.normal(size=structure.size)
    solution = structure.solve(x)
    expected = directional(lambda x: structure.solve(x).compliance, x, d)
    assert solution.gradient @ d == pytest.approx(expected, rel=1e-6)


def test_a_square_moves_rigidly_without_forces():
    """Translations and the (linearised) rotation cost no energy; everything else does."""
    eigenvalues = np.linalg.eigvalsh(element_stiffness())
    assert np.allclose(eigenvalues[:3], 0, atol=1e-12)
    assert eigenvalues[3] > 0.1


@pytest.mark.parametrize("case", CASES)
def test_compliance_is_homogeneous_and_monotone(case):
    """Without a filter E scales with x³ (down to the softest material), and more material is stiffer."""
    structure = Structure(10, 4, case, radius=1.0)
    full = structure.solve(np.ones(structure.size)).compliance
    half = structure.solve(np.full(structure.size, 0.5)).compliance
    assert half == pytest.approx(8 * full, rel=1e-6)
    assert (structure.solve(np.full(structure.size, 0.7)).gradient < 0).all()


def test_a_cantilever_bends_as_beam_theory_says():
    """A slender full cantilever: c = F²L³/(3EI) with I = h³/12, plus shear; within four per cent."""
    length, height = 80, 8
    c = (
        Structure(length, height, "cantilever", radius=1.0)
        .solve(np.ones(length * height))
        .compliance
    )
    bending = length**3 / (3 * height**3 / 12)
    shear = 1.2 * length * 2 * 1.3 / height
    assert c == pytest.approx(bending + shear, rel=0.04)


def test_the_majoriser_of_the_compliance():
    """c(x) ≤ Σ e_i E(x_t,i)²/E(x_i) for all x, with equality at x_t: complementary energy at fixed stress."""
    from targetopt.lab.problems.physics.structures import PENALTY, SOFTEST

    def young(x):
        return SOFTEST + x**PENALTY * (1 - SOFTEST)

    rng = np.random.default_rng(1)
    structure = Structure(8, 5, "mbb", radius=1.0)
    x = rng.uniform(0.2, 1.0, structure.size)
    at = structure.solve(x)
    energies = at.energies * young(x)
    assert energies.sum() == pytest.approx(at.compliance, rel=1e-9)
    for _ in range(20):
        other = rng.uniform(0.1, 1.0, structure.size)
        bound = (energies * young(x) / young(other)).sum()
        assert structure.solve(other).compliance <= bound * (1 + 1e-9)


def test_optimality_criteria_reach_the_known_beam():
    """The half MBB beam of 60 × 20 squares at half volume: about 200 with a density filter (88-line code)."""
    values = [
        value for _, value in islice(optimality_criteria(Structure(60, 20, "mbb", 1.5), 0.5), 40)
    ]
    assert values[0] == pytest.approx(1007.0, rel=0.01)
    assert values[-1] < 230
    for x, _ in islice(optimality_criteria(Structure(12, 4), 0.5), 5):
        assert x.mean() == pytest.approx(0.5, abs=1e-6)
        assert (x >= 0).all()
        assert (x <= 1).all()


@pytest.mark.parametrize("sources", [1, 5])
def test_misfit_gradient(sources):
    problem = Diffusion(10, sources=sources, noise=0.05, seed=3)
    rng = np.random.default_rng(0)
    kappa, d = np.exp(0.3 * rng.normal(size=100)), 0.1 * rng.normal(size=100)
    _, gradient = problem.misfit(kappa)
    assert gradient @ d == pytest.approx(
        directional(lambda k: problem.misfit(k)[0], kappa, d), rel=1e-6
    )


def test_the_truth_fits_to_the_noise():
    """The discrepancy principle: J(truth) is near ½, with a spread of 1/√(2M)."""
    values = [
        Diffusion(12, noise=0.02, seed=seed).misfit(Diffusion(12, seed=seed).truth)[0]
        for seed in range(5)
    ]
    assert np.mean(values) == pytest.approx(0.5, abs=0.05)
    assert Diffusion(12, noise=0.02).misfit(np.ones(144))[0] > 10


def test_twice_the_conductivity_is_half_the_heat():
    problem = Diffusion(9, sources=2)
    u = problem._factor(problem.truth).solve(problem._heat)
    halved = problem._factor(2 * problem.truth).solve(problem._heat)
    assert np.allclose(halved, u / 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Structure(0, 4), "nelx=0"),
        (lambda: Structure(4, 4, "tower"), "tower"),
        (lambda: Structure(4, 4, radius=0.5), "radius=0.5"),
        (lambda: Structure(4, 4).solve(np.ones(3)), "densities"),
        (lambda: next(optimality_criteria(Structure(4, 4), 1.5)), "volume=1.5"),
        (lambda: Diffusion(4, noise=0.0), "noise=0.0"),
        (lambda: Diffusion(4).misfit(np.zeros(16)), "kappa"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(BadArgument, match=message):
        make()
