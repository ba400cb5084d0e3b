"""Time to a stated relative gap over a grid of classification problems: SSOClassifier and its peers.

A cell is a shape, a kind of data, a penalty, a share of the rarest class, a number of classes, and whether there is
an intercept. Cells are drawn at random from the product of all levels, those that would not fit into memory left
out; a random half is *set aside*: it is not run while the solver is being changed, and looked at once.

    python -m benchmarks.grid                 # the half to work with
    python -m benchmarks.grid aside           # the other half
    python -m benchmarks.grid all 3 17        # some cells only, by number; nothing is saved

`SSOClassifier` runs with ``tol`` equal to the accuracy asked for, for that is what it promises. Each rival gets
the loosest tolerance, by half decades, that reaches the accuracy. A rival whose fit does not reach it, and takes
`HOPELESS` times as long as ours all the same, is given up, since a smaller tolerance takes longer still. Those that
remain are timed in turns with ours. liblinear would penalise the intercept, and with more than two classes it solves
another problem, as does skglm's solver: they take part where the problem is the same. newton-cholesky
takes part where its Hessian has at most `LARGEST_HESSIAN` rows.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from benchmarks.harness import RESULTS, one_thread, save, spread, table, times_in_turns
from targetopt.sklearn import SSOClassifier

ACCURACY = 1e-6
TOLERANCES = [10.0**-k for k in np.arange(0, 12.01, 0.5)]
HOPELESS = 4.0
LARGEST_HESSIAN = 6000
LARGEST_DENSE = 1e7
LARGEST_SPARSE = 1.2e6
CELLS = 80
SEED = 28
OURS = "SSOClassifier"
ROWS_OF_A_PATTERN = 12  # stored entries in a row of sparse data, about

Fit = Callable[[Any, Any, float], Any]


@dataclass(frozen=True)
class Cell:
    """One problem; all of its data follows from these and the number of the cell."""

    rows: int
    columns: int
    kind: str
    decades: int
    alpha: float
    intercept: bool
    rarest: float
    classes: int

    def __str__(self) -> str:
        scales = f", scales over {self.decades} decades" if self.decades else ""
        shift = "intercept" if self.intercept else "no intercept"
        return (
            f"{self.rows} × {self.columns} {self.kind}{scales}, alpha {self.alpha:g}, {shift}, "
            f"{self.classes} classes, rarest {self.rarest:g}"
        )


LEVELS: dict[str, tuple[Any, ...]] = {
    "rows": (1_000, 10_000, 33_000, 100_000, 1_000_000),
    "columns": (10, 30, 123, 300, 1_000, 5_000, 50_000),
    "kind": ("dense", "correlated", "binary", "words"),
    "decades": (0, 0, 6),
    "alpha": (1e-8, 1e-6, 1e-4, 1e-2, 1.0),
    "intercept": (False, True),
    "rarest": (0.5, 0.1, 0.01),
    "classes": (2, 2, 2, 3, 10),
}


def cells() -> list[Cell]:
    """The cells of the grid in a fixed random order: the first half is worked with, the second set aside."""
    every = [Cell(*levels) for levels in itertools.product(*LEVELS.values())]
    order = np.random.default_rng(SEED).permutation(len(every))
    chosen = dict.fromkeys(every[i] for i in order if _affordable(every[i]))
    return list(itertools.islice(chosen, CELLS))


def _affordable(cell: Cell) -> bool:
    outputs = cell.classes if cell.classes > 2 else 1
    if cell.kind in ("dense", "correlated"):
        return cell.rows * cell.columns * math.sqrt(outputs) <= LARGEST_DENSE
    stored = cell.rows * min(ROWS_OF_A_PATTERN, cell.columns / 2)
    return cell.columns >= 30 and stored * outputs <= LARGEST_SPARSE


def data(cell: Cell, number: int) -> tuple[Any, Any]:
    """X and the labels 0, 1, … of a cell."""
    rng = np.random.default_rng((SEED, number))
    X = MAKERS[cell.kind](cell.rows, cell.columns, rng)
    truth = rng.normal(size=(cell.columns, cell.classes))
    z = np.asarray(X @ truth)
    z = 2.0 * (z - z.mean(axis=0)) / (z.std(axis=0) + 1e-300)
    shares = np.full(cell.classes, (1.0 - cell.rarest) / (cell.classes - 1))
    shares[-1] = cell.rarest
    if cell.classes > 2 and cell.rarest == 0.5:
        shares[:] = 1.0 / cell.classes
    y = (z + np.log(shares) + rng.gumbel(size=z.shape)).argmax(axis=1)
    y[: cell.classes] = np.arange(cell.classes)  # every class occurs
    if cell.decades:
        scales = 10.0 ** rng.uniform(-cell.decades / 2, cell.decades / 2, cell.columns)
        X = sp.csr_matrix(X @ sp.diags_array(scales)) if sp.issparse(X) else X * scales
    if sp.issparse(X):  # scikit-learn's solvers take int32 indices only
        X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, y


def _dense(n: int, d: int, rng: np.random.Generator) -> Any:
    return rng.normal(size=(n, d))


def _correlated(n: int, d: int, rng: np.random.Generator) -> Any:
    """Columns of a few common factors: singular values that fall like 1/k."""
    rank = min(d, 30)
    common = (rng.normal(size=(n, rank)) / np.arange(1, rank + 1)) @ rng.normal(size=(rank, d))
    return common + 0.03 * rng.normal(size=(n, d))


def _binary(n: int, d: int, rng: np.random.Generator) -> Any:
    """Categories one-hot: each row has one entry 1 in each group of columns, some groups nearly the same."""
    groups = max(2, min(ROWS_OF_A_PATTERN, d // 4))
    ends = np.linspace(0, d, groups + 1).astype(int)
    columns = np.empty((n, groups), dtype=np.int32)
    latent = rng.normal(size=n)
    for group, (low, high) in enumerate(itertools.pairwise(ends)):
        size = int(high - low)
        own = rng.normal(size=n) if group % 3 else latent + 0.1 * rng.normal(size=n)
        levels = np.sort(rng.normal(size=size - 1)) * (1.5 if group % 2 else 3.0)
        columns[:, group] = low + np.searchsorted(levels, own)
    indptr = np.arange(0, n * groups + 1, groups, dtype=np.int32)
    return sp.csr_matrix((np.ones(columns.size), columns.ravel(), indptr), shape=(n, d))


def _words(n: int, d: int, rng: np.random.Generator) -> Any:
    """Words of Zipf's frequencies, logarithms of counts, rows of length one."""
    lengths = rng.poisson(ROWS_OF_A_PATTERN, n) + 1
    frequency = 1.0 / np.arange(1, d + 1)
    words = rng.choice(d, size=int(lengths.sum()), p=frequency / frequency.sum())
    counts = sp.csr_matrix(
        (np.ones(words.size), (np.repeat(np.arange(n), lengths), words)), shape=(n, d)
    ).log1p()
    length = np.sqrt(np.asarray(counts.multiply(counts).sum(axis=1)).ravel())
    return sp.csr_matrix(sp.diags_array(1.0 / length) @ counts)


