"""The tangents a fit begins with: the kernel, the bound, when they are used, and what comes out."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

from targetopt.linear import backend
from targetopt.linear.newton import PenalisedLoss, metrics, minimise, solver, subspace, tangents
from targetopt.losses import CrossEntropy, Huber, Logistic, OnArrays
from targetopt.sklearn import SSOClassifier

pytest.importorskip("numba")


def text(n, d, rng, density=0.02):
    """Rows of length one, few entries each; some rows and columns are empty."""
    X = sp.random_array((n, d), density=density, rng=rng, format="csr", dtype=np.float64)
    X.data += 0.1
    norms = np.sqrt(X.multiply(X).sum(axis=1))
    X = sp.csr_array(X.multiply(1 / np.where(norms > 0, norms, 1.0)[:, None]))
    indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return sp.csr_array((X.data, indices, indptr), shape=X.shape)


def logistic(y):
    return Logistic(torch.from_numpy(y))


def problem(seed=0, n=400, d=300, *, strength=1.0, intercept=False, loss=None):
    """alpha = strength/n, random weights, some of them zero."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.4, 1.0, -1.0)
    weights = rng.integers(0, 4, n).astype(float)
    weights[0] = 1.0
    ridge = np.full(d + intercept, strength / n)
    if intercept:
        ridge[-1] = 0.0
    X = text(n, d, rng)
    loss = OnArrays(loss or logistic(y))
    return PenalisedLoss(X, loss, weights / weights.sum(), ridge, 0.0, intercept)


@pytest.fixture
def for_small_data(monkeypatch):
    """Tangents and a diagonal metric, whatever the size."""
    monkeypatch.setattr(tangents, "LEAST_ENTRIES", 0)
    monkeypatch.setattr(tangents, "LEAST_CONDITION", 0.1)
    monkeypatch.setattr(solver, "cheapest_metric", metrics.Diagonal)


def value(F, theta):
    at = F.loss.evaluate(F.forward(theta))
    return F.weights @ at.values + 0.5 * np.sum(F.ridge * theta**2)


def labels(F):
    return F.loss.loss.y.numpy()


def visit_all(F, slopes, theta, order):
    """The module's formula, row by row in numpy, with the largest curvature found by search."""
    dense, penalty, y = F.X.toarray(), F.ridge[0], labels(F)
    for i in order:
        slope = -y[i] / (1.0 + np.exp(y[i] * (dense[i] @ theta)))
        between = np.abs(np.linspace(slopes[i], slope, 20001))
        curvature = np.max(between * (1.0 - between))
        damping = 1.0 + curvature * F.weights[i] * dense[i] @ dense[i] / penalty
        change = (slope - slopes[i]) / damping
        slopes[i] += change
        theta -= F.weights[i] * change * dense[i] / penalty


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 30),
    d=st.integers(1, 20),
    strength=st.sampled_from([0.01, 1.0, 30.0]),
)
def test_the_kernel_is_the_formula(seed, n, d, strength):
    from targetopt.linear.kernels.tangents import renew_slopes

    F = problem(seed, n, d, strength=strength)
    rng = np.random.default_rng(seed)
    slopes, theta = np.zeros(n), np.zeros(d)
    wanted_slopes, wanted = slopes.copy(), theta.copy()
    shares = F.weights / F.ridge[0]
    for _ in range(2):
        order = rng.permutation(n)
        renew_slopes(F.X.indptr, F.X.indices, F.X.data, labels(F), shares, order, slopes, theta)
        visit_all(F, wanted_slopes, wanted, order)
    np.testing.assert_allclose(slopes, wanted_slopes, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(theta, wanted, rtol=1e-6, atol=1e-7)
    # θ is the surrogate's minimiser.
    np.testing.assert_allclose(theta, -F.adjoint(shares * slopes), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 100.0])
