"""Lemma 4.1, m = 1 and m = ∞ on the real optimiser, and its steps against the closed forms of theory."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from targetopt import theory
from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.linear import Batches, Run, sample_order
from targetopt.theory.driven import drive

TOLERANCE = {"rtol": 1e-12, "atol": 1e-12}


class Weights(nn.Module):
    """z = Xw, in float64."""

    def __init__(self, theta):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def forward(self, X):
        return torch.from_numpy(np.ascontiguousarray(X)) @ self.w


def sso_step(problem, rows, theta, eta, inner, *, analysis=False):
    """One step of to.SSO from θ on the batch ``rows``."""
    model = Weights(theta)
    opt = to.SSO(model.parameters(), lr=eta, inner=inner)
    oracle = to.LossOracle(problem.loss.rows(torch.as_tensor(rows)))
    whole = (lambda: model(problem.X)) if analysis else None
    opt.step(lambda: model(problem.X[rows]), oracle, regularise_on=whole)
    return model.w.detach().numpy()


@pytest.fixture(params=range(4))
def case(request):
    rng = np.random.default_rng(request.param)
    problem = random_problem(rng, n=7, d=3)
    return problem, rng.normal(size=3), rng


@pytest.mark.parametrize("b", [1, 2, 3, 5, 7])
def test_sso_is_projected_sgd_in_target_space(case, b):
    """Lemma 4.1: z̃ minimises ‖z − (z_t − η∇ℓ_B)‖ on the batch's coordinates, over z = Xθ."""
    problem, theta, rng = case
    rows, eta = rng.permutation(7)[:b], 0.3
    z = problem.X @ theta
    half = z[rows] - eta * problem.gradient(z)[rows]
    stepped = sso_step(problem, rows, theta, eta, to.Exact())
    # the projection, from another route: least squares for the new weights
    weights, *_ = np.linalg.lstsq(problem.X[rows], half, rcond=None)
    np.testing.assert_allclose(problem.X[rows] @ stepped, problem.X[rows] @ weights, **TOLERANCE)


@pytest.mark.parametrize("b", [1, 3, 7])
def test_analysis_surrogate_is_sgd_projected_onto_all_targets(case, b):
    """Lemma D.1: q̃ projects in the whole space, with η' = ηn."""
    problem, theta, rng = case
    rows, eta = rng.permutation(7)[:b], 0.05
    z = problem.X @ theta
    estimate = np.zeros(7)
    estimate[rows] = problem.gradient(z)[rows] / b  # Euclidean gradient of ℓ_B
    half = z - 7 * eta * estimate
    projector = problem.X @ np.linalg.pinv(problem.X)
    stepped = sso_step(problem, rows, theta, eta, to.Exact(), analysis=True)
    np.testing.assert_allclose(problem.X @ stepped, projector @ half, **TOLERANCE)


def test_one_inner_step_is_sgd_whatever_eta(case):
    problem, theta, rng = case
    rows, alpha = rng.permutation(7)[:4], 0.07
    slope = problem.X[rows].T @ problem.gradient(problem.X @ theta)[rows] / 4
    for eta in (1e-3, 0.5, 100.0):
        inner = to.GradientDescent(step_size=alpha, max_steps=1)
        stepped = sso_step(problem, rows, theta, eta, inner)
        np.testing.assert_allclose(stepped, theta - alpha * slope, **TOLERANCE)


def test_exact_steps_on_least_squares_are_newton_with_step_eta(case):
    problem, theta, _ = case
    y = np.linspace(-1, 1, 7)
    squares = theory.ExactProblem(problem.X, to.losses.Squared(torch.from_numpy(y)))
    newton = np.linalg.solve(problem.X.T @ problem.X, problem.X.T @ (problem.X @ theta - y))
    for eta in (0.1, 0.5, 1.0):
        stepped = sso_step(squares, np.arange(7), theta, eta, to.Exact())
        np.testing.assert_allclose(stepped, theta - eta * newton, **TOLERANCE)


