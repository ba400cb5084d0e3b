"""SSOClassifier and SSORegressor as scikit-learn users meet them."""

import pickle
import re

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from targetopt.sklearn import SSOClassifier, SSORegressor

IRIS = load_iris(return_X_y=True)
CANCER = (StandardScaler().fit_transform(load_breast_cancer().data), load_breast_cancer().target)
DIABETES = load_diabetes(return_X_y=True)


def known_to_fail(estimator):
    if isinstance(estimator, SSOClassifier) and not estimator.fit_intercept:
        # It wants nearly all of a cloud around the origin in one class; a plane through the origin
        # halves it. LogisticRegression(fit_intercept=False) fails alike: see the test below.
        return {"check_class_weight_classifiers": "no linear model without intercept can"}
    if isinstance(estimator, SSORegressor) and estimator.loss == "poisson":
        return {"check_regressor_multioutput": "it fits labels below zero, which are no counts"}
    return {}


@pytest.mark.filterwarnings("ignore")  # the checks provoke warnings on purpose
@parametrize_with_checks(
    [
        SSOClassifier(),
        SSOClassifier(fit_intercept=False),
        SSORegressor(),
        SSORegressor(loss="huber"),
        SSORegressor(loss="poisson"),
    ],
    expected_failed_checks=known_to_fail,
)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.mark.parametrize("data", [CANCER, IRIS], ids=["binary", "multiclass"])
def test_shapes_are_those_of_logistic_regression(data):
    X, y = data
    ours = SSOClassifier(alpha=1e-2).fit(X, y)
    theirs = LogisticRegression(max_iter=1000).fit(X, y)
    for name in ("coef_", "intercept_", "classes_", "n_iter_"):
        assert getattr(ours, name).shape == getattr(theirs, name).shape, name
    for method in ("decision_function", "predict_proba", "predict_log_proba", "predict"):
        assert getattr(ours, method)(X).shape == getattr(theirs, method)(X).shape, method


@pytest.mark.parametrize("data", [CANCER, IRIS], ids=["binary", "multiclass"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_alpha_is_one_over_c_n(data, fit_intercept):
    X, y = data
    theirs = LogisticRegression(C=2.0, fit_intercept=fit_intercept, tol=1e-10, max_iter=10000)
    theirs.fit(X, y)
    ours = SSOClassifier(alpha=1 / (2.0 * len(y)), fit_intercept=fit_intercept, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-4)


def test_probabilities_agree_with_their_logarithms_and_stay_exact():
    for X, y in (CANCER, IRIS):
        model = SSOClassifier(alpha=1e-3).fit(X, y)
        p = model.predict_proba(X)
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-9)
        np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X))
        assert np.isfinite(model.predict_log_proba(1e4 * X)).all()


@pytest.mark.parametrize(("X", "y"), [CANCER, IRIS], ids=["binary", "multiclass"])
@pytest.mark.parametrize("sparse", [False, True])
def test_weighted_rows_are_repeated_rows(X, y, sparse):
    rng = np.random.default_rng(0)
    repeats = rng.integers(0, 4, len(y))
    convert = sp.csr_array if sparse else np.asarray
    weighted = SSOClassifier(alpha=1e-3, tol=1e-12).fit(convert(X), y, sample_weight=repeats)
    repeated = SSOClassifier(alpha=1e-3, tol=1e-12)
    repeated.fit(convert(X.repeat(repeats, axis=0)), y.repeat(repeats))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(weighted.intercept_, repeated.intercept_, rtol=1e-5, atol=1e-6)


def test_the_scale_of_the_weights_is_irrelevant_for_a_penalty_that_is_given():
    X, y = CANCER
    weights = np.random.default_rng(1).random(len(y))
    one = SSOClassifier(1e-4, tol=1e-12).fit(X, y, sample_weight=weights)
    many = SSOClassifier(1e-4, tol=1e-12).fit(X, y, sample_weight=1e6 * weights)
    np.testing.assert_allclose(one.coef_, many.coef_, rtol=1e-6, atol=1e-9)


