"""`SSORegressor` beside scikit-learn's regressors, to the same objective.

    python -m benchmarks sklearn_regressors

The squared loss is compared with every solver of `Ridge`, Poisson's with both solvers of `PoissonRegressor`, and
Huber's with `HuberRegressor`. A fit counts if it ends within `ACCURACY` of the least objective that any of them
reached, relatively. Iterative rivals get the loosest tolerance, by half decades, with which they do; one that has
not got there after `HOPELESS` times as long as the fastest so far is given up, since a smaller tolerance takes longer.
Those that are left are timed in turns in one process on one thread; a ratio above 1 means that we lose.

`HuberRegressor` fits a scale σ along with the coefficients. At its minimum these minimise Huber's loss with delta =
εσ, so that two comparisons are possible: with its delta, to the same objective, and with ``delta="auto"``, where both
look for the scale themselves, by different rules, and the objectives cannot be compared.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import HuberRegressor, PoissonRegressor, Ridge

from benchmarks.harness import one_thread, save, spread, table, times_in_turns
from targetopt.sklearn import SSORegressor

ACCURACY = 1e-6
ROUNDS = 7
HOPELESS = 2.0
OURS = "SSORegressor"
TOLERANCES = tuple(10.0**-k for k in np.arange(1, 12.01, 0.5))
LARGEST_SVD = 10**6  # entries of X beyond which an SVD takes many times as long as any other

Fit = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A problem, our way to solve it, and every rival's, for each tolerance that it may be given."""

    loss: str
    shape: str
    about: str
    ours: Fit
    rivals: dict[str, list[Fit]]
    objective: Callable[[Any], float]
    comparable: bool = True


def squared() -> Iterator[Case]:
    """The four shapes that the aim names, and others between them."""
    rng = np.random.default_rng(0)
    scales = np.logspace(0, -3, 200)
    shapes = {
        "100000 × 50": rng.normal(size=(100_000, 50)),
        "500 × 10000": rng.normal(size=(500, 10_000)),
        "20000 × 20000 sparse": sp.csr_matrix(sp.random(20_000, 20_000, density=1e-3, random_state=0)),
        "4000 × 10": rng.normal(size=(4000, 10)),
        "5000 × 1000": rng.normal(size=(5000, 1000)),
        "20000 × 200, correlated": rng.normal(size=(20_000, 200)) @ (rng.normal(size=(200, 200)) * scales),
        "300 × 3000, correlated": rng.normal(size=(300, 100)) @ rng.normal(size=(100, 3000)),
    }  # fmt: skip
    for shape, X in shapes.items():
        rng = np.random.default_rng(1)
        y = np.asarray(X @ rng.normal(size=X.shape[1]))
        y = y / np.std(y) + rng.normal(size=X.shape[0]) + 0.5
        yield _squared(shape, X, y, "1/n", 1.0 / X.shape[0], intercept=True)
        yield _squared(shape, X, y, "1e-2", 1e-2, intercept=False)


def _squared(shape: str, X: Any, y: Any, penalty: str, alpha: float, intercept: bool) -> Case:
    def ridge(solver: str, tol: float) -> Fit:
        return lambda: Ridge(
            alpha * X.shape[0], solver=solver, tol=tol, fit_intercept=intercept, max_iter=10_000
        ).fit(X, y)

    def objective(model: Any) -> float:
        errors = X @ model.coef_ + model.intercept_ - y
        return float(0.5 * np.mean(errors**2) + 0.5 * alpha * (model.coef_ @ model.coef_))

    direct = ["auto"] if sp.issparse(X) else ["auto", "cholesky", "svd"]
    if X.shape[0] * X.shape[1] > LARGEST_SVD:
        direct = [each for each in direct if each != "svd"]
    rivals = {each: [ridge(each, 1e-4)] for each in direct}
    # sag and saga took more than ten times as long on all of these.
    rivals |= {each: [ridge(each, tol) for tol in TOLERANCES] for each in ("lsqr", "sparse_cg")}
    about = f"alpha {penalty}, {'intercept' if intercept else 'no intercept'}"
    ours = lambda: SSORegressor(alpha, fit_intercept=intercept, tol=ACCURACY).fit(X, y)  # noqa: E731
    return Case("squared", shape, about, ours, rivals, objective)


SMALL = ((4000, 10), (500, 5), (1000, 100), (20_000, 50), (100_000, 20))


def poisson() -> Iterator[Case]:
    """Counts with a mean of about one."""
    for n, d in SMALL:
        rng = np.random.default_rng(2)
        X = rng.normal(size=(n, d))
        y = rng.poisson(np.exp(X @ rng.normal(size=d) / np.sqrt(d))).astype(float)
        yield _poisson(X, y, "1/n", 1.0 / n)


def _poisson(X: Any, y: Any, penalty: str, alpha: float) -> Case:
    def rival(solver: str, tol: float) -> Fit:
        return lambda: PoissonRegressor(alpha=alpha, solver=solver, tol=tol, max_iter=2000).fit(
            X, y
        )

    def objective(model: Any) -> float:  # half the deviance, so that a perfect fit has none
        z = X @ model.coef_ + model.intercept_
        least = y - np.where(y > 0, y * np.log(np.maximum(y, 1.0)), 0.0)
        loss = np.mean(np.exp(z) - y * z - least)
        return float(loss + 0.5 * alpha * (model.coef_ @ model.coef_))

    rivals = {
        solver: [rival(solver, tol) for tol in TOLERANCES]
        for solver in ("newton-cholesky", "lbfgs")
    }
    ours = lambda: SSORegressor(alpha, loss="poisson", tol=ACCURACY).fit(X, y)  # noqa: E731
    about = f"alpha {penalty}, intercept"
    return Case("poisson", f"{X.shape[0]} × {X.shape[1]}", about, ours, rivals, objective)


