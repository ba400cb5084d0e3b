"""Fits that begin without a factor of the Hessian, and the bound that tells them when to end."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from targetopt.linear.newton import PenalisedLoss, choice, metrics, minimise
from targetopt.linear.newton.intercepts import best_intercept
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
    assert choice.worth_trying_without(choice.cheapest_metric(F))
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


def test_a_factor_that_costs_next_to_nothing_is_made_at_once():
    assert not choice.worth_trying_without(
        choice.cheapest_metric(problem("logistic", rows=500, columns=8))
    )


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
