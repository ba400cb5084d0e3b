"""A fit is a function of the problem: of nothing else, to the accuracy asked for, or not at all."""

import copy
import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from sklearn.exceptions import ConvergenceWarning

import targetopt
from targetopt import TargetoptError
from targetopt.linear.newton import metrics
from targetopt.losses import CrossEntropy, Huber, Logistic, Poisson, Squared
from targetopt.sklearn import SSOClassifier, SSORegressor

PACKAGE = str(Path(targetopt.__file__).parent)
CLASSIFIER = {"logistic": 2, "softmax": 3}
LOSSES = {"logistic": Logistic, "softmax": CrossEntropy, "huber": Huber, "poisson": Poisson}


def model_for(kind, **options):
    if kind in CLASSIFIER:
        return SSOClassifier(**options)
    return SSORegressor(loss=kind, **options)


# -- repeated and weighted rows -----------------------------------------------------------------------


def labels_for(kind, n, rng):
    if kind in CLASSIFIER:
        k = CLASSIFIER[kind]
        return np.concatenate([np.arange(k), rng.integers(0, k, n - k)])
    if kind == "poisson":
        return rng.poisson(2.0, n).astype(float)
    return 3.0 * rng.standard_t(2, n)


def discrepancy(kind, seed, *, sparse=False, **options):
    """|a − b| in units of scikit-learn's allowance (1e-7 relative, 1e-9 absolute).

    a is fitted on repeated rows, b on weighted ones in another order, with noise in the last bits of X:
    as if another processor had computed it.
    """
    rng = np.random.default_rng(seed)
    n = 15
    X = rng.random((n, 2 * n))
    y = labels_for(kind, n, rng)
    repeats = rng.integers(0, 5, n)
    repeats[:3] = 1
    order = rng.permutation(n)
    noisy = X * (1.0 + np.finfo(float).eps * rng.integers(-1, 2, X.shape))
    convert = sp.csr_array if sparse else np.asarray
    a = model_for(kind, **options)
    a.fit(convert(X.repeat(repeats, axis=0)), y.repeat(repeats))
    b = model_for(kind, **options)
    b.fit(convert(noisy[order]), y[order], sample_weight=repeats[order])
    methods = ["predict_proba", "decision_function"] if kind in CLASSIFIER else ["predict"]
    pairs = [(getattr(a, method)(X), getattr(b, method)(X)) for method in methods]
    return max(np.max(np.abs(one - two) / (1e-9 + 1e-7 * np.abs(two))) for one, two in pairs)


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared", "huber", "poisson"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_repeated_and_weighted_rows_end_at_the_same_point(kind, fit_intercept, sparse):
    """At the default tolerance, and with a hundredth of what scikit-learn's check allows."""
    options = {"fit_intercept": fit_intercept, "sparse": sparse}
    if kind == "huber":
        options |= {"delta": 0.5, "alpha": 1e-2}
    worst = max(discrepancy(kind, seed, **options) for seed in range(12))
    assert worst < 1e-2


# -- the distance to the minimum ----------------------------------------------------------------------


def problem(seed):
    """A random problem: shape, scale of columns, sparsity, weights, penalty, loss, tolerance."""
    rng = np.random.default_rng(seed)
    kind = ["squared", "logistic", "softmax", "huber", "poisson"][seed % 5]
    n, d = int(rng.integers(20, 300)), int(rng.integers(2, 40))
    X = rng.normal(size=(n, d))
    sparse = bool(rng.integers(2))
    if sparse:
        X *= rng.random((n, d)) < rng.choice([0.05, 0.3, 0.6])
    X *= 10.0 ** -rng.uniform(0, rng.choice([0, 2, 6]), d)
    X *= 10.0 ** rng.uniform(-2, 2)
    y = labels_for(kind, n, rng)
    weights = np.ones(n) if rng.integers(2) else rng.integers(0, 4, n).astype(float)
    weights[:3] = 1.0
    options = {
        "alpha": 10.0 ** rng.uniform(-9, 0),
        "fit_intercept": bool(rng.integers(2)),
        "tol": float(rng.choice([1e-3, 1e-5, 1e-8, 1e-10])),
        "max_iter": 3000,
    }
    if kind == "huber":
        options["delta"] = 1.0
    return kind, X, sparse, y, weights, options


def public_loss(kind, y):
    if kind == "squared":
        return Squared(torch.from_numpy(y))
    labels = 2.0 * y - 1.0 if kind == "logistic" else y
    return LOSSES[kind](torch.from_numpy(labels))