def huber() -> Iterator[Case]:
    """A line, normal noise, and outliers in every tenth row."""
    for n, d in SMALL:
        rng = np.random.default_rng(3)
        X = rng.normal(size=(n, d))
        y = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n) + 1.0
        y[::10] += 20.0 * rng.standard_cauchy(size=y[::10].size)
        yield from _huber(X, y)


def _huber(X: Any, y: Any) -> Iterator[Case]:
    n, penalty, shape = len(y), 1e-4, f"{X.shape[0]} × {X.shape[1]}"
    exact = HuberRegressor(alpha=penalty, tol=1e-12, max_iter=5000).fit(X, y)
    delta, alpha = exact.epsilon * exact.scale_, penalty * exact.scale_ / n

    def rival(tol: float) -> Fit:
        return lambda: HuberRegressor(alpha=penalty, tol=tol, max_iter=5000).fit(X, y)

    def objective(model: Any) -> float:
        size = np.abs(X @ model.coef_ + model.intercept_ - y)
        inside = np.minimum(size, delta)
        loss = np.mean(inside * (size - 0.5 * inside))
        return float(loss + 0.5 * alpha * (model.coef_ @ model.coef_))

    def ours(**how: Any) -> Fit:
        return lambda: SSORegressor(alpha, loss="huber", tol=ACCURACY, **how).fit(X, y)

    rivals = {"HuberRegressor": [rival(tol) for tol in TOLERANCES]}
    yield Case("huber", shape, "its delta", ours(delta=delta), rivals, objective)
    default = {"HuberRegressor": [lambda: HuberRegressor(alpha=penalty, max_iter=5000).fit(X, y)]}
    yield Case("huber", shape, "delta='auto'", ours(), default, objective, comparable=False)


def chosen(case: Case) -> dict[str, Fit]:
    """Every way to fit that reaches the accuracy; of an iterative solver the loosest tolerance."""
    if not case.comparable:
        return {OURS: case.ours, **{name: fits[0] for name, fits in case.rivals.items()}}
    seconds, values = {}, {}

    def run(name: str, fit: Fit) -> None:
        begin = time.process_time()
        model = fit()
        seconds[name] = time.process_time() - begin
        values[name] = case.objective(model)

    run(OURS, case.ours)
    run(OURS, case.ours)  # the first call imports
    found = {OURS: case.ours}
    least = values[OURS]
    for name, fits in sorted(case.rivals.items(), key=lambda pair: len(pair[1])):
        for fit in fits:
            run(name, fit)
            least = min(least, values[name])
            if values[name] - least <= ACCURACY * least:
                found[name] = fit
                break
            if seconds[name] > HOPELESS * min(seconds[each] for each in found):
                break
    good = [name for name in found if values[name] - least <= ACCURACY * least]
    rivals = [name for name in good if name != OURS]
    longest = HOPELESS * min((seconds[name] for name in rivals), default=0.0)
    return {name: found[name] for name in good if name == OURS or seconds[name] <= longest}


def compare(case: Case) -> dict[str, Any]:
    """Times in turns, and how ours compares with the fastest rival."""
    fits = chosen(case)
    times = times_in_turns(fits, rounds=ROUNDS)
    medians = {name: statistics.median(each) for name, each in times.items()}
    rivals = [name for name in medians if name != OURS]
    fastest = min(rivals, key=medians.__getitem__) if rivals else None
    # In each round by itself: what slows the machine down for a while slows both of them.
    ratios = [
        a / b for a, b in zip(times.get(OURS, []), times[fastest] if fastest else [], strict=True)
    ]
    return {
        "loss": case.loss,
        "shape": case.shape,
        "about": case.about,
        "seconds": medians,
        "fastest": fastest,
        "ratio": statistics.median(ratios) if ratios else None,
        "spread": spread(ratios) if ratios else None,
    }


def main() -> None:
    one_thread()
    warnings.simplefilter("ignore")  # loose tolerances warn; the objective is checked
    rows = []
    for cases in (poisson, huber, squared):
        for case in cases():
            row = compare(case)
            rows.append(row)
            print(
                f"{row['ratio'] or math.nan:.2f} {case.loss} {case.shape} {case.about}", flush=True
            )
    rows.sort(key=lambda row: -(row["ratio"] or np.inf))
    table(
        ("loss", "shape", "", "ours, ms", "fastest rival", "ms", "ratio", "±"),
        [
            (
                row["loss"],
                row["shape"],
                row["about"],
                f"{1e3 * row['seconds'][OURS]:.2f}",
                row["fastest"],
                f"{1e3 * row['seconds'][row['fastest']]:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['spread']:.0%}",
            )
            if row["ratio"]
            else (row["loss"], row["shape"], row["about"], "not reached", "", "", "", "")
            for row in rows
        ],
    )
    for loss in ("squared", "poisson", "huber"):
        ratios = [row["ratio"] for row in rows if row["loss"] == loss and row["ratio"]]
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        lost = sum(ratio > 1.0 for ratio in ratios)
        print(f"{loss}: {len(ratios)} cases; geometric mean {mean:.2f}; lost {lost}")
    save("sklearn_regressors", {"accuracy": ACCURACY, "rows": rows}, "scikit-learn")


if __name__ == "__main__":
    main()