def test_class_weight_is_a_sample_weight():
    X, y = CANCER
    by_class = SSOClassifier(class_weight={0: 3.0, 1: 1.0}, tol=1e-12).fit(X, y)
    by_row = SSOClassifier(tol=1e-12).fit(X, y, sample_weight=np.where(y == 0, 3.0, 1.0))
    np.testing.assert_allclose(by_class.coef_, by_row.coef_, rtol=1e-9)
    balanced = SSOClassifier(class_weight="balanced", tol=1e-10).fit(X, y)
    counts = len(y) / (2 * np.bincount(y))
    by_row.fit(X, y, sample_weight=counts[y])
    np.testing.assert_allclose(balanced.predict_proba(X), by_row.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("centers", [2, 3])
def test_extreme_class_weights_are_those_of_logistic_regression(centers):
    X, y = make_blobs(centers=centers, random_state=0, cluster_std=20)
    options = {"class_weight": {0: 1000, 1: 1e-4, 2: 1e-4}, "fit_intercept": False}
    total = np.where(y == 0, 1000, 1e-4).sum()
    ours = SSOClassifier(alpha=1 / total, tol=1e-13, **options).fit(X, y)
    theirs = LogisticRegression(tol=1e-12, solver="newton-cg", **options).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-4)
    assert np.mean(ours.predict(X) == 0) < 0.87


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [-1, 1], [3.0, 7.0]])
def test_labels_of_any_kind_come_back(labels):
    X, y = CANCER
    names = np.array(labels)[y]
    model = SSOClassifier().fit(X, names)
    assert model.classes_.tolist() == sorted(labels)
    assert model.predict(X).dtype == names.dtype
    np.testing.assert_allclose(
        model.decision_function(X), SSOClassifier().fit(X, y).decision_function(X)
    )


@pytest.mark.parametrize(
    "convert",
    [
        sp.csr_matrix,
        sp.csr_array,
        sp.csc_array,
        sp.coo_array,
        np.asfortranarray,
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        lambda X: X.tolist(),
        lambda X: _with_int64(sp.csr_array(X)),
        lambda X: _with_duplicates(X),
        lambda X: _unsorted(sp.csr_array(X)),
    ],
    ids=[
        "csr_matrix",
        "csr_array",
        "csc",
        "coo",
        "fortran",
        "strided",
        "list",
        "int64",
        "duplicates",
        "unsorted",
    ],
)
def test_the_container_of_x_is_irrelevant(convert):
    X, y = CANCER
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    plain = SSOClassifier(tol=1e-12).fit(X, y)
    other = SSOClassifier(tol=1e-12).fit(convert(X), y)
    np.testing.assert_allclose(other.coef_, plain.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        other.decision_function(convert(X)), plain.decision_function(X), rtol=1e-6, atol=1e-8
    )


def _with_int64(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -1, 3, 7]),
        np.array([2, 1, 2], dtype=np.uint8),
        np.array([2**60, 2**60 + 1, -(2**63)]),  # float64 does not tell the first two apart
        np.array([True, False]),
        np.array(["b", "a"]),
        np.array([1.0, 0.0]),
    ],
    ids=["int64", "uint8", "large", "bool", "words", "float"],
)
def test_labels_are_those_of_numpy(labels):
    y = np.repeat(labels, 3)
    found = SSOClassifier().fit(np.arange(float(len(y)))[:, None], y).classes_
    np.testing.assert_array_equal(found, np.unique(y))
    assert found.dtype == np.unique(y).dtype


def _with_duplicates(X):
    half = sp.coo_array(X / 2)
    rows, columns = np.tile(half.row, 2), np.tile(half.col, 2)
    order = np.argsort(rows, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=X.shape[0]))])
    data = np.tile(half.data, 2)
    return sp.csr_array((data[order], columns[order], indptr), shape=X.shape)