@pytest.mark.parametrize("m", [1, 2, 7, 40, math.inf])
@pytest.mark.parametrize("analysis", [False, True])
def test_step_matrices_are_what_the_optimiser_does(case, m, analysis):
    """θ − ηR_B g_B against to.SSO, exact and with m steps of gradient descent, g̃ and q̃."""
    problem, theta, rng = case
    rows, eta = rng.permutation(7)[:4], 0.3
    table = theory.unbiased_steps if analysis else theory.sso_steps
    relative = 0.5 / float(np.linalg.eigvalsh(problem.X.T @ problem.X)[-1])
    R = table(problem.X, rows[None], m, relative_step=relative)[0]
    expected = theta - eta * R @ problem.gradient(problem.X @ theta)[rows]
    inner = (
        to.Exact() if math.isinf(m) else to.GradientDescent(step_size=eta * relative, max_steps=m)
    )
    stepped = sso_step(problem, rows, theta, eta, inner, analysis=analysis)
    np.testing.assert_allclose(stepped, expected, **TOLERANCE)


@pytest.mark.parametrize("m", [1, 3, math.inf])
def test_step_matrices_are_what_the_compiled_driver_does(m):
    """A whole run of the driver, batch after batch; and `trace` measures it."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    problem = theory.ExactProblem(X, to.losses.Squared(torch.from_numpy(y)))
    eta, relative = 0.2, 0.05
    inner = (
        to.Exact() if math.isinf(m) else to.GradientDescent(step_size=eta * relative, max_steps=m)
    )
    run = Run(X, y, loss=to.losses.Squared, inner=inner, lr=eta, batch_size=4, seed=3)
    path, batches = [run.theta.copy()], []
    for t in range(9):
        epoch, position = divmod(t, 3)
        rows = sample_order(12, 3, epoch)[4 * position : 4 * position + 4]
        assert run.advance(1)
        R = theory.sso_steps(X, rows[None], m, relative_step=relative)[0]
        expected = path[-1] - eta * R @ problem.gradient(X @ path[-1])[rows]
        np.testing.assert_allclose(run.theta, expected, **TOLERANCE)
        path.append(run.theta.copy())
        batches.append(rows)
    every = theory.all_batches(12, 4)
    steps = theory.sso_steps(X, every, m, relative_step=relative)
    found = theory.trace(
        problem, np.stack(path), np.stack(batches), np.full(9, eta), all_rows=every, steps=steps
    )
    assert found.distance.shape == (10,)
    assert found.projection_error.shape == found.zeta_squared.shape == (9,)
    assert (found.gap >= 0).all()
    assert (found.expected_error > 0).all()
    np.testing.assert_allclose(found.gap, 0.5 * found.distance**2, rtol=1e-8)  # squared loss, L = 1


def test_projection_error_of_a_live_model_is_the_closed_form():
    problem = random_problem(np.random.default_rng(4), n=8, d=3)
    theta, rows, eta = np.array([0.5, -1.0, 0.2]), np.array([1, 4, 6, 7]), 0.2
    model = Weights(theta)
    measured = theory.measured_projection_error(
        model,
        lambda net: net(problem.X[rows]),
        lambda net: net(problem.X),
        to.LossOracle(problem.loss.rows(torch.as_tensor(rows))),
        lr=eta,
        inner=to.Exact(),
        reference=to.Exact(),
    )
    np.testing.assert_array_equal(model.w.detach().numpy(), theta)  # untouched
    exact = theory.expected_projection_error(
        problem, rows[None], theory.sso_steps(problem.X, rows[None]), theta, eta
    )
    assert measured == pytest.approx(math.sqrt(exact), rel=1e-10)


def test_projection_error_of_a_network_vanishes_for_the_full_batch():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    x, y = torch.randn(6, 2).double(), torch.randn(6).double()
    error = theory.measured_projection_error(
        net,
        lambda model: model(x),
        lambda model: model(x),
        to.LossOracle(to.losses.Squared(y)),
        lr=0.1,
        inner=to.LBFGS(max_steps=500),
    )
    assert error < 1e-6


def test_majorisation_and_descent_on_a_network():
    """Lemma C.1 needs neither convexity nor linearity: η ≤ 1/L and inner descent suffice."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).double()
    x, y = torch.randn(20, 3).double(), torch.randn(20).sign().double()
    opt = to.SSO(net.parameters(), lr=4.0, inner=to.Armijo(max_steps=5))  # 1/L of the logistic loss
    oracle = to.LossOracle(to.losses.Logistic(y))
    reports = [opt.step(lambda: net(x), oracle) for _ in range(30)]
    values = np.array([r.loss for r in reports])
    decreases = np.array([r.surrogate_decrease for r in reports])
    assert (values[1:] <= values[:-1] - decreases[:-1] + 1e-14).all()


