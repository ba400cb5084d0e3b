"""L, μ, κ computed and cross-checked; the cost model; advice that is worth taking."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import targetopt as to
from targetopt import theory
from targetopt.lab import problems
from targetopt.lab.studies.theory.appendix.deterministic import random_problem
from targetopt.theory import counterexample

LABELS = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
LOSSES = {
    "squared": to.losses.Squared(LABELS),
    "logistic": to.losses.Logistic(LABELS),
    "huber": to.losses.Huber(LABELS),
    "ridged logistic": to.losses.Ridged(to.losses.Logistic(LABELS), 0.1),
    "ridged huber": to.losses.Ridged(to.losses.Huber(LABELS, 0.5), 0.3),
    "gaussian": to.losses.GaussianKL(LABELS, 0.25),
}


@pytest.mark.parametrize("name", LOSSES)
@given(targets=st.lists(st.floats(-50, 50), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_curvature_lies_between_mu_and_L(name, targets):
    L, mu = theory.loss_constants(LOSSES[name])
    largest, least = theory.curvature_range(LOSSES[name], torch.tensor(targets).double())
    assert mu - 1e-12 <= least <= largest <= L + 1e-12


@pytest.mark.parametrize("radius", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "loss", [to.losses.Logistic(torch.ones(201)), to.losses.Poisson(torch.ones(201))]
)
def test_local_constants_are_attained_at_the_edge(loss, radius):
    L, mu = theory.loss_constants(loss, radius=radius)
    z = torch.linspace(-radius, radius, 201, dtype=torch.float64)
    largest, least = theory.curvature_range(loss, z)
    assert least == pytest.approx(mu)
    assert largest == pytest.approx(L)


def test_cross_entropy_curvature_is_a_matrix():
    loss = to.losses.CrossEntropy(torch.tensor([0, 2]))
    L, mu = theory.loss_constants(loss)
    largest, least = theory.curvature_range(loss, torch.randn(2, 3, dtype=torch.float64))
    assert mu == 0.0
    assert -1e-12 <= least <= largest <= L == 0.5
    ridged = to.losses.Ridged(loss, 0.2)
    z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(ridged.value(z).sum(), z)
    torch.testing.assert_close(slope, ridged.gradient(z.detach()))
    assert theory.curvature_range(ridged, z.detach())[1] == pytest.approx(0.2)


def test_no_constant_is_refused_with_the_way_out():
    with pytest.raises(theory.OutsideAssumptions, match="radius="):
        theory.loss_constants(to.losses.Poisson(torch.ones(1)))
    with pytest.raises(to.BadArgument, match="radius"):
        theory.loss_constants(LOSSES["logistic"], radius=-1)


@pytest.mark.parametrize("b", [1, 2, 6])
def test_target_constants_bound_the_stochastic_losses(b):
    """κ = (n/b)(L/μ): the curvature of ℓ_B in the mean norm, written out."""
    constants = theory.TargetConstants(L=2.0, mu=0.5, n=6, batch_size=b)
    hessian = np.zeros(6)
    hessian[:b] = 2.0 / b  # Euclidean, of (1/b) Σ ℓ_i with every ℓ_i'' = L
    L, mu, eta = constants.euclidean
    assert pytest.approx(hessian.max()) == L
    assert mu == pytest.approx(0.5 / 6)
    assert constants.smoothness == pytest.approx(6 * hessian.max())  # ‖·‖²_mean = ‖·‖²/n
    assert constants.kappa == pytest.approx(L / mu)
    assert eta == pytest.approx(1 / (2 * L))
    with pytest.raises(to.BadArgument, match="batch_size"):
        theory.TargetConstants(1.0, 1.0, 5, 6)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_parameter_constants_against_the_hessian(sparse, bias):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)) * (rng.random((30, 4)) < 0.6)
    found = theory.parameter_constants(
        sp.csr_array(X) if sparse else X, 0.35, 0.1, bias=bias, weight_decay=0.01
    )
    whole = np.hstack([X, np.ones((30, 1))]) if bias else X
    loss = to.losses.Ridged(to.losses.Logistic(torch.ones(30)), 0.1)
    for _ in range(20):
        theta = rng.normal(size=whole.shape[1]) * 3
        w = loss.curvature(torch.from_numpy(whole @ theta)).numpy()
        spectrum = np.linalg.eigvalsh(whole.T @ (w[:, None] * whole) / 30) + 0.01
        assert found.mu <= spectrum[0] * (1 + 1e-12)
        assert spectrum[-1] <= found.L * (1 + 1e-12)
    flat = np.linalg.eigvalsh(whole.T @ whole / 30)
    assert pytest.approx(0.35 * flat[-1] + 0.01) == found.L  # attained at θ = 0
    assert found.mu == pytest.approx(0.1 * flat[0] + 0.01)
    assert found.kappa == pytest.approx(found.L / found.mu)


def test_rank_deficient_data_have_curvature_on_their_rows_only():
    X = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    found = theory.parameter_constants(X, 1.0, 1.0)
    assert found.rank == 2
    assert found.mu == 0.0
    assert found.mu_on_rows == pytest.approx(3.0)
    wide = theory.parameter_constants(np.array([[1.0, 2.0, 2.0]]), 1.0, 1.0)
    assert (wide.rank, wide.mu, wide.mu_on_rows) == (1, 0.0, pytest.approx(9.0))
    with pytest.raises(to.BadArgument, match="zero"):
        theory.parameter_constants(np.zeros((2, 2)), 1.0, 1.0)


def test_exact_problem_of_a_library_problem():
    twin = theory.ExactProblem.of(problems.get("two-quadratics"))
    np.testing.assert_array_equal(twin.X, counterexample.two_quadratics().X)
    assert theory.ExactProblem.of(twin) is twin
    library = problems.get("breast_cancer", loss="squared", bias=True)
    exact = theory.ExactProblem.of(library)
    assert (exact.n, exact.d) == (library.n, library.linear.X.shape[1] + 1)
    model = library.model(seed=0)
    theta = np.append(model.weight.detach().numpy(), model.bias.detach().numpy())
    value = float(exact.objective(theta))
    assert value == pytest.approx(library.metrics(model)["loss"], rel=1e-12)
    constants = exact.parameter_constants()
    assert pytest.approx(library.parameter_smoothness) == constants.L
    with pytest.raises(theory.OutsideAssumptions, match=r"weight_decay=0\.1"):
        theory.ExactProblem.of(problems.get("breast_cancer", weight_decay=0.1))
    with pytest.raises(theory.OutsideAssumptions, match="one target per example"):
        theory.ExactProblem.of(problems.get("digits"))


@pytest.mark.parametrize(
    "loss",
    [
        to.losses.Squared(torch.zeros(3)),
        to.losses.Squared(torch.zeros(4, 1)),
        to.losses.Ridged(to.losses.Logistic(torch.ones(5)), 0.1),
        to.losses.CrossEntropy(torch.zeros(4, dtype=torch.long)),
    ],
    ids=["too few", "two axes", "too many", "classes"],
)
def test_labels_must_be_those_of_the_data(loss):
    with pytest.raises(to.BadArgument, match=r"loss=.*one label per row of X, shape \(4,\)"):
        theory.ExactProblem(np.ones((4, 2)), loss)


def test_problems_outside_exact_theory_are_refused():
    class Network:
        linear = None

    with pytest.raises(theory.OutsideAssumptions, match="linear targets"):
        theory.ExactProblem.of(Network())


def test_minimiser_is_exact_to_the_last_digits():
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), n=9, d=3)
        slope = problem.X.T @ problem.gradient(problem.solution) / problem.n
        assert np.abs(slope).max() < 1e-14
    separable = theory.ExactProblem(np.eye(2), to.losses.Logistic(torch.ones(2).double()))
    with pytest.raises(theory.OutsideAssumptions, match="separable"):
        _ = separable.minimiser


def test_best_inner_steps_is_the_best_by_trial():
    for tau in (0.0, 0.5, 3.0, 40.0, 5000.0):
        for kappa in (1.0, 1.5, 8.0, 300.0):
            m = np.arange(1, 20_000)
            cost = (tau + m) / -np.expm1(m * np.log1p(-1 / kappa)) if kappa > 1 else tau + m
            best = float(cost.min())
            chosen = cost[theory.best_inner_steps(tau, kappa) - 1]
            assert chosen == pytest.approx(best, rel=1e-12)


def test_cost_model_full_batch_agrees_with_the_paper_and_small_batches_do_not():
    printed = theory.cost_model(100.0, 1e-3, kappa_theta=500.0, version="printed")
    full = theory.cost_model(100.0, 1e-3, kappa_theta=500.0, kappa_target=1.0)
    assert full == printed
    assert printed.parametric == pytest.approx(100 * 500 * math.log(1e3))
    assert printed.target == pytest.approx(math.log(1e3) * (100 + 500 * math.log(1e3)))
    constants = theory.TargetConstants(1.0, 1.0, n=1000, batch_size=10)
    small = theory.cost_model(100.0, 1e-3, kappa_theta=500.0, kappa_target=constants.kappa)
    assert small.target_steps == pytest.approx(100 * full.target_steps)
    noisy = theory.cost_model(1.0, 0.01, kappa_theta=2.0, parameter_noise=5.0, target_noise=3.0)
    assert (noisy.parametric_steps, noisy.target_steps) == (500.0, 300.0)


def real_cost(problem, b, m, eta, relative, tau, wanted, seeds, limit):
    """Cost until the mean gap of real runs is below ``wanted``; inf beyond ``limit``."""
    rng = np.random.default_rng(5)
    rows = theory.sampled_batches(problem.n, b, 256, rng)
    R = theory.sso_steps(problem.X, rows, m, relative_step=relative)
    theta = np.zeros((1 if b == problem.n else seeds, problem.d))
    best = float(problem.objective(problem.minimiser))
    for t in range(1, int(min(4000, limit / (b * (tau + m)))) + 1):
        k = rng.integers(len(rows), size=len(theta))
        answers = np.take_along_axis(problem.gradient(theta @ problem.X.T), rows[k], axis=1)
        theta = theta - eta * np.einsum("sdb,sb->sd", R[k], answers)
        if float(problem.objective(theta).mean()) - best <= wanted:
            return t * b * (tau + m)
    return math.inf


@pytest.mark.parametrize("tau", [0.0, 30.0, 3000.0])
@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_advice_is_close_to_the_best_of_a_grid(kind, tau):
    """Within a factor 3 of the best of a grid of real runs (advice never saw the oracle)."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(64, 4)) * np.array([1.0, 0.7, 0.3, 0.15])
    z = X @ rng.normal(size=4) * 2 + 0.3 * rng.normal(size=64)
    signs = torch.where(torch.from_numpy(z) > 0, 1.0, -1.0).double()
    noisy = signs * torch.where(torch.from_numpy(rng.random(64)) < 0.1, -1.0, 1.0)
    loss = (
        to.losses.Squared(torch.from_numpy(z)) if kind == "squared" else to.losses.Logistic(noisy)
    )
    problem = theory.ExactProblem(X, loss)
    advice = theory.advise(problem, tau=tau, accuracy=0.05, show=False)
    start = np.zeros(4)
    wanted = 0.05 * float(problem.objective(start) - problem.objective(problem.minimiser))
    numbers = {"tau": tau, "wanted": wanted, "seeds": 16}
    taken = real_cost(
        problem,
        advice.batch_size,
        advice.inner_steps,
        advice.lr,
        advice.inner_step_size / advice.lr,
        **numbers,
        limit=math.inf,
    )
    best = taken
    L = theory.loss_constants(loss)[0]
    for b in (64, 16, 4, 1):
        rows = theory.sampled_batches(64, b, 256, np.random.default_rng(0))
        largest = max(float(np.linalg.norm(X[r], 2)) ** 2 / b for r in rows)
        for m in (1, 4, 16, 64, 256):
            for eta in (1 / L, 0.25 / L):
                cost = real_cost(problem, b, m, eta, 1 / largest, **numbers, limit=best)
                best = min(best, cost)
    assert taken <= 3 * best