class Reference:
    """F with its Hessian as a dense matrix, and its minimum by damped Newton steps on that."""

    def __init__(self, kind, X, y, weights, alpha, fit_intercept):
        self.loss = public_loss(kind, y)
        self.least = self.loss.lower_bound().numpy()
        self.X = np.column_stack([X, np.ones(len(X))]) if fit_intercept else X
        self.weights = weights / weights.sum()
        self.ridge = np.full(self.X.shape[1], alpha)
        if fit_intercept:
            self.ridge[-1] = 0.0

    def value(self, theta):
        losses = self.loss.value(torch.from_numpy(self.X @ theta)).numpy() - self.least
        return self.weights @ losses + 0.5 * np.sum(self.ridge * (theta**2).T)

    def newton(self, theta):
        """∇F and H⁻¹∇F, flat."""
        z = torch.from_numpy(self.X @ theta)
        W = self.loss.curvature(z).numpy()
        W = W.reshape(len(self.X), -1) if W.ndim < 3 else W
        k = theta.shape[1] if theta.ndim == 2 else 1
        d = self.X.shape[1]
        H = np.zeros((d, k, d, k))
        for a, b in itertools.product(range(k), range(k)):
            w = self.weights * (W[:, a, b] if k > 1 else W[:, 0])
            H[:, a, :, b] = (self.X.T * w) @ self.X
        H = H.reshape(d * k, d * k) + np.diag(np.repeat(self.ridge, k))
        slope = (self.weights * self.loss.gradient(z).numpy().T).T
        g = (self.X.T @ slope + (self.ridge * theta.T).T).ravel()
        scale = 1.0 / np.sqrt(np.maximum(H.diagonal(), 1e-200))
        values, vectors = scipy.linalg.eigh(H * scale * scale[:, None])
        keep = values > 1e-15 * values.size
        part = vectors[:, keep]
        return g, scale * (part @ ((part.T @ (scale * g)) / values[keep]))

    def gap(self, theta):
        """F(θ) − min F: what damped Newton steps gain, and half the decrement that is left."""
        start = value = self.value(theta)
        for _ in range(100):
            g, u = self.newton(theta)
            decrement = float(g @ u)
            if decrement <= 1e-15 * value:
                break
            size = 1.0
            while (
                self.value(theta - size * u.reshape(theta.shape)) > value - 1e-4 * size * decrement
            ):
                size *= 0.5
                if size < 1e-10:
                    return start - value + 0.5 * decrement
            theta = theta - size * u.reshape(theta.shape)
            value = self.value(theta)
        return start - value + 0.5 * decrement


def parameters(model, kind):
    theta = np.atleast_2d(model.coef_).T
    if model.fit_intercept:
        theta = np.vstack([theta, np.atleast_1d(model.intercept_)])
    return theta if kind == "softmax" else theta[:, 0]


def shares_of_the_allowance(seeds):
    """(F − min F)/max(tol·F, ε·F₀) for each fit that did not warn, and how many warned."""
    shares, warned = {}, 0
    for seed in seeds:
        kind, X, sparse, y, weights, options = problem(seed)
        model = model_for(kind, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(sp.csr_array(X) if sparse else X, y, sample_weight=weights)
        if any(issubclass(w.category, ConvergenceWarning) for w in caught):
            warned += 1
            continue
        F = Reference(kind, X, y, weights, options["alpha"], options["fit_intercept"])
        theta = parameters(model, kind)
        first = F.value(np.zeros_like(theta))
        allowed = max(options["tol"] * F.value(theta), 1e-15 * first)
        shares[seed] = F.gap(theta) / allowed
    return shares, warned


@pytest.mark.parametrize("block", range(4))
def test_a_fit_without_warning_is_within_tol_of_the_minimum(block):
    shares, warned = shares_of_the_allowance(range(25 * block, 25 * (block + 1)))
    assert not warned
    assert max(shares.values()) <= 1.0, shares


def test_estimated_distances_are_of_the_right_size(monkeypatch):
    """A diagonal metric on ill-conditioned problems, none of which would be given it."""
    monkeypatch.setattr("targetopt.linear.newton.solver.cheapest_metric", metrics.Diagonal)
    shares, _ = shares_of_the_allowance(range(60))
    found = np.array(list(shares.values()))
    assert found.max() <= 10.0, shares
    assert np.mean(found > 1.0) <= 0.05, shares


# -- numbers at the ends of float64 -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared", "huber", "poisson"])
@pytest.mark.parametrize("scale", [1e160, 1e-200])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_whose_squares_overflow_are_refused(kind, scale, sparse):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 5)), labels_for(kind, 60, rng)
    convert = sp.csr_array if sparse else np.asarray
    with pytest.raises(TargetoptError, match=r"largest entry of X.*Scaler"):
        model_for(kind).fit(convert(scale * X), y)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_tiny_column_is_refused_only_where_it_would_matter(sparse):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    X[:, 1] *= 1e-200
    convert = sp.csr_array if sparse else np.asarray
    with pytest.raises(TargetoptError, match=r"column 1 of X"):
        SSORegressor(alpha=0.0).fit(convert(X), y)
    assert abs(SSORegressor(alpha=1e-3).fit(convert(X), y).coef_[1]) < 1e-190