def test_sampled_runs_average_to_the_exact_expectation():
    """`simulate` against the exact mean of θ, which is linear for least squares."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    problem = theory.ExactProblem(X, to.losses.Squared(torch.from_numpy(y)))
    rows = theory.all_batches(6, 2)
    R = theory.sso_steps(X, rows)
    runs = theory.simulate(
        problem, rows, R, np.full(20, 0.3), start=[3.0, -2.0], seeds=4000, rng=rng
    )
    matrices = np.stack([r @ X[k] for r, k in zip(R, rows, strict=True)])
    offsets = np.stack([r @ y[k] for r, k in zip(R, rows, strict=True)])
    theta = np.array([3.0, -2.0])
    for _ in range(20):
        theta = theta - 0.3 * (matrices.mean(axis=0) @ theta - offsets.mean(axis=0))
    spread = runs.theta.std(axis=0, ddof=1) / math.sqrt(4000)
    assert (np.abs(runs.theta.mean(axis=0) - theta) < 4.5 * spread).all()


@pytest.mark.parametrize("b", [1, 3, 7])
def test_the_compiled_driver_makes_the_runs_the_tables_predict(case, b):
    """`drive` against θ − η R_B g_B on the same batches: iterates, distances, projection errors."""
    problem, theta, _ = case
    etas = 0.4 / np.sqrt(np.arange(1, 31))
    runs = drive(problem, b, to.Exact(), etas, start=theta, seeds=3, first_seed=11)
    for k in range(3):
        batches = Batches(problem.n, b, seed=11 + k, sampling="independent")
        here = theta
        for t, eta in enumerate(etas):
            rows = batches.rows(t)[None]
            z = problem.X @ here
            expected = np.sqrt(np.mean((z - problem.solution) ** 2))
            np.testing.assert_allclose(runs.distance[t, k], expected, **TOLERANCE)
            answer = problem.gradient(z)[rows[0]]
            move = theory.sso_steps(problem.X, rows)[0] @ answer
            ideal = theory.unbiased_steps(problem.X, rows)[0] @ answer
            error = eta * np.sqrt(np.mean((problem.X @ (move - ideal)) ** 2))
            np.testing.assert_allclose(runs.projection_error[t, k], error, rtol=1e-9, atol=1e-12)
            here = here - eta * move
        np.testing.assert_allclose(runs.theta[k], here, rtol=1e-10, atol=1e-12)


def test_driven_runs_differ_between_seeds_and_repeat_with_them(case):
    problem, theta, _ = case
    etas = np.full(5, 0.2)
    options = {"etas": etas, "start": theta, "seeds": 3}
    first = drive(problem, 2, to.Armijo(max_steps=5), **options)
    again = drive(problem, 2, to.Armijo(max_steps=5), **options)
    shifted = drive(problem, 2, to.Armijo(max_steps=5), **options, first_seed=1)
    np.testing.assert_array_equal(first.theta, again.theta)
    np.testing.assert_array_equal(first.theta[1:], shifted.theta[:-1])
    assert len(np.unique(first.theta[:, 0])) == 3


def test_a_driven_run_that_diverges_is_refused(case):
    problem, theta, _ = case
    with pytest.raises(to.BadArgument, match="diverged"):
        drive(problem, 1, to.Exact(), np.full(4000, 50.0), start=theta, seeds=1)
