"""The bounds hold where they should, are refused where they say nothing, and fail where the paper errs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import targetopt as to
from targetopt import theory
from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.lab.studies.theory.survey import (
    METHODS,
    SCHEDULES,
    projection_curve,
    run_setting,
    survey,
)

CLASS = {"L": 2.0, "mu": 0.5, "sigma": 0.3}


def test_printed_and_corrected_constants_agree_with_the_paper_by_hand():
    # κ = 4, ρ = 7/8
    printed = theory.constant_step_bound(3.0, 8, **CLASS, error=0.1, version="printed")
    assert printed.contraction == pytest.approx(3 * (7 / 8) ** 4)
    assert printed.noise == pytest.approx(0.3 / math.sqrt(0.5 * 2))
    assert printed.projection == pytest.approx(0.2 / (1 - math.sqrt(7 / 8)))
    decay = theory.ExponentialStep(50, 2.0)
    alpha, log = (2 / 50) ** (1 / 50), math.log(25)
    b = theory.exponential_step_bound(3.0, decay, **CLASS, error=0.1, version="printed")
    c1, c2 = math.exp(1 / 16 * 4 / log), math.exp(2 * math.log(50) / (8 * log))
    assert b.contraction == pytest.approx(c1 * math.exp(-50 / 16 * alpha / log) * 3)
    assert b.noise == pytest.approx(16 * c1 * log / (2 * math.e * alpha * math.sqrt(50)) * 0.3)
    assert b.projection == pytest.approx(0.2 * c2)


def test_general_form_reduces_to_constant_step():
    etas = np.full(400, 0.25)  # 1/(2L)
    general = theory.distance_bound(3.0, etas, **CLASS, errors=0.1)
    closed = theory.constant_step_bound(3.0, 400, **CLASS, error=0.1)
    assert general.contraction[-1] == pytest.approx(closed.contraction)
    assert general.noise[-1] == pytest.approx(closed.noise, rel=1e-3)
    assert general.projection[-1] == pytest.approx(closed.projection, rel=1e-3)
    assert general.total[-1] <= closed.total


@pytest.mark.parametrize("version", ["printed", "corrected", "sharp"])
def test_general_form_is_the_formula(version):
    """Against the products and sums written out."""
    rng = np.random.default_rng(0)
    etas = rng.uniform(0.01, 0.25, size=12)
    got = theory.distance_bound(1.5, etas, **CLASS, errors=0.2, version=version).total[-1]
    rho = 1 - 0.5 * etas
    later = np.array([np.prod(rho[t + 1 :]) for t in range(12)])
    first = math.sqrt(np.prod(rho) * 1.5**2 + 2 * 0.3**2 * np.sum(later * etas**2))
    last = {
        "printed": 0.4 * later.sum(),
        "corrected": 0.4 * np.sqrt(later).sum(),
        "sharp": 0.2 * np.sqrt(later).sum(),
    }
    assert got == pytest.approx(first + last[version])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: theory.distance_bound(1, [0.3], L=2.0, mu=0.5, sigma=0, errors=0), "1/(2L)"),
        (lambda: theory.distance_bound(1, [0.0], L=2.0, mu=0.5, sigma=0, errors=0), "η_t"),
        (lambda: theory.distance_bound(1, [0.1], L=2.0, mu=0.0, sigma=0, errors=0), "μ > 0"),
        (lambda: theory.distance_bound(1, [0.1], L=2.0, mu=3.0, sigma=0, errors=0), "L ≥ μ"),
        (lambda: theory.distance_bound(1, [0.1], L=2.0, mu=1.0, sigma=0, errors=-1), "ε_t ≥ 0"),
        (lambda: theory.constant_step_bound(1, 5, L=1, mu=0, sigma=0, error=0), "strongly convex"),
        (lambda: theory.constant_step_bound(1, 5, L=1, mu=1, sigma=0, error=-1), "ε ≥ 0"),
        (lambda: theory.ExponentialStep(10, 10.0), "β < T"),
        (lambda: theory.stationarity(0.0, 1.0, 5), "β > 0"),
        (lambda: theory.stationarity(1.0, -1.0, 5), "h(θ_0) ≥ h*"),
        (lambda: theory.cost_model(1.0, 2.0, kappa_theta=3.0), "0 < ε < 1"),
        (
            lambda: theory.cost_model(1.0, 0.1, kappa_theta=3.0, kappa_inner=math.inf),
            "full column rank",
        ),
    ],
)
def test_refused_outside_its_assumptions(call, word):
    with pytest.raises(theory.OutsideAssumptions) as refusal:
        call()
    assert any(word in reason for reason in refusal.value.failed), refusal.value.failed


def test_refusal_names_every_failing_assumption():
    with pytest.raises(theory.OutsideAssumptions) as refusal:
        theory.constant_step_bound(-1.0, 5, L=math.inf, mu=0.0, sigma=0.0, error=0.0)
    assert len(refusal.value.failed) == 3
    assert refusal.value.statement == "Thm 4.2 (a)"


def test_proposition_needs_batches_of_full_rank_and_a_small_step():
    problem = random_problem(np.random.default_rng(1), n=6, d=3)
    theta = np.ones(3)
    with pytest.raises(theory.OutsideAssumptions, match="full column rank"):
        theory.proposition_4_3(
            problem, theory.all_batches(6, 2), theta, 0.1, 5, sigma_z_squared=0.0
        )
    with pytest.raises(theory.OutsideAssumptions, match="η ≤ 1/L"):
        theory.proposition_4_3(
            problem, theory.all_batches(6, 6), theta, 50.0, 5, sigma_z_squared=0.0
        )


def test_one_error_per_step_is_for_the_sharp_bound():
    with pytest.raises(to.BadArgument, match="version='sharp'"):
        theory.distance_bound(1, [0.1, 0.1], **CLASS, errors=[1, 2], version="corrected")
    with pytest.raises(to.BadArgument, match="one value per step"):
        theory.distance_bound(1, [0.1, 0.1], **CLASS, errors=[1, 2, 3])


@given(
    steps=st.integers(2, 400),
    beta=st.floats(0.05, 1.9),
    kappa=st.floats(1, 1e4),
)
@settings(max_examples=60, deadline=None)
def test_sums_of_the_exponential_step_are_bounded(steps, beta, kappa):
    step = theory.ExponentialStep(steps, beta)
    zeta = 4 * kappa
    assert step.reach() >= step.reach_bound() * (1 - 1e-12)
    assert step.noise_sum(kappa) <= step.noise_bound(kappa) * (1 + 1e-9)
    total = step.forgetting_sum(zeta)
    assert total <= step.forgetting_bound(zeta) * (1 + 1e-9) <= (total + 1) * (1 + 1e-8)
    assert step.forgetting_bound(zeta) <= step.forgetting_closed(zeta) * (1 + 1e-9)
    assert step.proportional_sum(zeta) <= step.proportional_bound(zeta)


def test_errors_of_constant_size_are_never_forgotten():
    """C_T/T decreases only like ln ln T / ln T, where Lemma D.8 has 1/T."""
    shares = [theory.ExponentialStep(T).forgetting_sum(40.0) / T for T in (10**2, 10**4, 10**6)]
    assert shares[0] == pytest.approx(0.906, abs=1e-3)
    assert shares[-1] > 0.4
    assert sorted(shares, reverse=True) == shares


def test_measured_curves_stay_below_the_bounds():
    """A small lane; the complete one is the slow test below."""
    found = survey(3, seeds=200, steps=80)
    assert len(found) == 3 * len(METHODS) * len(SCHEDULES)
    assert max(c.rms_ratio for c in found) <= 1
    assert max(c.mean_ratio for c in found) <= 1
    assert np.nanmax([c.closed_ratio for c in found]) <= 1


@pytest.mark.slow
def test_measured_curves_stay_below_the_bounds_on_ninety_problems():
    found = survey(90, seeds=200, steps=200)
    assert {c.setting.problem for c in found} == set(range(90))
    # the full batch draws nothing: at least fifty problems are stochastic, and none is trivial
    stochastic = {c.setting.problem for c in found if c.setting.batch_size < c.setting.n}
    assert len(stochastic) >= 50
    assert min(c.rms_ratio for c in found) > 0.01
    assert max(c.rms_ratio for c in found) <= 1
    assert max(c.mean_ratio for c in found) <= 1
    assert np.nanmax([c.closed_ratio for c in found]) <= 1
    constant = [c.printed_ratio for c in found if c.setting.schedule == "constant"]
    assert max(constant) <= 1  # Thm 4.2 (a) is right as printed


def test_bound_is_not_vacuous_without_projection_error():
    """With q̃ there is none: the bound then follows the run down to the noise."""
    rng = np.random.default_rng(3)
    problem = random_problem(rng, n=8, d=2, interpolates=True)
    etas = np.full(100, problem.target_constants(8).step)
    runs, curve = run_setting(problem, 8, "analysis", etas, start=np.ones(2), seeds=1, rng=rng)
    # full batch, κ = 1: the distance halves each step, the bound shrinks by 2^{-1/2}
    assert runs.distance[10, 0] == pytest.approx(runs.distance[0, 0] / 2**10)
    assert curve.total[9] == pytest.approx(runs.distance[0, 0] / 2**5)


def test_projection_error_decays_with_m_and_stays_below_the_proposition():
    problem = random_problem(np.random.default_rng(5), n=8, d=2)
    eta = 0.5 / problem.target_constants(8).L
    theta = problem.minimiser + 1.0
    ms = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    half = projection_curve(problem, 4, ms, theta, eta)
    assert (half.measured <= half.bound).all()
    assert (np.diff(half.inexact) < 0).all()
    # for m large the floor L_f²ζ² is left: a different projection, which no m removes
    exact = theory.expected_projection_error(
        problem,
        theory.all_batches(8, 4),
        theory.sso_steps(problem.X, theory.all_batches(8, 4)),
        theta,
        eta,
    )
    assert exact > 0
    assert half.measured[-1] >= exact * (1 - 1e-6) - 2 * math.sqrt(exact * half.inexact[-1])
    full = projection_curve(problem, 8, ms, theta, eta)
    np.testing.assert_allclose(full.measured, full.inexact, rtol=1e-6, atol=1e-28)


@pytest.mark.parametrize("seed", range(5))
def test_projection_error_falls_like_exp_of_minus_m_over_kappa(seed):
    """ε itself, not ε²: the slowest direction shrinks by 1 − 1/κ_g a step."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, n=12, d=3)
    eta = 0.5 / problem.target_constants(12).L
    probe = projection_curve(problem, 12, (1, 2), problem.minimiser + 1.0, eta)
    span = tuple(int(probe.kappa_g * k) for k in (6, 7, 8, 9))
    curve = projection_curve(problem, 12, span, problem.minimiser + 1.0, eta)
    slope, _ = np.polyfit(span, 0.5 * np.log(curve.inexact), 1)
    assert slope == pytest.approx(math.log1p(-1 / curve.kappa_g), rel=1e-3)