def _unsorted(X):
    for start, stop in zip(X.indptr, X.indptr[1:], strict=False):
        X.indices[start:stop] = X.indices[start:stop][::-1].copy()
        X.data[start:stop] = X.data[start:stop][::-1].copy()
    X.has_sorted_indices = False
    return X


def test_the_users_matrix_is_left_as_it_was():
    X = _unsorted(sp.csr_array(np.where(np.abs(CANCER[0]) > 0.5, CANCER[0], 0.0)))
    before = (X.data.copy(), X.indices.copy(), X.indptr.copy())
    SSOClassifier().fit(X, CANCER[1])
    for now, then in zip((X.data, X.indices, X.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_float32_is_solved_in_float64():
    X, y = CANCER
    single = SSOClassifier(tol=1e-10).fit(X.astype(np.float32), y)
    double = SSOClassifier(tol=1e-10).fit(X.astype(np.float32).astype(np.float64), y)
    assert single.coef_.dtype == np.float64
    np.testing.assert_array_equal(single.coef_, double.coef_)


# JAX, which another test of this process may have imported, warns of every fork
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_in_a_pipeline_with_text_and_a_parallel_search():
    spam = ["win money now", "cheap money offer", "win a prize now", "offer prize cheap"] * 6
    ham = ["meeting at noon", "lunch at the office", "see you at noon", "office meeting notes"] * 6
    y = ["spam"] * len(spam) + ["ham"] * len(ham)
    search = GridSearchCV(
        make_pipeline(TfidfVectorizer(), SSOClassifier()),
        {"ssoclassifier__alpha": [1e-4, 1e-2]},
        cv=2,
        n_jobs=2,
    )
    with joblib.parallel_config(
        backend="multiprocessing"
    ):  # forks, which need not import everything
        search.fit(spam + ham, y)
    assert search.best_score_ == 1.0
    assert search.predict(["money prize", "lunch meeting"]).tolist() == ["spam", "ham"]


def test_pickle_clone_and_set_params():
    X, y = IRIS
    model = SSOClassifier(alpha=1e-3).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    again.partial_fit(X[:50], y[:50])  # the memory travels too
    fresh = clone(model).set_params(alpha=0.5)
    assert (fresh.alpha, hasattr(fresh, "coef_")) == (0.5, False)
    # A fitted model is small: nothing of the data stays inside.
    assert len(pickle.dumps(SSOClassifier().fit(np.tile(X, (100, 1)), np.tile(y, 100)))) < 3000


def test_feature_names_are_kept_and_checked():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(IRIS[0], columns=list("abcd"))
    model = SSOClassifier().fit(frame, IRIS[1])
    assert model.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("dcba")])


def test_warm_start_begins_where_the_last_fit_ended():
    X, y = IRIS
    cold = SSOClassifier(alpha=1e-5).fit(X, y)
    warm = SSOClassifier(alpha=1e-5, warm_start=True).fit(X, y)
    first = int(warm.n_iter_[0])
    warm.fit(X, y)
    assert warm.n_iter_[0] <= 2 < first
    np.testing.assert_allclose(warm.predict_proba(X), cold.predict_proba(X), atol=1e-5)
    warm.fit(X[y < 2], y[y < 2])  # other classes: begins afresh
    assert warm.coef_.shape == (1, 4)
    regressor = SSORegressor(warm_start=True, loss="huber", alpha=1e-3).fit(*DIABETES)
    first = regressor.n_iter_
    assert regressor.fit(*DIABETES).n_iter_ < first
    regressor.fit(DIABETES[0][:, :4], DIABETES[1])  # other columns: begins afresh
    assert regressor.coef_.shape == (4,)
    warm.fit(X[:, :2], y)
    assert warm.coef_.shape == (3, 2)
    warm.fit(X[:, :3], y)  # the same classes, other columns
    assert warm.coef_.shape == (3, 3)
    warm.fit_intercept = False  # the same columns, one coefficient fewer
    assert (warm.fit(X[:, :3], y).intercept_ == 0).all()