@pytest.mark.parametrize("kind", ["squared", "huber"])
@pytest.mark.parametrize("unit", [2.0**996, 2.0**-996])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_labels_of_any_size_are_rescaled(kind, unit, fit_intercept):
    """Squared and Huber's loss know no unit: the coefficients are the same in y's unit, bit for bit."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 5))
    y = X @ rng.normal(size=5) + rng.standard_t(2, 60)
    y *= 1.1 / np.abs(y).max()  # so that the unit found is the unit given
    one = model_for(kind, fit_intercept=fit_intercept).set_params(delta=0.1).fit(X, y)
    far = model_for(kind, fit_intercept=fit_intercept).set_params(delta=0.1 * unit).fit(X, unit * y)
    np.testing.assert_array_equal(far.coef_, unit * one.coef_)
    assert far.intercept_ == unit * one.intercept_
    np.testing.assert_allclose(far.predict(X), unit * one.predict(X), rtol=1e-12)
    far.partial_fit(X, unit * y)
    one.partial_fit(X, y)
    np.testing.assert_allclose(far.coef_, unit * one.coef_, rtol=1e-9)


def test_counts_beyond_reason_are_refused():
    X, y = np.eye(4), np.array([1.0, 2.0, 3.0, 1e300])
    with pytest.raises(TargetoptError, match=r"y holds 1e\+300 in row 3"):
        SSORegressor(loss="poisson").fit(X, y)


def test_hubers_delta_must_be_in_proportion():
    with pytest.raises(TargetoptError, match="out of proportion"):
        SSORegressor(loss="huber", delta=1e-200).fit(np.eye(3), np.array([1e300, 0.0, -1e300]))


# -- a fit that does not end --------------------------------------------------------------------------


def state(model):
    return {name: np.copy(value) for name, value in vars(model).items()}


def assert_same_state(model, before):
    now = state(model)
    assert now.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(now[name], value, err_msg=name)


def old_and_new(kind):
    """A fitted model, and data of other labels and another number of columns."""
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(60, 5)), labels_for(kind, 60, rng)
    model = model_for(kind).fit(X, y)
    other = np.array(["a", "b", "c"])[y.astype(int)] if kind in CLASSIFIER else y + 1.0
    return model, np.column_stack([X, X[:, 0]]), other


@pytest.mark.parametrize("kind", ["logistic", "softmax", "squared", "poisson"])
def test_a_refused_fit_changes_nothing(kind):
    model, X, y = old_and_new(kind)
    before = state(model)
    with pytest.raises(ValueError, match="weight"):
        model.fit(X, y, sample_weight=np.zeros(60))
    assert_same_state(model, before)
    with pytest.raises(TargetoptError, match="largest entry"):
        model.fit(1e160 * X, y)
    assert_same_state(model, before)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X, y)
    assert_same_state(model, before)


@pytest.mark.parametrize("kind", ["softmax", "huber"])
def test_an_interrupted_fit_has_changed_nothing_or_is_done(kind):
    """Ctrl-C at fifty of the lines that a fit runs through, the last ones among them."""
    old, X, y = old_and_new(kind)
    before, after = state(old), state(model_for(kind).fit(X, y))
    whole = copy.deepcopy(old)
    lines = lines_run(lambda: whole.fit(X, y), stop_at=None)
    outcomes = set()
    for number in [*range(1, lines, lines // 45), *range(lines - 4, lines + 1)]:
        model = copy.deepcopy(old)
        with pytest.raises(KeyboardInterrupt):
            lines_run(lambda model=model: model.fit(X, y), stop_at=number)
        done = model.n_features_in_ == 6
        assert_same_state(model, after if done else before)
        outcomes.add(done)
    assert outcomes == {False, True}


def lines_run(call, stop_at):
    """How many lines of the package ``call`` runs; it is interrupted at the line of this number."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            lines += 1
            if lines == stop_at:
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return lines
