"""§4.1.2 and App. D.3: the projection error, ζ² and what interpolation does to it."""

from __future__ import annotations

import math

import numpy as np

from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.lab.studies.theory.appendix.registry import Case, inequality
from targetopt.theory.bounds import projection_error_bound
from targetopt.theory.exact_problem import (
    Array,
    ExactProblem,
    Rows,
    all_batches,
    batch_grams,
    sso_steps,
    unbiased_steps,
)
from targetopt.theory.measure import (
    expected_projection_error,
    objective_noise,
    surrogates,
)

Rng = np.random.Generator


def _instance(
    rng: Rng,
    *,
    interpolates: bool = False,
    largest: float = 1.0,
    sizes: tuple[int, ...] = (3, 4, 6),
) -> tuple[ExactProblem, Rows, Array, float]:
    """A problem of 6 examples and 2 parameters, all its batches, an iterate and a step."""
    problem = random_problem(rng, n=6, d=2, interpolates=interpolates)
    rows = all_batches(6, int(rng.choice(sizes)))
    L = problem.target_constants(6).L
    eta = float(rng.uniform(0.1, 1)) * largest / L
    return problem, rows, rng.normal(size=2) * 2, eta


@inequality(
    "App. D.3, gradient descent",
    label="app:proj-err-cnt",
    says="‖θ̃ − ω_m‖² ≤ e^{−m/κ_g}‖θ̃ − ω_0‖²; for quadratics even e^{−2m/κ_g}",
)
def _inner_descent(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng)
    m = int(rng.integers(1, 30))
    g = problem.gradient(problem.X @ theta)[rows[0]]
    exact = eta * sso_steps(problem.X, rows)[0] @ g
    made = eta * sso_steps(problem.X, rows, m)[0] @ g
    spectra = np.linalg.eigvalsh(batch_grams(problem.X, rows))
    rate = float(spectra.min() / spectra.max())
    start = float(exact @ exact)
    left = float(((exact - made) ** 2).sum())
    return Case(left, math.exp(-m * rate) * start, math.exp(-2 * m * rate) * start)


@inequality(
    "App. D.3, ζ²",
    label="prop:proj-err",
    says="2E‖θ̃_{t+1} − θ̄_{t+1}‖² ≤ ζ_t²",
)
def _zeta(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng)
    g = problem.gradient(problem.X @ theta)
    difference = sso_steps(problem.X, rows) - unbiased_steps(problem.X, rows)
    moved = eta * np.einsum("kdb,kb->kd", difference, g[rows])
    right = surrogates(problem, rows, theta, eta).zeta_squared
    return Case(2 * float((moved**2).sum(axis=1).mean()), right, right)


@inequality(
    "§4.1.2, variance",
    label="sec:proj-error-control",
    says="min E[g̃] − E[min g̃] ≤ (2/μ_g) E‖∇g̃(θ') − E∇g̃(θ')‖²; even with 1/(2μ_g)",
)
def _variance(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng)
    X, b = problem.X, rows.shape[1]
    g = problem.gradient(X @ theta)
    meeting = -eta * np.linalg.pinv(X) @ g  # θ' − θ_t
    slopes = np.einsum("kbd,kb->kd", X[rows], g[rows] + (X @ meeting)[rows] / eta) / b
    variance = float(((slopes - slopes.mean(axis=0)) ** 2).sum(axis=1).mean())
    found = surrogates(problem, rows, theta, eta)
    return Case(found.excess_g, 2 / found.mu_g * variance, variance / (2 * found.mu_g))


@inequality(
    "Prop. 4.3",
    label="prop:proj-err",
    says="E ε² ≤ L_f²ζ² + (4L_f²/μ_g) e^{−m/κ_g}[ℓ(z_t) − ℓ* + σ_z²]: needs η ≤ 1/L, not among its "
    "assumptions",
    printed_holds=False,
    instances=40,
)
def _proposition_43(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng, largest=200.0 if as_printed else 1.0, sizes=(4, 6))
    m = int(rng.integers(1, 30))
    left = expected_projection_error(problem, rows, sso_steps(problem.X, rows, m), theta, eta)
    found = surrogates(problem, rows, theta, eta)
    constants = problem.target_constants(rows.shape[1])
    right = projection_error_bound(
        lipschitz=float(np.linalg.norm(problem.X, 2)) / math.sqrt(problem.n),
        zeta_squared=found.zeta_squared,
        inner_steps=m,
        mu_g=found.mu_g,
        L_g=found.L_g,
        gap=float(problem.objective(theta) - problem.objective(problem.minimiser)),
        sigma_z_squared=max(objective_noise(problem, rows), 0.0),
        eta=min(eta, 1 / constants.L),  # the formula as printed has no such condition
        L=constants.L,
    )
    return Case(left, right, right)


@inequality(
    "§4.1.2, interpolation",
    label="sec:proj-error-control",
    says="'under interpolation ζ_t² = 0': only at z_t = z*; ζ_t² ≤ (8/μ)ηL(1 + n/b)[ℓ(z_t) − ℓ*]",
    printed_holds=False,
)
def _interpolation(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng, interpolates=True, sizes=(3, 4))
    found = surrogates(problem, rows, theta, eta)
    gap = float(problem.objective(theta) - problem.objective(problem.minimiser))
    constants = problem.target_constants(rows.shape[1])
    ratio = 1 + problem.n / rows.shape[1]
    least = min(found.mu_g, found.mu_q)
    return Case(found.zeta_squared, 0.0, 8 / least * eta * constants.L * ratio * gap)


@inequality(
    "§4.1.2, full batch",
    label="sec:proj-error-control",
    says="ζ_t² = 0 for the full batch",
    relation="=",
)
def _full_batch(rng: Rng, as_printed: bool) -> Case:
    problem, rows, theta, eta = _instance(rng, sizes=(6,))
    found = surrogates(problem, rows, theta, eta)
    # relative to the surrogate's own decrease: the difference of two equal numbers
    decrease = 0.5 * eta * float(np.mean(problem.gradient(problem.X @ theta) ** 2))
    return Case((found.excess_g + found.excess_q) / decrease, 0.0, 0.0)