def test_no_visit_lowers_the_bound(strength):
    """However large the rows: with a weak penalty undamped steps would overshoot."""
    from targetopt.linear.kernels.tangents import renew_slopes

    F = problem(n=60, d=30, strength=strength)
    minimum = minimise(F, np.zeros(30), tol=1e-13, max_iter=500).value
    slopes, theta, bound = np.zeros(60), np.zeros(30), 0.0
    for i in np.random.default_rng(1).integers(0, 60, 600):
        renew_slopes(
            *(F.X.indptr, F.X.indices, F.X.data, labels(F), F.weights / F.ridge[0]),
            *(np.array([i]), slopes, theta),
        )
        conjugates = F.loss.loss.conjugate(torch.from_numpy(slopes)).numpy()
        now = -F.weights @ conjugates - 0.5 * F.ridge[0] * theta @ theta
        assert bound - 1e-14 <= now <= minimum + 1e-14
        bound = now


@given(slope=st.floats(-1.0, 1.0, exclude_min=True, exclude_max=True))
def test_the_conjugate_is_the_largest_difference(slope):
    """sup gz − ℓ(z), for the label whose loss has slopes of this sign."""
    loss = logistic(np.array([-1.0 if slope > 0 else 1.0]))
    found = scipy.optimize.minimize_scalar(
        lambda z: OnArrays(loss).evaluate(np.array([z])).values[0] - slope * z, bounds=(-60, 60)
    )
    assert float(loss.conjugate(torch.tensor([slope], dtype=torch.float64))) == pytest.approx(
        -found.fun, abs=1e-8
    )


def test_an_order_visits_each_row_once_and_differs_between_epochs():
    random = np.random.default_rng(0)
    orders = [tangents._order(1003, random) for _ in range(2)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(1003))
    assert not np.array_equal(*orders)


@pytest.mark.parametrize("strength", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-10])
def test_the_bound_encloses_the_minimum(for_small_data, strength, tol):
    F = problem(strength=strength)
    start = tangents.approach(F, np.zeros(300), tol=tol, max_epochs=100)
    with backend.use("numpy"):  # Newton steps alone
        minimum = minimise(F, np.zeros(300), tol=1e-14, max_iter=500).value
    assert start.bound <= minimum * (1 + 1e-13)
    assert minimum <= value(F, start.theta) * (1 + 1e-13)
    assert value(F, start.theta) - start.bound <= tol * minimum


