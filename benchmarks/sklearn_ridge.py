"""`SSORegressor` with the squared loss beside every solver of `Ridge`, to the same objective.

    python -m benchmarks sklearn_ridge

A fit counts if it ends within `ACCURACY` of the best objective that any of them reached, relatively. Iterative
solvers of `Ridge` get the loosest tolerance, by decades, with which they do. Candidates are timed in turns in one
process on one thread; a ratio above 1 means that we lose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import Ridge

from benchmarks.harness import one_thread, save, spread, table, times_in_turns
from targetopt.sklearn import SSORegressor

ACCURACY = 1e-6
ROUNDS = 9
OURS = "SSORegressor"
DIRECT = ("auto", "cholesky", "svd")
ITERATIVE = ("lsqr", "sparse_cg")  # sag and saga took more than ten times as long on all of these
TOLERANCES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
LARGEST_SVD = 10**6  # entries of X beyond which an SVD takes many times as long as any other


def shapes() -> dict[str, Any]:
    """The four that the aim names, and others between them."""
    rng = np.random.default_rng(0)
    scales = np.logspace(0, -3, 200)
    return {
        "100000 × 50": rng.normal(size=(100_000, 50)),
        "500 × 10000": rng.normal(size=(500, 10_000)),
        "20000 × 20000 sparse": sp.csr_matrix(sp.random(20_000, 20_000, density=1e-3, random_state=0)),
        "4000 × 10": rng.normal(size=(4000, 10)),
        "5000 × 1000": rng.normal(size=(5000, 1000)),
        "20000 × 200, correlated": rng.normal(size=(20_000, 200)) @ (rng.normal(size=(200, 200)) * scales),
        "300 × 3000, correlated": rng.normal(size=(300, 100)) @ rng.normal(size=(100, 3000)),
    }  # fmt: skip


def objective(model: Any, X: Any, y: Any, alpha: float) -> float:
    """F of a fitted model."""
    errors = X @ model.coef_ + model.intercept_ - y
    return float(0.5 * np.mean(errors**2) + 0.5 * alpha * (model.coef_ @ model.coef_))


def candidates(X: Any, y: Any, alpha: float, intercept: bool) -> dict[str, Callable[[], Any]]:
    """Every way to fit that reaches the accuracy; of an iterative solver the loosest tolerance."""

    def ridge(solver: str, tol: float) -> Callable[[], Any]:
        return lambda: Ridge(
            alpha * X.shape[0], solver=solver, tol=tol, fit_intercept=intercept, max_iter=10_000
        ).fit(X, y)

    ours = lambda: SSORegressor(alpha, fit_intercept=intercept, tol=ACCURACY).fit(X, y)  # noqa: E731
    direct = [
        each
        for each in DIRECT
        if each == "auto" or not (sp.issparse(X) or (each == "svd" and X.size > LARGEST_SVD))
    ]
    every = {OURS: [ours], **{each: [ridge(each, 1e-4)] for each in direct}}
    every |= {each: [ridge(each, tol) for tol in TOLERANCES] for each in ITERATIVE}
    reached = {
        name: [objective(fit(), X, y, alpha) for fit in fits] for name, fits in every.items()
    }
    least = min(min(values) for values in reached.values())
    chosen = {}
    for name, fits in every.items():
        good = [
            fit
            for fit, value in zip(fits, reached[name], strict=True)
            if value - least <= ACCURACY * least
        ]
        if good:
            chosen[name] = good[0]
    return chosen


def main() -> None:
    one_thread()
    rows = []
    for shape, X in shapes().items():
        rng = np.random.default_rng(1)
        y = np.asarray(X @ rng.normal(size=X.shape[1]))
        y = y / np.std(y) + rng.normal(size=X.shape[0]) + 0.5
        for penalty, alpha in (("1/n", 1.0 / X.shape[0]), ("1e-2", 1e-2)):
            for intercept in (True, False):
                fits = candidates(X, y, alpha, intercept)
                times = times_in_turns(fits, rounds=ROUNDS)
                medians = {name: statistics.median(each) for name, each in times.items()}
                fastest = min((name for name in medians if name != OURS), key=medians.__getitem__)
                rows.append(
                    {
                        "shape": shape,
                        "alpha": penalty,
                        "intercept": intercept,
                        "seconds": medians,
                        "spread": {name: spread(each) for name, each in times.items()},
                        "fastest": fastest,
                        "ratio": medians[OURS] / medians[fastest] if OURS in medians else None,
                    }
                )
                print(".", end="", flush=True)
    print()
    rows.sort(key=lambda row: -(row["ratio"] or np.inf))
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    mean = float(np.exp(np.mean(np.log(ratios))))
    table(
        ("shape", "alpha", "intercept", "ours, ms", "fastest of Ridge", "ms", "ratio", "spread"),
        [
            (
                row["shape"],
                row["alpha"],
                "yes" if row["intercept"] else "no",
                f"{1e3 * row['seconds'][OURS]:.2f}" if row["ratio"] else "not reached",
                row["fastest"],
                f"{1e3 * row['seconds'][row['fastest']]:.2f}",
                f"{row['ratio']:.2f}" if row["ratio"] else "",
                f"{row['spread'][OURS]:.0%}" if row["ratio"] else "",
            )
            for row in rows
        ],
    )
    print(f"geometric mean of the ratios {mean:.2f}, largest {max(ratios):.2f}")
    save("sklearn_ridge", {"accuracy": ACCURACY, "mean ratio": mean, "rows": rows}, "scikit-learn")


if __name__ == "__main__":
    main()