@pytest.mark.parametrize("b", [1, pytest.param(3, marks=pytest.mark.slow), 5])
def test_interpolation_noise_vanishes_and_convergence_is_linear(b):
    rng = np.random.default_rng(7)
    problem = random_problem(rng, n=9, d=2, interpolates=True)
    assert theory.gradient_noise(problem, b) < 1e-25
    rows = theory.all_batches(9, b)
    assert abs(theory.objective_noise(problem, rows)) < 1e-25
    etas = np.full(1500, problem.target_constants(b).step)
    runs, curve = run_setting(problem, b, "sso", etas, start=np.ones(2), seeds=200, rng=rng)
    rms = np.sqrt((runs.distance**2).mean(axis=1))
    assert (rms[1:] <= curve.total + 1e-13).all()
    live = rms > 1e-10 * rms[0]
    t = np.arange(len(rms))[live]
    fit = np.polyfit(t, np.log(rms[live]), 1)
    residual = np.log(rms[live]) - np.polyval(fit, t)
    assert fit[0] < -1e-3
    assert residual.std() < 0.15 * np.ptp(np.log(rms[live]))  # a straight line in the log
    assert rms[-1] < 1e-3 * rms[0]


def test_zeta_vanishes_with_the_gap_under_interpolation_but_not_before():
    rng = np.random.default_rng(8)
    problem = random_problem(rng, n=8, d=2, interpolates=True)
    rows = theory.all_batches(8, 3)
    values = [
        theory.surrogates(problem, rows, problem.minimiser + size, 0.05).zeta_squared
        for size in (1.0, 0.1, 0.01, 0.0)
    ]
    assert values[0] > 0  # 'ζ_t² = 0 under interpolation' is false away from z*
    np.testing.assert_allclose(np.array(values[:3]) / values[0], [1, 1e-2, 1e-4], rtol=1e-6)
    assert values[3] < 1e-20 * values[0]