@pytest.mark.parametrize("strength", [1e-3, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_the_minimum_is_the_same_without_numba(for_small_data, strength, intercept):
    F = problem(strength=strength, intercept=intercept)
    start = np.zeros_like(F.ridge)
    compiled = minimise(F, start, tol=1e-13, max_iter=2000)
    with backend.use("numpy"):
        plain = minimise(F, start, tol=1e-13, max_iter=2000)
    assert compiled.converged
    assert plain.converged
    assert compiled.value == pytest.approx(plain.value, rel=1e-12)
    np.testing.assert_allclose(compiled.theta, plain.theta, atol=1e-5)


def test_epochs_end_the_fit_when_the_bound_is_near(for_small_data, monkeypatch):
    """No Newton step is made."""
    F = problem()
    with backend.use("numpy"):
        plain = minimise(F, np.zeros(300), tol=1e-8, max_iter=500)
    monkeypatch.delattr(subspace.Subspace, "minimiser")
    found = minimise(F, np.zeros(300), tol=1e-8, max_iter=500)
    assert found.converged
    assert found.value <= plain.value * (1 + 1e-8)


def test_slow_epochs_are_left_to_newton(for_small_data):
    """Equal rows: all the curvature lies in one direction, which a few Newton steps get right."""
    n = 512
    y = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
    X = sp.csr_array(np.full((n, 1), 1.0))
    F = PenalisedLoss(X, OnArrays(logistic(y)), np.full(n, 1 / n), np.full(1, 1 / n), 0.0, False)
    start = tangents.approach(F, np.zeros(1), tol=1e-12, max_epochs=500)
    found = minimise(F, np.zeros(1), tol=1e-12, max_iter=500)
    assert value(F, start.theta) - start.bound > 1e-6  # not there yet
    assert start.epochs < found.n_iter < start.epochs + 6
    assert found.converged
    slope = F.adjoint(F.weights * F.loss.evaluate(F.forward(found.theta)).gradient)
    np.testing.assert_allclose(slope, -F.ridge * found.theta, atol=1e-9)


def test_steps_and_epochs_share_the_limit(for_small_data):
    F = problem()
    for limit in (1, 2, 3):
        found = minimise(F, np.zeros(300), tol=1e-12, max_iter=limit)
        assert (found.n_iter, found.converged) == (limit, False)
        assert found.value <= value(F, np.zeros(300))


def test_only_problems_of_the_kind_begin_with_tangents(monkeypatch):
    def begins(F, theta=None):
        theta = np.zeros_like(F.ridge) if theta is None else theta
        return tangents.approach(F, theta, tol=1e-3, max_epochs=1) is not None

    F = problem()
    assert not begins(F)  # small
    monkeypatch.setattr(tangents, "LEAST_ENTRIES", F.X.nnz)
    assert begins(F)
    assert not begins(problem(strength=1e-3))
    assert not begins(problem(strength=0.0))
    assert not begins(problem(intercept=True))
    assert not begins(F, np.ones(300))  # a warm start
    assert not begins(problem(loss=Huber(torch.ones(400), 1.0)))
    changes = [
        {"X": F.X.toarray()},
        {"X": sp.csr_array((F.X.data, F.X.indices.astype(np.int64), F.X.indptr), F.X.shape)},
        {"ridge": F.ridge * np.linspace(1, 2, 300)},
        {"center": np.full(300, 0.1)},
        {
            "loss": OnArrays(CrossEntropy(torch.arange(400) % 3)),
            "ridge": np.full((300, 3), 1 / 400),
        },
        {"weights": np.eye(400)[0]},  # one row of weight 1 is n times as strong
    ]
    for change in changes:
        assert not begins(PenalisedLoss(**{**vars(F), **change})), change
    with backend.use("numpy"):
        assert not begins(F)


def test_the_estimator_begins_with_tangents_on_text(monkeypatch):
    """The same answer as the Newton steps alone, to tol; the same in every fit; counted; limited."""
    starts = []

    def approach(*args, **options):
        starts.append(tangents.approach(*args, **options))
        return starts[-1]

    monkeypatch.setattr(solver, "approach", approach)
    rng = np.random.default_rng(3)
    X = text(6000, 9000, rng, density=2e-3)
    assert X.nnz >= tangents.LEAST_ENTRIES
    y = np.where(X @ rng.normal(size=9000) + 0.3 * rng.normal(size=6000) > 0, "yes", "no")
    model = SSOClassifier(alpha=1 / 6000, fit_intercept=False, tol=1e-9)
    coef = model.fit(X, y).coef_
    assert starts[0].epochs == model.n_iter_[0] > 1
    np.testing.assert_array_equal(coef, model.fit(X, y).coef_)
    with backend.use("numpy"):
        newton_alone = SSOClassifier(**model.get_params()).fit(X, y)
    assert starts[-1] is None
    # Strong convexity: ½ alpha ‖difference‖² ≤ tol·F for each of the two, and F < log 2.
    distance = np.linalg.norm(coef - newton_alone.coef_)
    assert distance <= 2 * np.sqrt(2 * 1e-9 * np.log(2) * 6000)
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        model.set_params(max_iter=2).fit(X, y)


def test_partial_fit_goes_on_from_tangents(for_small_data):
    """The memory Λ is the curvature at the end, whoever found it."""
    rng = np.random.default_rng(4)
    X = text(400, 50, rng, density=0.1)
    y = np.where(X @ rng.normal(size=50) > 0, 1, 0)
    model = SSOClassifier(alpha=1 / 400, fit_intercept=False, tol=1e-12)
    model.partial_fit(X, y, classes=[0, 1])
    p = model.predict_proba(X)[:, 1]
    curvature = X.multiply(X).T @ (p * (1 - p)) + 400 * model.alpha
    np.testing.assert_allclose(model._memory, curvature, rtol=1e-9)
    before = model.coef_
    model.partial_fit(X, y)
    assert np.abs(model.coef_ - before).max() < 0.3 * np.abs(before).max()
