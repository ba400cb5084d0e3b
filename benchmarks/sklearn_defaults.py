"""The defaults of the estimators beside those of scikit-learn: held-out log-loss, R² and D² over many data sets.

Every estimator is taken as it comes, after ``StandardScaler`` (``MaxAbsScaler`` for sparse data), on the same folds.
The column ``1e-4`` is the fixed penalty that the default was before. Data sets: all that come with scikit-learn,
generated ones with few and with many columns, with noise in the labels, rare classes and outliers, and the real ones
where they lie beside the checkout.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics import d2_tweedie_score, make_scorer
from sklearn.model_selection import KFold, RepeatedStratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from benchmarks.harness import one_thread, save, table
from benchmarks.sklearn_solvers import DATA, FILES
from targetopt.sklearn import SSOClassifier, SSORegressor

CLASSIFIERS: dict[str, Callable[[], BaseEstimator]] = {
    "LogisticRegression()": lambda: LogisticRegression(max_iter=3000),
    "SSOClassifier()": SSOClassifier,
    "SSOClassifier(1e-4)": lambda: SSOClassifier(1e-4),
}


def classification() -> Iterator[tuple[str, Any, Any]]:
    for name in ("breast_cancer", "iris", "wine", "digits"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, X, y
    make = datasets.make_classification
    yield "200 × 50", *make(200, 50, n_informative=5, random_state=0)
    yield "2000 × 20", *make(2000, 20, n_informative=8, random_state=0)
    yield "300 × 500", *make(300, 500, n_informative=10, random_state=0)
    yield "noisy labels", *make(500, 30, n_informative=8, flip_y=0.3, random_state=0)
    yield "rare class", *make(1500, 20, weights=[0.95], n_informative=6, random_state=0)
    yield "five classes", *make(600, 30, n_informative=12, n_classes=5, random_state=0)
    yield "blobs", *datasets.make_blobs(300, 10, centers=4, cluster_std=4.0, random_state=0)
    yield "moons", *datasets.make_moons(300, noise=0.3, random_state=0)
    for name, file in FILES.items():
        if (DATA / file).is_file():
            X, y = datasets.load_svmlight_file(str(DATA / file))
            kept = np.random.default_rng(0).permutation(len(y))[:4000]
            yield f"{name}, 4000 rows", X[kept], y[kept]


def held_out(X: Any, y: Any, estimator: BaseEstimator, scoring: Any, folds: Any) -> float:
    scaler = StandardScaler() if isinstance(X, np.ndarray) else MaxAbsScaler()
    model = make_pipeline(scaler, estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(cross_val_score(model, X, y, scoring=scoring, cv=folds).mean())


def contaminated(scale: float) -> tuple[Any, Any]:
    """A line with outliers in one direction, in any unit of y."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8))
    y = X @ rng.normal(size=8) + 0.3 * rng.normal(size=400)
    y[rng.permutation(400)[:60]] += 20.0
    return X, scale * y


def median_score(y: Any, predicted: Any) -> float:
    """The median error, which outliers that are held out do not move, in spreads of y."""
    spread = np.median(np.abs(y - np.median(y)))
    return -float(np.median(np.abs(y - predicted)) / spread)


def main() -> None:
    one_thread()
    folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
    rows = []
    for name, X, y in classification():
        row: dict[str, Any] = {"data": name, "rows": X.shape[0], "columns": X.shape[1]}
        for title, make in CLASSIFIERS.items():
            row[title] = -held_out(X, y, make(), "neg_log_loss", folds)
        print(row, flush=True)
        rows.append(row)
    five = KFold(5, shuffle=True, random_state=0)
    regression: list[dict[str, Any]] = []
    X, y = datasets.load_diabetes(return_X_y=True)
    for title, estimator in {"Ridge()": Ridge(), "SSORegressor()": SSORegressor()}.items():
        score = held_out(X, y, estimator, "r2", five)
        regression.append({"data": "diabetes", "estimator": title, "measure": "R²", "value": score})
    for scale in (1.0, 1000.0):
        X, y = contaminated(scale)
        for title, estimator in {
            "HuberRegressor()": HuberRegressor(max_iter=1000),
            'SSORegressor(loss="huber")': SSORegressor(loss="huber"),
            'SSORegressor(loss="huber", delta=1.0)': SSORegressor(loss="huber", delta=1.0),
            "SSORegressor()": SSORegressor(),
        }.items():
            score = -held_out(X, y, estimator, make_scorer(median_score), five)
            what = {"data": f"outliers, y × {scale:g}", "measure": "median error / spread of y"}
            regression.append({**what, "estimator": title, "value": score})
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 6))
    y = rng.poisson(np.exp(X @ (0.4 * rng.normal(size=6)))).astype(float)
    explained = make_scorer(d2_tweedie_score, power=1)
    for title, estimator in {
        "PoissonRegressor()": PoissonRegressor(),
        'SSORegressor(loss="poisson")': SSORegressor(loss="poisson"),
    }.items():
        score = held_out(X, y, estimator, explained, five)
        regression.append({"data": "counts", "estimator": title, "measure": "D²", "value": score})
    for found in (rows, regression):
        table(list(found[0]), [[_shown(each[key]) for key in found[0]] for each in found])
    save("sklearn_defaults", {"log_loss": rows, "regression": regression}, "scikit-learn")


def _shown(value: object) -> object:
    return f"{value:.4f}" if isinstance(value, float) else value


if __name__ == "__main__":
    main()
