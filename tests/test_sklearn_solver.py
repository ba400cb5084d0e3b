"""The full-batch Newton solver: its losses, its metrics, its answers."""

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from targetopt.linear.newton import PenalisedLoss, choice, gram, metrics, minimise
from targetopt.losses import CrossEntropy, Huber, Logistic, OnArrays, Poisson, Squared
from targetopt.losses.spare import Spare

KINDS = ["squared", "logistic", "softmax", "huber", "poisson"]


def make_loss(kind, n, rng):
    """The loss on random labels, and the trailing shape of its targets."""
    if kind == "softmax":
        y = np.concatenate([np.arange(3), rng.integers(0, 3, n)])[:n]
        return OnArrays(CrossEntropy(torch.from_numpy(y), classes=3)), (3,)
    if kind == "logistic":
        return OnArrays(Logistic(torch.from_numpy(np.where(rng.random(n) < 0.5, 1.0, -1.0)))), ()
    if kind == "poisson":
        return OnArrays(Poisson(torch.from_numpy(rng.poisson(2.0, n).astype(float)))), ()
    y = torch.from_numpy(rng.normal(size=n) * 2)
    return OnArrays(Huber(y, 0.7) if kind == "huber" else Squared(y)), ()


def make_objective(kind, n, d, rng, *, alpha=1e-2, intercept=True, sparse=False):
    loss, outputs = make_loss(kind, n, rng)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6)
    ridge = np.full((d + intercept, *outputs), alpha)
    if intercept:
        ridge[-1] = 0.0
    weights = rng.random(n) + 0.1
    X = sp.csr_array(X) if sparse else X
    return PenalisedLoss(X, loss, weights / weights.sum(), ridge, 0.0, intercept)


def value_and_gradient(F, theta):
    at = F.loss.evaluate(F.forward(theta))
    offset = theta - F.center
    value = F.weights @ at.values + 0.5 * np.sum(F.ridge * offset**2)
    return value, F.adjoint(F.weighted(at.gradient)) + F.ridge * offset


def dense_hessian(F, theta):
    """∂²F column by column, from products alone."""
    at = F.loss.evaluate(F.forward(theta))
    columns = []
    for unit in np.eye(theta.size):
        v = unit.reshape(theta.shape)
        curved = F.curved(at.metric, F.forward(v))
        columns.append((F.adjoint(curved) + F.ridge * v).ravel())
    return np.array(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_best_constant_is_near_the_best(kind):
    rng = np.random.default_rng(4)
    loss, outputs = make_loss(kind, 40, rng)
    weights = np.full(40, 1 / 40)
    F = PenalisedLoss(np.ones((40, 1)), loss, weights, np.zeros((1, *outputs)), 0.0, False)
    theta = np.broadcast_to(loss.best_constant(weights), (1, *outputs)).astype(float)
    _, gradient = value_and_gradient(F, theta)
    assert np.abs(gradient).max() < (0.1 if kind == "huber" else 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(60, 5), (12, 40)])
def test_finds_the_minimum(kind, sparse, intercept, shape):
    rng = np.random.default_rng(5)
    F = make_objective(kind, *shape, rng, intercept=intercept, sparse=sparse)
    found = minimise(F, np.zeros_like(F.ridge), tol=1e-12, max_iter=500)
    value, gradient = value_and_gradient(F, found.theta)
    assert found.converged
    assert found.value == pytest.approx(value, rel=1e-12)
    reference = scipy.optimize.minimize(
        lambda t: tuple(
            np.ravel(part)[0] if i == 0 else np.ravel(part)
            for i, part in enumerate(value_and_gradient(F, t.reshape(F.ridge.shape)))
        ),
        np.zeros(F.ridge.size),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 20000, "maxfun": 40000, "ftol": 0.0, "gtol": 1e-9},
    )
    assert value <= reference.fun * (1 + 1e-10)
    assert np.abs(gradient).max() < 1e-5