def test_noise_falls_with_the_batch_and_vanishes_for_all_data():
    problem = random_problem(np.random.default_rng(9), n=8, d=2)
    sizes = range(3, 9)
    sigma = [theory.gradient_noise(problem, b) for b in sizes]
    sigma_z = [theory.objective_noise(problem, theory.all_batches(8, b)) for b in sizes]
    zeta = [
        theory.surrogates(problem, theory.all_batches(8, b), problem.minimiser + 1, 0.05)
        for b in sizes
    ]
    for values in (sigma, sigma_z, [z.zeta_squared for z in zeta]):
        assert (np.diff(values) < 0).all()
        assert abs(values[-1]) < 1e-10 * values[0]


@pytest.mark.parametrize("b", [1, 2, 5])
def test_gradient_noise_is_the_expectation(b):
    """The closed form against the sum over all batches, in the mean norm."""
    problem = random_problem(np.random.default_rng(b), n=6, d=2)
    g = problem.gradient(problem.solution)
    rows = theory.all_batches(6, b)
    estimates = np.zeros((len(rows), 6))
    np.put_along_axis(estimates, rows, g[rows] * 6 / b, axis=1)
    np.testing.assert_allclose(estimates.mean(axis=0), g)
    direct = ((estimates - g) ** 2).mean(axis=1).mean()
    assert theory.gradient_noise(problem, b) == pytest.approx(direct)