def test_stopping_early_warns_and_says_what_to_do():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=1 .*scale the features"):
        SSOClassifier(max_iter=1).fit(*IRIS)
    with pytest.warns(ConvergenceWarning, match="SSORegressor stopped"):
        SSORegressor(max_iter=1, loss="huber").fit(*DIABETES)


# -- partial_fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("X", "y"), [CANCER, IRIS], ids=["binary", "multiclass"])
def test_the_first_partial_fit_is_fit(X, y):
    part = SSOClassifier(alpha=1e-3).partial_fit(X, y, classes=np.unique(y))
    np.testing.assert_array_equal(part.coef_, SSOClassifier(alpha=1e-3).fit(X, y).coef_)
    np.testing.assert_array_equal(
        SSORegressor().partial_fit(*DIABETES).coef_, SSORegressor().fit(*DIABETES).coef_
    )


def test_partial_fit_is_exact_for_one_feature_and_squared_loss():
    """Λ is then the whole Hessian, so the pieces add up to least squares on all rows."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 1))
    y = 3 * X[:, 0] + rng.normal(size=300)
    pieces = SSORegressor(alpha=0.1, fit_intercept=False, tol=1e-14)
    for rows in np.array_split(np.arange(300), 7):
        pieces.partial_fit(X[rows], y[rows])
    whole = SSORegressor(alpha=0.1, fit_intercept=False, tol=1e-14).fit(X, y)
    np.testing.assert_allclose(pieces.coef_, whole.coef_, rtol=1e-10)


@pytest.mark.parametrize(("X", "y"), [CANCER, IRIS], ids=["binary", "multiclass"])
def test_partial_fit_in_pieces_comes_near_the_whole(X, y):
    X = StandardScaler().fit_transform(X)
    order = np.random.default_rng(3).permutation(len(y))
    model = SSOClassifier(alpha=1e-3)
    for rows in np.array_split(order, 6):
        model.partial_fit(X[rows], y[rows], classes=np.unique(y))
    assert model.score(X, y) > SSOClassifier(alpha=1e-3).fit(X, y).score(X, y) - 0.03


def test_partial_fit_remembers_what_the_new_rows_do_not_show():
    """Rows without a feature must not change its coefficient by more than the penalty does."""
    X, y = CANCER
    model = SSOClassifier(alpha=1e-4).fit(X, y)
    before = model.coef_[0, 5]
    hidden = X.copy()
    hidden[:, 5] = 0.0
    model.partial_fit(hidden[:100], y[:100])
    assert model.coef_[0, 5] == pytest.approx(before, rel=0.05)


def test_partial_fit_checks_its_classes():
    X, y = IRIS
    with pytest.raises(ValueError, match="needs classes= at its first call"):
        SSOClassifier().partial_fit(X, y)
    model = SSOClassifier().partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="differ from those of the first call"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"labels \[7\]"):
        model.partial_fit(X[:2], [0, 7])
    with pytest.raises(ValueError, match="class_weight='balanced'"):
        SSOClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="at least 2"):
        SSOClassifier().partial_fit(X, np.zeros(150), classes=[0])


def test_a_batch_of_one_class_is_survived():
    X, y = CANCER
    model = SSOClassifier(alpha=1e-3).partial_fit(X[y == 0][:50], y[y == 0][:50], classes=[0, 1])
    assert np.isfinite(model.coef_).all()
    for rows in np.array_split(np.random.default_rng(4).permutation(len(y)), 4):
        model.partial_fit(X[rows], y[rows])
    assert model.score(X, y) > 0.93


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1.0 must be"),
        ({"alpha": float("nan")}, "alpha=nan"),
        ({"alpha": "big"}, "alpha='big'"),
        ({"tol": -1e-3}, "tol=-0.001"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"max_iter": 2.5}, "max_iter=2.5"),
    ],
)
@pytest.mark.parametrize("estimator", [SSOClassifier, SSORegressor])
def test_bad_parameters_are_named(estimator, parameters, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        estimator(**parameters).fit(*IRIS)


def test_bad_data_are_refused_in_words():
    X, y = IRIS
    with pytest.raises(ValueError, match="only one class"):
        SSOClassifier().fit(X, np.zeros(150))
    with pytest.raises(ValueError, match="zero"):
        SSOClassifier().fit(X, y, sample_weight=np.zeros(150))
    with pytest.raises(ValueError, match="sum to 0"):
        SSOClassifier(class_weight={0: 0, 1: 0, 2: 0}).fit(X, y)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        SSOClassifier().fit(X, y, sample_weight=-np.ones(150))
    for bad in (np.nan, np.inf):
        broken = X.copy()
        broken[3, 1] = bad
        for container in (np.asarray, sp.csr_array):
            with pytest.raises(ValueError, match=r"NaN|infinity"):
                SSOClassifier().fit(container(broken), y)
        target = DIABETES[1].copy()
        target[2] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            SSORegressor().fit(DIABETES[0], target)
    with pytest.raises(ValueError, match="0 sample"):
        SSOClassifier().fit(np.empty((0, 4)), [])
    with pytest.raises(ValueError, match="continuous"):
        SSOClassifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="4 features"):
        SSOClassifier().fit(X, y).predict(X[:, :3])
    with pytest.raises(NotFittedError):
        SSOClassifier().predict(X)
    with pytest.raises(ValueError, match="loss='hinge' must be"):
        SSORegressor(loss="hinge").fit(X, y)
    with pytest.raises(ValueError, match="delta=0"):
        SSORegressor(loss="huber", delta=0).fit(X, y)
    with pytest.raises(ValueError, match=r"needs y >= 0.*row 1"):
        SSORegressor(loss="poisson").fit(X[:2], [1.0, -2.0])


def test_a_broken_sparse_matrix_is_refused_before_it_can_crash():
    X = sp.csr_array(IRIS[0])
    X.indices[5] = 10**6
    with pytest.raises(ValueError, match="point outside"):
        SSOClassifier().fit(X, IRIS[1])


# -- hard data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 1e-12, 1e-6])
@pytest.mark.parametrize("sparse", [False, True])
def test_separable_data_end_well(alpha, sparse):
    """No finite minimum at alpha = 0; the fit still ends, finite, separating, without a warning."""
    X = np.array([[-2.0, 1.0], [-1.0, 0.0], [1.0, 0.0], [2.0, 1.0]] * 5)
    y = np.array([0, 0, 1, 1] * 5)
    model = SSOClassifier(alpha=alpha).fit(sp.csr_array(X) if sparse else X, y)
    assert np.isfinite(model.coef_).all()
    assert model.score(X, y) == 1.0


@pytest.mark.parametrize("sparse", [False, True])
def test_useless_columns_and_rows_change_nothing(sparse):
    X, y = CANCER
    zeros, ones = np.zeros((len(y), 1)), np.ones((len(y), 1))
    padded = np.hstack([X, zeros, ones, X[:, :1]])
    padded = sp.csr_array(padded) if sparse else padded
    model = SSOClassifier(alpha=1e-3, tol=1e-12).fit(padded, y)
    assert np.isfinite(model.coef_).all()
    assert model.coef_[0, 30] == 0.0  # no data, no opinion
    assert model.coef_[0, 31] == pytest.approx(0.0, abs=1e-5)  # the intercept is free, this is not
    assert model.coef_[0, 32] == pytest.approx(model.coef_[0, 0], rel=1e-4)  # twins share


def test_badly_scaled_columns_are_no_obstacle():
    X, y = load_breast_cancer(return_X_y=True)
    model = SSOClassifier(alpha=1e-8).fit(X * np.logspace(-4, 4, 30), y)
    assert model.n_iter_[0] < 60


def test_more_columns_than_rows():
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(40, 500)), rng.integers(0, 2, 40)
    ours = SSOClassifier(alpha=1e-2, tol=1e-12).fit(X, y)
    theirs = LogisticRegression(C=1 / (1e-2 * 40), tol=1e-10, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
