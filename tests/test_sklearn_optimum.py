"""The estimators reach scikit-learn's optimum: relative difference of the objective below 1e-6."""

import bz2
import itertools
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_svmlight_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from targetopt.sklearn import SSOClassifier, SSORegressor


def objective(model, X, y, alpha):
    """Mean cross-entropy plus ½ alpha ‖w‖², from the model's own probabilities."""
    own = np.searchsorted(model.classes_, y)
    losses = -model.predict_log_proba(X)[np.arange(len(own)), own]
    return losses.mean() + 0.5 * alpha * np.sum(model.coef_**2)


def reference(X, y, alpha, **options):
    """scikit-learn's lbfgs at tol 1e-10; scipy's line search may stop at rounding before that."""
    model = LogisticRegression(C=1 / (alpha * len(y)), tol=1e-10, max_iter=20000, **options)
    return model.fit(X, y)


def check(X, y, alpha, **options):
    ours = SSOClassifier(alpha=alpha, **options).fit(X, y)
    theirs = reference(X, y, alpha, **options)
    ours, theirs = objective(ours, X, y, alpha), objective(theirs, X, y, alpha)
    assert abs(ours - theirs) <= 1e-6 * theirs


@cache
def real(path):
    with bz2.open(path) as stream:
        X, y = load_svmlight_file(stream)
    small = (X.indices.astype(np.int32), X.indptr.astype(np.int32))
    return sp.csr_array((X.data, *small), shape=X.shape), y  # lbfgs refuses int64 indices


LARGE = "rcv1-v2-subset"
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "fit_intercept", "alpha"),
    [
        *itertools.product(["mushrooms", "ijcnn1"], [False, True], ["1/n", 1e-6]),
        *(
            pytest.param(LARGE, *rest, marks=SLOW)
            for rest in itertools.product([False, True], ["1/n", 1e-6])
        ),
    ],
)
def test_real_data(real_data, name, fit_intercept, alpha):
    X, y = real(real_data(name))
    check(X, y, 1 / len(y) if alpha == "1/n" else alpha, fit_intercept=fit_intercept)


@pytest.mark.parametrize("alpha", [1e-2, 1e-4])
def test_breast_cancer(alpha):
    X, y = load_breast_cancer(return_X_y=True)
    check(StandardScaler().fit_transform(X), y, alpha)


@pytest.mark.parametrize("alpha", [1e-2, 1e-4])
@pytest.mark.parametrize("sparse", [False, True])
def test_digits(alpha, sparse):
    X, y = load_digits(return_X_y=True)
    check(sp.csr_array(X / 16) if sparse else X / 16, y, alpha)


@pytest.mark.parametrize("alpha", [1.0, 1e-3, 1e-8])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_diabetes(alpha, fit_intercept):
    X, y = load_diabetes(return_X_y=True)
    ours = SSORegressor(alpha=alpha, fit_intercept=fit_intercept).fit(X, y)
    theirs = Ridge(alpha=alpha * len(y), fit_intercept=fit_intercept, solver="cholesky").fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-8)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)


def test_mushrooms_with_hardly_a_penalty_end_well(real_data):
    """Separable: the minimum is near zero and far away. No warning, and still the optimum."""
    X, y = real(real_data("mushrooms"))
    model = SSOClassifier(alpha=1e-12).fit(X, y)
    assert model.score(X, y) == 1.0
    assert objective(model, X, y, 1e-12) < 1e-8
    assert model.n_iter_[0] < 60
