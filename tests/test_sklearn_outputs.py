"""Regression with several outputs, and the squared loss by conjugate gradients and by factors."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import Ridge

from targetopt.errors import BadArgument
from targetopt.linear.newton import PenalisedLoss, cheapest_metric, minimise, quadratic
from targetopt.losses import OnArrays, Squared
from targetopt.sklearn import SSORegressor


def make_rows(n, d, outputs, sparse, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)
    y = X @ rng.normal(size=(d, outputs)) + rng.normal(size=(n, outputs)) + 2.0
    return (sp.csr_matrix(X) if sparse else X), y, rng.random(n) + 0.2


def make_objective(n, d, *, alpha, intercept, sparse=False, seed=0):
    X, y, weights = make_rows(n, d, 1, sparse, seed)
    ridge = np.full(d + intercept, alpha)
    if intercept:
        ridge[-1] = 0.0
    loss = OnArrays(Squared(torch.from_numpy(y[:, 0].copy())))
    return PenalisedLoss(X, loss, weights / weights.sum(), ridge, 0.0, intercept)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("shape", [(80, 6), (15, 40)])
def test_several_outputs_are_those_of_ridge(sparse, fit_intercept, shape):
    X, y, weights = make_rows(*shape, 3, sparse)
    ours = SSORegressor(fit_intercept=fit_intercept, tol=1e-12).fit(X, y, weights)
    dense = X.toarray() if sparse else X
    # alpha="auto" is one over the sum of the weights, which is the default of Ridge.
    ridge = Ridge(fit_intercept=fit_intercept, solver="cholesky").fit(dense, y, weights)
    np.testing.assert_allclose(ours.coef_, ridge.coef_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        ours.intercept_, ridge.intercept_ if fit_intercept else np.zeros(3), rtol=0, atol=1e-9
    )
    assert ours.predict(X).shape == y.shape


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
def test_outputs_are_fitted_as_they_would_be_alone(loss):
    X, y, weights = make_rows(60, 5, 2, sparse=False)
    if loss == "poisson":
        y = np.random.default_rng(1).poisson(np.exp(0.1 * y)).astype(float)
    together = SSORegressor(loss=loss).fit(X, y, weights)
    alone = [SSORegressor(loss=loss).fit(X, column, weights) for column in y.T]
    np.testing.assert_allclose(together.coef_, [each.coef_ for each in alone], rtol=1e-9)
    assert together.n_iter_ == max(each.n_iter_ for each in alone)
    mean = np.mean([each.score(X, column) for each, column in zip(alone, y.T, strict=True)])
    np.testing.assert_allclose(together.score(X, y), mean, rtol=1e-9)
    X2, _, _ = make_rows(60, 5, 2, sparse=False, seed=3)
    together.partial_fit(X2, y)
    for k, each in enumerate(alone):
        each.partial_fit(X2, y[:, k])
        np.testing.assert_allclose(together.coef_[k], each.coef_, rtol=1e-8)


def test_more_rows_with_other_outputs_are_refused_and_change_nothing():
    X, y, _ = make_rows(30, 4, 3, sparse=False)
    model = SSORegressor().fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(BadArgument, match="as many columns as before"):
        model.partial_fit(X, y[:, :2])
    with pytest.raises(BadArgument, match="fit_intercept was changed"):
        model.set_params(fit_intercept=False).partial_fit(X, y)
    np.testing.assert_array_equal(model.coef_, before)


def test_one_factor_serves_all_outputs(monkeypatch):
    from targetopt.linear.newton import metrics

    factored = []
    original = metrics.factor
    monkeypatch.setattr(metrics, "factor", lambda *a: factored.append(1) or original(*a))
    X, y, _ = make_rows(200, 8, 7, sparse=False)
    SSORegressor().fit(X, y)
    assert len(factored) == 1


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("shape", [(300, 20), (20, 90)])
def test_conjugate_gradients_end_where_the_factor_does(intercept, alpha, shape):
    F = make_objective(*shape, alpha=alpha or 1e-9, intercept=intercept)
    exact = minimise(F, np.zeros_like(F.ridge), tol=1e-14, max_iter=50)
    found = quadratic._conjugate_gradients(
        F,
        F.at(np.zeros_like(F.ridge)),
        _renewed(quadratic.Diagonal(F), F),
        1e-10,
        2000,
        np.inf,
    )
    assert 0 <= found.point.value - exact.value <= 1.01e-10 * exact.value + 1e-15
    assert found.gap >= found.point.value - exact.value - 1e-15
    residual = F.weights @ found.point.at.gradient
    assert not intercept or abs(residual) < 1e-12
    again = F.at(found.point.theta)
    np.testing.assert_allclose(found.point.z, again.z, rtol=0, atol=1e-11)


def _renewed(metric, F):
    metric.update(F.at(np.zeros_like(F.ridge)).at.metric, 0.0)
    return metric


def test_conjugate_gradients_on_rows_end_after_as_many_steps_as_rows():
    F = make_objective(6, 50, alpha=0.1, intercept=False)
    point = F.at(np.zeros_like(F.ridge))
    found = quadratic._conjugate_gradients(
        F, point, _renewed(quadratic.Flat(F), F), 1e-13, 200, np.inf
    )
    assert found.steps <= 7
    assert np.abs(F.gradient(found.point)).max() < 1e-10


def test_steps_that_would_cost_more_than_a_factor_are_left_to_it(monkeypatch):
    """Correlated columns of very different scales: conjugate gradients give up after a few steps."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(150, 150)) * np.logspace(0, -4, 150)
    X = rng.normal(size=(400, 150)) @ mixing
    y = rng.normal(size=400)
    F = PenalisedLoss(
        X,
        OnArrays(Squared(torch.from_numpy(y))),
        np.full(400, 1 / 400),
        np.full(150, 1e-9),
        0.0,
        False,
    )
    monkeypatch.setattr(
        quadratic, "_step_cost", lambda _: cheapest_metric(F).price / (1.5 * quadratic.FEW)
    )
    found = minimise(F, np.zeros(150), tol=1e-10, max_iter=500)
    expected = np.linalg.solve(X.T @ X / 400 + 1e-9 * np.eye(150), X.T @ y / 400)
    assert found.converged
    assert quadratic.TRIED < found.n_iter < 25
    np.testing.assert_allclose(X @ found.theta, X @ expected, rtol=0, atol=1e-7)