MAKERS: dict[str, Callable[[int, int, np.random.Generator], Any]] = {
    "dense": _dense,
    "correlated": _correlated,
    "binary": _binary,
    "words": _words,
}


def objective(cell: Cell, X: Any, y: Any, theta: Any) -> float:
    """F for θ of shape (outputs, columns + 1), the intercept last."""
    W, b = theta[:, :-1], theta[:, -1]
    z = np.asarray(X @ W.T) + b
    if cell.classes == 2:
        losses = np.logaddexp(0.0, np.where(y == 1, -1.0, 1.0) * z[:, 0])
    else:
        losses = logsumexp(z, axis=1) - z[np.arange(y.size), y]
    return float(losses.mean() + 0.5 * cell.alpha * np.sum(W * W))


def _theta(model: Any) -> Any:
    shift = np.broadcast_to(np.reshape(model.intercept_, (-1, 1)), (model.coef_.shape[0], 1))
    return np.hstack([model.coef_, shift])


def fits(cell: Cell) -> dict[str, Fit]:
    """The solvers that solve the cell's problem, and that its size does not forbid."""

    def ours(X: Any, y: Any, tol: float) -> Any:
        return _theta(
            SSOClassifier(alpha=cell.alpha, fit_intercept=cell.intercept, tol=tol).fit(X, y)
        )

    def scikit_learn(solver: str, **options: Any) -> Fit:
        def fit(X: Any, y: Any, tol: float) -> Any:
            model = LogisticRegression(
                C=1.0 / (cell.alpha * y.size),
                solver=solver,
                tol=tol,
                fit_intercept=cell.intercept,
                max_iter=2000,
                **options,
            )
            return _theta(model.fit(X, y))

        return fit

    def skglm_lbfgs(X: Any, y: Any, tol: float) -> Any:
        from skglm.datafits import Logistic
        from skglm.penalties import L2
        from skglm.solvers import LBFGS

        columns = X.tocsc() if sp.issparse(X) else np.asfortranarray(X)
        w = LBFGS(max_iter=2000, tol=tol).solve(
            columns, np.where(y == 1, 1.0, -1.0), Logistic(), L2(cell.alpha)
        )[0]
        return np.append(w, 0.0)[None]

    found = {OURS: ours, "lbfgs": scikit_learn("lbfgs"), "newton-cg": scikit_learn("newton-cg")}
    outputs = 1 if cell.classes == 2 else cell.classes
    if cell.columns * outputs <= LARGEST_HESSIAN:
        found["newton-cholesky"] = scikit_learn("newton-cholesky")
    found["saga"] = scikit_learn("saga", random_state=0)
    if cell.classes == 2 and not cell.intercept:
        found["liblinear primal"] = scikit_learn("liblinear")
        found["liblinear dual"] = scikit_learn("liblinear", dual=True, random_state=0)
        found["skglm LBFGS"] = skglm_lbfgs
    return found