@pytest.mark.parametrize("b", [0, -1, 7])
def test_gradient_noise_of_no_batch_is_refused(b):
    problem = random_problem(np.random.default_rng(0), n=6, d=2)
    with pytest.raises(to.BadArgument, match=rf"batch_size={b} must lie between 1 and n=6"):
        theory.gradient_noise(problem, b)


def test_zeta_is_the_difference_of_minima():
    """excess_g and excess_q against minimising each surrogate as a function of θ."""
    problem = random_problem(np.random.default_rng(11), n=6, d=2)
    X, theta, eta = problem.X, np.array([0.3, -0.7]), 0.2
    g = problem.gradient(X @ theta)
    rows = theory.all_batches(6, 3)

    def minimum(linear, matrix):
        return -0.5 * linear @ np.linalg.solve(matrix, linear)

    whole = X.T @ X / (6 * eta)
    expected = minimum(X.T @ g / 6, whole)
    on_batches = [minimum(X[r].T @ g[r] / 3, X[r].T @ X[r] / (3 * eta)) for r in rows]
    on_all = [minimum(X[r].T @ g[r] / 3, whole) for r in rows]
    found = theory.surrogates(problem, rows, theta, eta)
    assert found.excess_g == pytest.approx(expected - np.mean(on_batches))
    assert found.excess_q == pytest.approx(expected - np.mean(on_all))
    assert found.mu_q == pytest.approx(np.linalg.eigvalsh(whole)[0])


def test_bound_holds_for_the_losses_of_the_library_on_a_bounded_set():
    """Logistic: μ on |z| ≤ R, met by the curvature there."""
    loss = to.losses.Logistic(torch.tensor([1.0, -1.0] * 50, dtype=torch.float64))
    L, mu = theory.loss_constants(loss, radius=3.0)
    z = torch.linspace(-3, 3, 100, dtype=torch.float64)
    largest, least = theory.curvature_range(loss, z)
    assert least == pytest.approx(mu)
    assert largest <= L