def test_advice_prints_its_reasons(capsys):
    problem = random_problem(np.random.default_rng(2), n=32, d=3)
    advice = theory.advise(problem, tau=100.0)
    printed = capsys.readouterr().out
    assert printed == str(advice) + "\n"
    for word in ("κ_θ", "batch size", "m = ", "lr = ", "oracle calls"):
        assert word in printed
    theory.advise(problem, tau=100.0, show=False)
    assert capsys.readouterr().out == ""


def test_advice_from_one_oracle_answer_is_that_of_the_problem():
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(32, 3)), rng.normal(size=32)
    problem = theory.ExactProblem(X, to.losses.Squared(torch.from_numpy(y)))
    measured = theory.Measurements(X, np.zeros(32), -y, np.ones(32), 1.0)
    by_hand, measured_for_us, direct = (
        theory.advise(p, tau=50.0, show=False)
        for p in (measured, theory.Measurements.of(problem), problem)
    )
    assert by_hand == measured_for_us == direct  # the quadratic model of a quadratic is itself
    # duplicating every example changes neither η nor m
    twice = theory.Measurements(np.tile(X, (2, 1)), np.zeros(64), np.tile(-y, 2), np.ones(64), 1.0)
    full, doubled = (
        theory.advise(p, tau=50.0, show=False, batch_sizes=[k])
        for p, k in ((measured, 32), (twice, 64))
    )
    assert (full.lr, full.inner_steps, full.oracle_calls) == (
        doubled.lr,
        doubled.inner_steps,
        doubled.oracle_calls,
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"X": np.ones(3)}, "X must have shape"),
        ({"X": np.ones((4, 500))}, "500 parameters"),
        ({"gradients": np.ones(3)}, "gradients must have one number"),
        ({"targets": np.array([0, 0, 0, np.nan])}, "targets must be finite"),
        ({"curvature": np.array([1.0, 1.0, 0.0, 1.0])}, "curvature must be positive"),
        ({"smoothness": 0.5}, "smoothness=0.5"),
    ],
)
def test_bad_measurements_are_named(change, word):
    good = {
        "X": np.ones((4, 2)),
        "targets": np.zeros(4),
        "gradients": np.ones(4),
        "curvature": np.ones(4),
        "smoothness": 1.0,
    }
    with pytest.raises(to.BadArgument, match=word):
        theory.Measurements(**{**good, **change})


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"tau": -1.0}, "tau"), ({"tau": 1.0, "accuracy": 1.5}, "accuracy"),
     ({"tau": 1.0, "batch_sizes": [99]}, "batch_sizes")],
)  # fmt: skip
def test_bad_requests_for_advice_are_named(arguments, word):
    problem = random_problem(np.random.default_rng(2), n=8, d=2)
    with pytest.raises(to.BadArgument, match=word):
        theory.advise(problem, **arguments, show=False)


def test_separable_data_are_advised_on_through_measurements():
    X = np.array([[1.0, 0.2], [-1.0, 0.1], [0.5, -0.3], [-0.7, 0.0]])
    problem = theory.ExactProblem(X, to.losses.Logistic(torch.tensor([1.0, -1, 1, -1]).double()))
    with pytest.raises(theory.OutsideAssumptions, match="separable"):
        theory.advise(problem, tau=1.0, show=False)
    assert theory.advise(theory.Measurements.of(problem), tau=1.0, show=False).inner_steps >= 1


def test_advice_says_when_no_plan_gets_there():
    problem = random_problem(np.random.default_rng(2), n=32, d=3)
    with pytest.raises(theory.OutsideAssumptions, match="larger batches"):
        theory.advise(problem, tau=1.0, accuracy=1e-6, batch_sizes=[2], show=False)