@dataclass(frozen=True)
class Setting:
    """How a rival was run: its loosest sufficient tolerance, the gap there, and one fit's seconds."""

    tol: float
    gap: float
    seconds: float
    reached: bool


def compare(cell: Cell, number: int) -> dict[str, Any]:
    """One cell: who reaches the accuracy, and how long each takes in turns."""
    X, y = data(cell, number)
    solvers = fits(cell)
    seen: dict[str, list[tuple[float, float, float]]] = {}  # tolerance, F, seconds

    def run(name: str, tol: float) -> tuple[float, float]:
        begin = time.process_time()
        theta = solvers[name](X, y, tol)
        seconds = time.process_time() - begin
        value = objective(cell, X, y, theta)
        seen.setdefault(name, []).append((tol, value, seconds))
        return value, seconds

    best, _ = run(OURS, 1e-11)
    run(OURS, ACCURACY)
    _, ours = run(OURS, ACCURACY)
    settings = {}
    for name in solvers:
        if name == OURS:
            continue
        if name.startswith("skglm"):
            run(name, 1.0)  # compiles
        for tol in TOLERANCES:
            value, seconds = run(name, tol)
            best = min(best, value)
            gap = value / best - 1.0
            if gap <= ACCURACY or seconds > HOPELESS * ours:
                settings[name] = Setting(tol, gap, seconds, gap <= ACCURACY)
                break
    mine = seen[OURS][-1][1] / best - 1.0
    timed: dict[str, float] = {OURS: ACCURACY}
    timed |= {s: t.tol for s, t in settings.items() if t.reached and t.seconds < HOPELESS * ours}
    times = times_in_turns(
        {s: lambda s=s, tol=tol: solvers[s](X, y, tol) for s, tol in timed.items()},
        rounds=7 if ours < 2.0 else 3,
    )
    seconds = {name: statistics.median(values) for name, values in times.items()}
    rivals = {s: t for s, t in seconds.items() if s != OURS}
    given_up = {s: t.seconds for s, t in settings.items() if s not in rivals}
    # Where every rival was given up, the ratio is bounded by the shortest time in which one got nowhere.
    fastest = min(rivals or given_up, key=lambda name: (rivals or given_up)[name])
    ratio = seconds[OURS] / (rivals or given_up)[fastest]
    return {
        "number": number,
        "cell": asdict(cell),
        "minimum": best,
        "gap": mine,
        "seconds": seconds,
        "spread": {name: spread(values) for name, values in times.items()},
        "settings": {name: asdict(setting) for name, setting in settings.items()},
        "fastest rival": fastest,
        "rival reached": bool(rivals),
        "ratio": ratio,
    }


