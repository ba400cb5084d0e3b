"""Time to 1e-6 relative suboptimality of L2 logistic regression: SSOClassifier and its peers.

All solve the same problem, mean logistic loss + ½ alpha ‖w‖² without intercept (liblinear would
penalise one). Each solver gets the container (CSR, or dense where the columns are few) and the loosest
tolerance with which it is fastest, among those that reach the accuracy; then all are timed in turns.
scikit-learn's liblinear appears twice: its primal trust-region Newton and its dual coordinate descent.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file
from sklearn.linear_model import LogisticRegression

from benchmarks.harness import in_turns, one_thread, save, table, verdict
from targetopt.sklearn import SSOClassifier

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = {
    "mushrooms": "mushrooms.bz2",
    "ijcnn1": "ijcnn1.tr.bz2",
    "RCV1-v2 subset": "rcv1_like_20242.binary.bz2",
}
ACCURACY = 1e-6
TOLERANCES = [10.0**-k for k in np.arange(-1, 11.01, 0.5)]
PATIENCE = 10.0  # CPU seconds of the search for a tolerance after which a solver is given up
ROUNDS = 7

Fit = Callable[[Any, Any, float, float], Any]


def scikit_learn(solver: str, **options: Any) -> Fit:
    def fit(X: Any, y: Any, alpha: float, tol: float) -> Any:
        model = LogisticRegression(
            C=1 / (alpha * len(y)),
            solver=solver,
            tol=tol,
            fit_intercept=False,
            max_iter=3000,
            **options,
        )
        return model.fit(X, y).coef_[0]

    return fit


def ours(X: Any, y: Any, alpha: float, tol: float) -> Any:
    return SSOClassifier(alpha=alpha, fit_intercept=False, tol=tol).fit(X, y).coef_[0]


def skglm_lbfgs(X: Any, y: Any, alpha: float, tol: float) -> Any:
    from skglm.datafits import Logistic
    from skglm.penalties import L2
    from skglm.solvers import LBFGS

    return LBFGS(max_iter=3000, tol=tol).solve(X, y, Logistic(), L2(alpha))[0]


SOLVERS: dict[str, Fit] = {
    "SSOClassifier": ours,
    "lbfgs": scikit_learn("lbfgs"),
    "newton-cg": scikit_learn("newton-cg"),
    "newton-cholesky": scikit_learn("newton-cholesky"),
    "liblinear primal": scikit_learn("liblinear"),
    "liblinear dual": scikit_learn("liblinear", dual=True, random_state=0),
    "saga": scikit_learn("saga", random_state=0),
    "skglm LBFGS": skglm_lbfgs,
}


@dataclass(frozen=True)
class Setting:
    """The fastest way found to run one solver."""

    container: str
    tol: float
    suboptimality: float
    seconds: float


def load(name: str) -> tuple[dict[str, Any], Any]:
    X, y = load_svmlight_file(str(DATA / FILES[name]))
    # scikit-learn's solvers take int32 indices only.
    narrow = (X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32))
    csr = sp.csr_matrix(narrow, shape=X.shape)
    containers: dict[str, Any] = {"CSR": csr, "CSC": csr.tocsc()}
    if X.shape[1] <= 1000:
        containers["dense"] = X.toarray()
    return containers, np.where(y == y.max(), 1.0, -1.0)


def objective(X: Any, y: Any, alpha: float, w: Any) -> float:
    return float(np.logaddexp(0.0, -y * (X @ w)).mean() + 0.5 * alpha * w @ w)


def fastest_setting(
    fit: Fit, containers: dict[str, Any], y: Any, alpha: float, best: float
) -> Setting | None:
    """The loosest sufficient tolerance in each container; the quicker of the containers."""
    found = []
    for container, X in containers.items():
        if container == ("CSR" if fit is skglm_lbfgs else "CSC"):
            continue  # skglm reads columns, the others rows
        begin = time.process_time()
        for tol in TOLERANCES:
            w = fit(X, y, alpha, tol)
            gap = objective(X, y, alpha, w) / best - 1
            if gap <= ACCURACY:
                start = time.process_time()
                fit(X, y, alpha, tol)  # again: the first may have compiled
                seconds = time.process_time() - start
                found.append(Setting(container, tol, gap, seconds))
                break
            if time.process_time() - begin > PATIENCE:
                break
    return min(found, key=lambda setting: setting.seconds, default=None)


def compare(
    name: str, label: str, alpha: float, containers: dict[str, Any], y: Any
) -> dict[str, Any]:
    best = min(
        objective(containers["CSR"], y, alpha, fit(containers["CSR"], y, alpha, 1e-13))
        for fit in (ours, SOLVERS["newton-cg"])
    )
    settings = {
        solver: fastest_setting(fit, containers, y, alpha, best)
        for solver, fit in SOLVERS.items()
        if not (solver == "newton-cholesky" and "dense" not in containers)  # d × d: 18 GB
    }
    reached = {solver: setting for solver, setting in settings.items() if setting is not None}
    seconds = in_turns(
        {
            solver: lambda solver=solver, s=s: SOLVERS[solver](
                containers[s.container], y, alpha, s.tol
            )
            for solver, s in reached.items()
        },
        rounds=ROUNDS,
    )
    peers = {s: t for s, t in seconds.items() if s not in ("SSOClassifier", "skglm LBFGS")}
    fastest = min(peers, key=lambda solver: peers[solver])
    ratio = seconds["SSOClassifier"] / peers[fastest]
    print(f"{name}, alpha = {label}: minimum {best:.6g}")
    table(
        ["solver", "ms", "ratio to ours", "container", "tol", "suboptimality"],
        [
            [
                solver,
                f"{1e3 * seconds[solver]:.1f}",
                f"{seconds[solver] / seconds['SSOClassifier']:.2f}",
                reached[solver].container,
                f"{reached[solver].tol:.0e}",
                f"{reached[solver].suboptimality:.0e}",
            ]
            for solver in sorted(seconds, key=lambda solver: seconds[solver])
        ]
        + [[solver, "not reached", "", "", "", ""] for solver in settings if solver not in reached],
    )
    print(f"ours / fastest of scikit-learn ({fastest}): {ratio:.2f}  {verdict(ratio, 1.0)}\n")
    return {
        "data": name,
        "alpha": label,
        "minimum": best,
        "seconds": seconds,
        "settings": {solver: vars(setting) for solver, setting in reached.items()},
        "not reached": [solver for solver in settings if solver not in reached],
        "not run": [solver for solver in SOLVERS if solver not in settings],
        "ours over fastest of scikit-learn": ratio,
        "fastest of scikit-learn": fastest,
    }


def main() -> None:
    one_thread()
    warnings.simplefilter("ignore")  # loose tolerances and small max_iter warn; accuracy is checked
    rows = []
    for name in FILES:
        containers, y = load(name)
        for label, alpha in (("1/n", 1 / len(y)), ("1e-6", 1e-6)):
            rows.append(compare(name, label, alpha, containers, y))
    save("sklearn_solvers", {"accuracy": ACCURACY, "rows": rows}, "scikit-learn", "skglm", "numba")


if __name__ == "__main__":
    main()