@pytest.mark.parametrize("kind", ["squared", "logistic", "softmax", "poisson"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_exact_metrics_are_the_inverse_hessian(kind, sparse, intercept):
    rng = np.random.default_rng(6)
    F = make_objective(kind, 40, 5, rng, intercept=intercept, sparse=sparse)
    theta = 0.3 * rng.normal(size=F.ridge.shape)
    H = dense_hessian(F, theta)
    metric = (metrics.Joint if kind == "softmax" else metrics.Primal)(F)
    metric.update(F.loss.evaluate(F.forward(theta)).metric, 0.0)
    # A vector in the range of H: softmax with an intercept is singular along shared shifts.
    v = H @ rng.normal(size=theta.size)
    u = metric.solve(v.reshape(theta.shape))
    np.testing.assert_allclose(H @ u.ravel(), v, rtol=1e-7, atol=1e-9)
    diagonal = metric.diagonal(F.loss.evaluate(F.forward(theta)).metric) + F.ridge
    np.testing.assert_allclose(diagonal.ravel(), np.diag(H), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("price", [0.0, np.inf])
def test_hessians_by_pairs_of_entries_and_by_blocks_of_rows(monkeypatch, kind, intercept, price):
    """Whichever way the cost model takes, the lower half is that of the Hessian."""
    rng = np.random.default_rng(16)
    monkeypatch.setattr(gram, "PER_PAIR", {"numba": price, "numpy": price})
    monkeypatch.setattr(gram, "BLOCK_ENTRIES", 70)
    monkeypatch.setattr(gram, "JOINT_ENTRIES", 70)
    F = make_objective(kind, 50, 6, rng, intercept=intercept, sparse=True)
    theta = rng.normal(size=F.ridge.shape)
    assert gram.by_pairs(F, 50) == (price == 0.0)
    curvature = F.loss.evaluate(F.forward(theta)).metric
    if kind == "softmax":
        H = gram.joint_gram(F, F.X, F.weights, curvature)
    else:
        H = gram.gram(F, F.X, F.weighted(curvature))
    H = H + np.diag(F.ridge.ravel())
    np.testing.assert_allclose(np.tril(H), np.tril(dense_hessian(F, theta)), rtol=1e-12, atol=1e-15)


def test_spare_arrays_are_never_those_in_use():
    F = make_objective("logistic", 5000, 3, np.random.default_rng(17))
    first = F.at(np.full(4, 0.1))
    kept = [first.at.values.copy(), first.at.gradient.copy(), first.at.metric.copy()]
    for size in range(5):
        F.gradient(F.at(np.full(4, float(size))))
    for before, after in zip(kept, first.at, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("shape", [(60, 5), (12, 40)])
def test_what_lies_in_spare_memory_is_never_used(monkeypatch, kind, sparse, shape):
    """Arrays that are taken hold anything, signalling nans too; the fit is the same, and nothing warns."""
    taken = Spare.take

    def poisoned(self, wanted):
        found = taken(self, wanted)
        found.view(np.uint64)[...] = 0x7FF0000000000001
        return found

    fits = []
    for take in (taken, poisoned):
        monkeypatch.setattr(Spare, "take", take)
        F = make_objective(kind, *shape, np.random.default_rng(18), intercept=True, sparse=sparse)
        theta = np.zeros_like(F.ridge)
        metric = (metrics.Joint if kind == "softmax" else metrics.Primal)(F)
        metric.update(F.loss.evaluate(F.forward(theta)).metric, 0.0)
        step = metric.solve(np.ones_like(theta))
        fits.append((step, minimise(F, theta, tol=1e-10, max_iter=500).theta))
    for clean, other in zip(*fits, strict=True):
        np.testing.assert_array_equal(clean, other)


@pytest.mark.parametrize("sparse", [False, True])
def test_dual_and_primal_forms_are_equal(sparse):
    rng = np.random.default_rng(7)
    F = make_objective("logistic", 10, 30, rng, intercept=False, sparse=sparse)
    assert metrics.Dual.possible(F)
    curvature = F.loss.evaluate(np.zeros(10)).metric
    dual, primal = metrics.Dual(F), metrics.Primal(F)
    dual.update(curvature, 0.0)
    primal.update(curvature, 0.0)
    g = rng.normal(size=30)
    np.testing.assert_allclose(dual.solve(g), primal.solve(g), rtol=1e-8)


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_metric_leads_to_the_same_minimum(monkeypatch, kind, sparse):
    rng = np.random.default_rng(8)
    F = make_objective(kind, 25, 40, rng, alpha=1e-2, sparse=sparse)
    values = []
    for metric in (metrics.Primal, metrics.Dual, metrics.Diagonal):
        monkeypatch.setattr("targetopt.linear.newton.solver.cheapest_metric", metric)
        values.append(minimise(F, np.zeros_like(F.ridge), tol=1e-13, max_iter=2000).value)
    np.testing.assert_allclose(values, values[0], rtol=1e-10)


def test_the_cheapest_metric_follows_the_shape():
    rng = np.random.default_rng(9)
    assert isinstance(
        choice.cheapest_metric(make_objective("logistic", 500, 8, rng)), metrics.Primal
    )
    assert isinstance(choice.cheapest_metric(make_objective("softmax", 500, 8, rng)), metrics.Joint)
    assert isinstance(choice.cheapest_metric(make_objective("logistic", 20, 90, rng)), metrics.Dual)
    text = sp.random_array((3000, 9000), density=1e-3, rng=rng, format="csr")
    F = PenalisedLoss(
        text,
        OnArrays(Logistic(torch.ones(3000))),
        np.full(3000, 1 / 3000),
        np.full(9000, 1e-4),
        0.0,
        False,
    )
    assert isinstance(choice.cheapest_metric(F), metrics.Diagonal)


def test_a_sampled_hessian_is_unbiased_enough_to_precondition():
    """8d rows of many, drawn by curvature: all eigenvalues of M⁻¹H stay within a factor of 3."""
    rng = np.random.default_rng(10)
    F = make_objective("logistic", 20000, 120, rng, alpha=1e-6)
    theta = rng.normal(size=121)
    metric = metrics.Primal(F)
    metric.update(F.loss.evaluate(F.forward(theta)).metric, 0.0)
    H = dense_hessian(F, theta)
    values = np.linalg.eigvals(np.array([metric.solve(row) for row in H])).real
    assert values.min() > 1 / 3
    assert values.max() < 3
    assert not np.allclose(values, 1.0)  # it was a sample


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 40),
    d=st.integers(1, 12),
    kind=st.sampled_from(KINDS),
    sparse=st.booleans(),
    alpha=st.sampled_from([0.0, 1e-6, 1e-2, 1.0]),
)
def test_degenerate_data_never_break_the_descent(seed, n, d, kind, sparse, alpha):
    """Zero rows, zero columns, repeated rows and columns, constant columns, zero weights."""
    rng = np.random.default_rng(seed)
    loss, outputs = make_loss(kind, n, rng)
    X = rng.integers(-1, 2, size=(n, d)).astype(float)
    X[:, rng.integers(d)] = rng.integers(0, 2)
    X[rng.integers(n)] = 0.0
    X[:, rng.integers(d)] = X[:, rng.integers(d)]
    weights = rng.integers(0, 3, n).astype(float)
    weights[rng.integers(n)] = 1.0
    ridge = np.full((d + 1, *outputs), alpha)
    ridge[-1] = 0.0
    F = PenalisedLoss(
        sp.csr_array(X) if sparse else X, loss, weights / weights.sum(), ridge, 0.0, True
    )
    start = np.zeros_like(ridge)
    found = minimise(F, start, tol=1e-9, max_iter=300)
    assert np.isfinite(found.theta).all()
    value, gradient = value_and_gradient(F, found.theta)
    first, _ = value_and_gradient(F, start)
    assert value <= first * (1 + 1e-12)
    if found.converged and alpha >= 1e-2:
        # Strong convexity in w bounds the distance to the minimum by the gradient.
        assert np.abs(gradient).max() <= 1e-2 * max(1.0, np.sqrt(first))


def test_steps_are_counted_and_limited():
    F = make_objective("logistic", 60, 5, np.random.default_rng(11))
    found = minimise(F, np.zeros(6), tol=1e-12, max_iter=2)
    assert (found.n_iter, found.converged) == (2, False)


@pytest.mark.parametrize("sparse", [False, True])
def test_every_step_gets_the_intercept_right(monkeypatch, sparse):
    """Its direction is always searched; for squared loss the residuals then sum to zero."""
    monkeypatch.setattr("targetopt.linear.newton.solver.cheapest_metric", metrics.Diagonal)
    F = make_objective("squared", 60, 9, np.random.default_rng(15), alpha=1e-3)
    F.X[:, 0] = 3.0  # a feature that can replace the intercept
    F = PenalisedLoss(sp.csr_array(F.X) if sparse else F.X, F.loss, F.weights, F.ridge, 0.0, True)
    for steps in (1, 2, 3, 7, 9):
        found = minimise(F, np.zeros(10), tol=1e-14, max_iter=steps)
        assert abs(value_and_gradient(F, found.theta)[1][-1]) < 1e-13


@pytest.mark.parametrize("metric", [metrics.Primal, metrics.Diagonal])
@pytest.mark.parametrize("kind", KINDS)
def test_no_tolerance_means_to_rounding(monkeypatch, kind, metric):
    monkeypatch.setattr("targetopt.linear.newton.solver.cheapest_metric", metric)
    F = make_objective(kind, 60, 5, np.random.default_rng(16))
    found = minimise(F, np.zeros_like(F.ridge), tol=0.0, max_iter=500)
    assert found.n_iter < 500
    assert np.abs(value_and_gradient(F, found.theta)[1]).max() < 1e-6


def test_one_step_solves_least_squares():
    """The surrogate is then the loss itself; the steps after only confirm."""
    F = make_objective("squared", 60, 5, np.random.default_rng(12))
    one = minimise(F, np.zeros(6), tol=1e-10, max_iter=1)
    end = minimise(F, np.zeros(6), tol=1e-10, max_iter=9)
    np.testing.assert_allclose(one.theta, end.theta, rtol=1e-9)
    assert end.n_iter <= 3


def test_a_center_pulls():
    """With a penalty far above the data's curvature θ stays at the centre."""
    rng = np.random.default_rng(13)
    base = make_objective("logistic", 30, 4, rng, intercept=False)
    center = rng.normal(size=4)
    F = PenalisedLoss(base.X, base.loss, base.weights, np.full(4, 1e6), center, False)
    found = minimise(F, np.zeros(4), tol=1e-12, max_iter=50)
    np.testing.assert_allclose(found.theta, center, atol=1e-5)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson", "huber"])
@pytest.mark.parametrize("distance", [1.0, 30.0, 300.0])
def test_a_far_start_ends_at_the_same_minimum(kind, distance):
    """Where the loss is flat its curvature promises steps far too long; the search must cope."""
    rng = np.random.default_rng(14)
    F = make_objective(kind, 80, 3, rng, alpha=1e-4)
    near = minimise(F, np.zeros_like(F.ridge), tol=1e-12, max_iter=500)
    start = np.zeros_like(F.ridge)
    start[-1] = distance * (np.array([1.0, -1.0, 0.0]) if kind == "softmax" else -1.0)
    far = minimise(F, start, tol=1e-12, max_iter=500)
    assert far.converged
    assert far.value == pytest.approx(near.value, rel=1e-9)


@pytest.mark.parametrize("shape", [(300, 7), (12, 40)])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_squared_loss_is_one_solve(shape, sparse, intercept, weighted):
    """The solution of the normal equations, in a step and perhaps its refinement, whatever the start."""
    rng = np.random.default_rng(3)
    n, d = shape
    X, y = rng.normal(size=shape) * (rng.random(shape) < 0.6), rng.normal(size=n) + 4.0
    weights = rng.random(n) if weighted else np.ones(n)
    weights /= weights.sum()
    ridge = np.full(d + intercept, 0.1)
    if intercept:
        ridge[-1] = 0.0
    A = np.column_stack([X, np.ones(n)]) if intercept else X
    expected = np.linalg.solve(A.T @ (weights[:, None] * A) + np.diag(ridge), A.T @ (weights * y))
    loss = OnArrays(Squared(torch.from_numpy(y)))
    objective = PenalisedLoss(
        sp.csr_array(X) if sparse else X, loss, weights, ridge, 0.0, intercept=intercept
    )
    found = minimise(objective, rng.normal(size=ridge.size), tol=1e-8, max_iter=100)
    np.testing.assert_allclose(found.theta, expected, rtol=1e-11, atol=1e-12)
    assert found.converged
    assert found.n_iter <= 2
    np.testing.assert_allclose(found.diagonal, weights @ A**2, rtol=1e-12)
