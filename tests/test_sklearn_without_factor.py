"""Fits that begin without a factor of the Hessian, and the bound that tells them when to end."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from targetopt.linear.newton import PenalisedLoss, choice, metrics, minimise, solver
from targetopt.linear.newton.intercepts import best_intercept
from targetopt.linear.newton.objective import column_sums
from targetopt.losses import CrossEntropy, Logistic, OnArrays, Poisson

SHAPES = {"logistic": (), "softmax": (3,), "poisson": ()}


def problem(kind, *, rows=2000, columns=200, alpha=1.0, decades=0.0, intercept=True, sparse=False):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-decades, 0.0, columns)
    z = X @ rng.normal(size=columns) / np.sqrt(columns)
    noisy = z + 0.5 * rng.normal(size=rows)
    if kind == "logistic":
        loss = OnArrays(Logistic(torch.from_numpy(np.where(noisy > 0.5, 1.0, -1.0))))
    elif kind == "softmax":
        labels = np.digitize(noisy, [-0.5, 1.0])
        loss = OnArrays(CrossEntropy(torch.from_numpy(labels), classes=3))
    else:
        loss = OnArrays(Poisson(torch.from_numpy(rng.poisson(np.exp(z)).astype(float))))
    ridge = np.full((columns + intercept, *SHAPES[kind]), alpha)
    if intercept:
        ridge[-1] = 0.0
    X = sp.csr_array(X * (rng.random(X.shape) < 0.3)) if sparse else X
    return PenalisedLoss(X, loss, np.full(rows, 1.0 / rows), ridge, 0.0, intercept)


def start(F):
    theta = np.zeros_like(F.ridge)
    if F.intercept:
        theta[-1] = F.loss.best_constant(F.weights)
    return theta


def exact_minimum(F):
    return minimise(F, start(F), tol=1e-14, max_iter=1000).value


@pytest.fixture
def renewals(monkeypatch):
    """The names of the metrics with a factor, each time one is made."""
    made = []
    for kind in (metrics.Primal, metrics.Joint, metrics.Dual):

        def renew(self, curvature, kind=kind, renew=kind.renew):
            made.append(kind.__name__)
            renew(self, curvature)

        monkeypatch.setattr(kind, "renew", renew)
    return made


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_strong_penalty_needs_no_factor(renewals, kind, sparse, intercept):
    F = problem(kind, sparse=sparse, intercept=intercept)
    assert choice.worth_trying_without(choice.cheapest_metric(F), F.at(start(F)))
    found = minimise(F, start(F), tol=1e-6, max_iter=100)
    assert found.converged
    assert not renewals
    assert found.value <= (1.0 + 1e-6) * exact_minimum(F)
    assert found.gap <= 1e-6 * found.value


@pytest.mark.parametrize("kind", ["logistic", "softmax", "poisson"])
def test_a_fit_that_goes_slowly_goes_on_with_the_factor(renewals, kind):
    F = problem(kind, columns=60, alpha=1e-8, decades=4.0)
    found = minimise(F, start(F), tol=1e-8, max_iter=1000)
    assert found.converged
    assert renewals
    assert found.value <= (1.0 + 1e-8) * exact_minimum(F)


def entangled(kind, rows=20_000, columns=20):
    """Columns that are nearly alike, many more rows than a sample has."""
    rng = np.random.default_rng(7)
    common = rng.normal(size=(rows, 1))
    X = common + 0.3 * rng.normal(size=(rows, columns))
    z = X @ rng.normal(size=columns) / columns + 0.5 * rng.normal(size=rows)
    if kind == "logistic":
        loss = OnArrays(Logistic(torch.from_numpy(np.where(z > 0.3, 1.0, -1.0))))
    elif kind == "softmax":
        loss = OnArrays(
            CrossEntropy(torch.from_numpy(np.digitize(z, [-0.5, 1.0]).astype(np.int64)), classes=3)
        )
    else:
        loss = OnArrays(Poisson(torch.from_numpy(rng.poisson(np.exp(0.5 * z)).astype(float))))
    ridge = np.full((columns + 1, *SHAPES[kind]), 1e-4)
    ridge[-1] = 0.0
    return PenalisedLoss(X, loss, np.full(rows, 1.0 / rows), ridge, 0.0, intercept=True)


def centred(theta):
    """Softmax does not see what all classes share."""
    return theta - theta.mean(axis=1, keepdims=True) if theta.ndim == 2 else theta


@pytest.mark.parametrize("kind", list(SHAPES))
def test_few_rows_lead_to_the_neighbourhood_and_all_rows_to_the_minimum(monkeypatch, kind):
    F = entangled(kind)
    made = []
    for metric in (metrics.Primal, metrics.Joint):

        def renew(self, curvature, renew=metric.renew):
            renew(self, curvature)
            made.append("all" if self.exact else "sample")

        monkeypatch.setattr(metric, "renew", renew)
    found = minimise(F, start(F), tol=1e-6, max_iter=100)
    assert found.converged
    assert made.count("sample") >= 2
    assert made == ["sample"] * made.count("sample") + ["all"] * made.count("all")
    assert 1 <= made.count("all") <= 2

    monkeypatch.setattr(metrics, "FEWER", 10**9)
    monkeypatch.setattr(solver, "worth_trying_without", lambda metric, start: False)
    made.clear()
    without = minimise(F, start(F), tol=1e-6, max_iter=100)
    assert set(made) == {"all"}
    np.testing.assert_allclose(centred(found.theta), centred(without.theta), rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.value, without.value, rtol=1e-14)


def test_rows_that_are_looked_at_may_have_no_weight():
    F = entangled("logistic")
    weights = F.weights.copy()
    weights[:: len(weights) // 1024] = 0.0
    weights /= weights.sum()
    F = PenalisedLoss(F.X, F.loss, weights, F.ridge, 0.0, intercept=True)
    assert choice.entanglement(F, F.at(start(F))) == 0.0
    found = minimise(F, start(F), tol=1e-6, max_iter=100)
    assert found.converged
    assert found.value <= (1.0 + 1e-6) * exact_minimum(F)


def test_sums_over_rows_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for shape in ((1000,), (1000, 3), (0, 2)):
        u = rng.normal(size=shape)
        np.testing.assert_allclose(column_sums(u), u.sum(axis=0), rtol=1e-12, atol=1e-12)


def test_columns_are_entangled_or_not():
    F = entangled("logistic")
    assert choice.entanglement(F, F.at(start(F))) > 2.0
    assert not choice.worth_trying_without(choice.cheapest_metric(F), F.at(start(F)))
    strong = PenalisedLoss(F.X, F.loss, F.weights, F.ridge * 1e6, 0.0, intercept=True)
    assert choice.entanglement(strong, strong.at(start(strong))) < 0.1
    apart = problem("logistic", rows=20_000, columns=20, alpha=1e-6)
    assert choice.entanglement(apart, apart.at(start(apart))) < 0.1
    assert choice.worth_trying_without(choice.cheapest_metric(apart), apart.at(start(apart)))


def test_a_factor_that_costs_next_to_nothing_is_made_at_once():
    F = problem("logistic", rows=500, columns=8)
    assert not choice.worth_trying_without(choice.cheapest_metric(F), F.at(start(F)))


def test_the_matrix_of_products_of_rows_is_paid_once():
    F = problem("logistic", rows=100, columns=4000)
    metric = metrics.Dual(F)
    assert metric.price_again < 0.1 * metric.price


@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_the_bound_holds_at_the_best_intercept(kind, alpha):
    """With an intercept that nothing penalises, the penalty bounds the distance as it does without."""
    F = problem(kind, rows=300, columns=20, alpha=alpha)
    rng = np.random.default_rng(6)
    least = exact_minimum(F)
    minimiser = minimise(F, start(F), tol=1e-14, max_iter=1000).theta
    for size in (1e-1, 1e-3):
        there = F.at(minimiser + size * rng.normal(size=minimiser.shape))
        goal = 1e-6 * least
        settled, gain = best_intercept(F, there, goal)
        assert gain <= 0.01 * goal
        assert settled.value <= there.value
        np.testing.assert_array_equal(settled.theta[:-1], there.theta[:-1])
        gradient = F.gradient(settled)
        assert np.abs(gradient[-1]).max() < 1e-3
        bound = F.proven_gap(gradient) + gain
        assert settled.value - least <= bound * (1.0 + 1e-9) + 1e-14