def report(rows: list[dict[str, Any]]) -> None:
    """The cells where we lose first, then the others; and the means."""
    rows = sorted(rows, key=lambda row: -row["ratio"])
    table(
        ["ratio", "fastest rival", "ms", "ours, ms", "spread", "gap", "no.", "cell"],
        [
            [
                f"{'' if row['rival reached'] else '< '}{row['ratio']:.2f}",
                row["fastest rival"],
                f"{1e3 * row['seconds'][OURS] / row['ratio']:.1f}",
                f"{1e3 * row['seconds'][OURS]:.1f}",
                f"{row['spread'][OURS]:.2f}",
                f"{row['gap']:.0e}",
                row["number"],
                str(Cell(**row["cell"])),
            ]
            for row in rows
        ],
    )
    ratios = [row["ratio"] for row in rows]
    lost = sum(ratio > 1.0 for ratio in ratios)
    missed = sum(row["gap"] > ACCURACY for row in rows)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(f"{len(rows)} cells; geometric mean {mean:.2f}; lost {lost}; gap above tol {missed}")


def chosen(arguments: list[str]) -> Iterator[tuple[int, Cell]]:
    """Numbers and cells of the half that was asked for."""
    half = arguments[0] if arguments else "work"
    numbered = list(enumerate(cells()))
    halves = {"work": numbered[: CELLS // 2], "aside": numbered[CELLS // 2 :], "all": numbered}
    if half not in halves:
        sys.exit(f"no such half: {half}; there are {', '.join(halves)}")
    only = {int(argument) for argument in arguments[1:]}
    wanted = [(i, cell) for i, cell in halves[half] if not only or i in only]
    return iter(sorted(wanted, key=lambda pair: pair[1].rows * pair[1].classes))  # small ones first


def main() -> None:
    one_thread()
    warnings.simplefilter("ignore")  # loose tolerances and small max_iter warn; accuracy is checked
    arguments = sys.argv[1:] if sys.argv[0].endswith("grid.py") else []
    half = arguments[0] if arguments else "work"
    path = RESULTS / f"grid_{half}.partial.jsonl"
    partial = len(arguments) > 1
    done = {} if partial or not path.exists() else _read(path)
    for number, cell in chosen(arguments):
        if number in done:
            continue
        row = compare(cell, number)
        done[number] = row
        print(f"{row['ratio']:.2f} {row['fastest rival']}, {number}: {cell}", flush=True)
        if not partial:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    report(list(done.values()))
    if not partial:
        payload = {"accuracy": ACCURACY, "rows": list(done.values())}
        save(f"grid_{half}", payload, "scikit-learn", "skglm", "numba")
        path.unlink()


def _read(path: Any) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["number"]: row for row in rows}


if __name__ == "__main__":
    main()
