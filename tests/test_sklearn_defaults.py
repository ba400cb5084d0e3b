"""What the estimators do when nothing is said: the defaults of scikit-learn's own, in any unit, with any weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.preprocessing import StandardScaler

from targetopt.errors import BadArgument
from targetopt.sklearn import SSOClassifier, SSORegressor


def scaled(load) -> tuple[np.ndarray, np.ndarray]:
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_the_classifier_is_logistic_regression(load, class_weight) -> None:
    X, y = scaled(load)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, size=len(y))
    ours = SSOClassifier(class_weight=class_weight, tol=1e-12).fit(X, y, weights)
    theirs = LogisticRegression(class_weight=class_weight, tol=1e-10, max_iter=10000)
    theirs.fit(X, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)


def test_the_regressor_is_ridge() -> None:
    X, y = scaled(load_diabetes)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, size=len(y))
    ours, theirs = SSORegressor(tol=1e-14).fit(X, y, weights), Ridge().fit(X, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)


@pytest.mark.parametrize("alpha", ["Auto", -1.0, None])
def test_what_is_no_penalty_is_refused(alpha) -> None:
    with pytest.raises(BadArgument, match=r"alpha=.*'auto' one over the number of rows"):
        SSOClassifier(alpha).fit(np.eye(2), [0, 1])


def test_rows_that_come_later_pay_no_penalty_again() -> None:
    """Least squares: Λ is exact in one dimension, so parts give what all rows together give."""
    rng = np.random.default_rng(0)
    X, options = rng.normal(size=(60, 1)), {"fit_intercept": False, "tol": 1e-14}
    y = 2 * X[:, 0] + rng.normal(size=60)
    whole, parts = SSORegressor(**options).fit(X, y), SSORegressor(**options)
    for k in range(3):
        parts.partial_fit(X[20 * k : 20 * k + 20], y[20 * k : 20 * k + 20])
    np.testing.assert_allclose(parts.coef_, whole.coef_, rtol=1e-9)


def outliers() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X, wanted = rng.normal(size=(300, 4)), rng.normal(size=4)
    y = X @ wanted + 0.2 * rng.normal(size=300)
    y[:40] += 30.0
    return X, y, wanted


def test_hubers_loss_finds_the_spread_of_the_errors_in_any_unit() -> None:
    X, y, wanted = outliers()
    model = SSORegressor(0.0, loss="huber").fit(X, y)
    assert model.delta_ == pytest.approx(1.35 * 0.2, rel=0.3)
    assert np.abs(model.coef_ - wanted).max() < 0.1
    for unit in (1e-3, 2.0**10):
        other = SSORegressor(0.0, loss="huber").fit(X, unit * y)
        assert other.delta_ == pytest.approx(unit * model.delta_, rel=1e-6)
        np.testing.assert_allclose(other.coef_, unit * model.coef_, rtol=1e-6)
    theirs = HuberRegressor(alpha=0.0, max_iter=1000).fit(X, y)
    assert np.abs(model.coef_ - wanted).max() <= 1.5 * np.abs(theirs.coef_ - wanted).max()


def test_hubers_default_counts_a_weight_as_rows() -> None:
    X, y, _ = outliers()
    twice = np.r_[np.ones(200), np.full(100, 2.0)]
    rows = np.r_[0:300, 200:300]
    weighted = SSORegressor(loss="huber", tol=1e-12).fit(X, y, twice)
    repeated = SSORegressor(loss="huber", tol=1e-12).fit(X[rows], y[rows])
    assert weighted.delta_ == pytest.approx(repeated.delta_, rel=1e-8)
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-8)


def test_hubers_default_on_targets_that_are_all_the_same() -> None:
    model = SSORegressor(loss="huber").fit(np.eye(4), np.full(4, 3.0))
    np.testing.assert_allclose(model.predict(np.eye(4)), 3.0)


def test_counts_are_scored_by_the_deviance_that_is_explained() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y, weights = rng.poisson(np.exp(X @ [0.5, -0.3, 0.2])), rng.uniform(0.5, 2.0, size=200)
    ours = SSORegressor(1e-3, loss="poisson", tol=1e-12).fit(X, y)
    theirs = PoissonRegressor(alpha=1e-3, tol=1e-10, max_iter=1000).fit(X, y)
    assert ours.score(X, y, weights) == pytest.approx(theirs.score(X, y, weights), rel=1e-7)
    squared = SSORegressor().fit(X, y)
    assert squared.score(X, y) == pytest.approx(Ridge().fit(X, y).score(X, y), rel=1e-7)
