"""What the tangents a fit begins with save: SSOClassifier with them and by Newton steps alone.

Real text and synthetic sparse data, easy and hard for either: independent words of Zipf's frequencies as
rows of length one, as counts, and sorted by label; columns whose scales span four decades; rows of low rank.
Penalties are multiples of 1/n for which tangents are used, no intercept. The true gap of each is given
beside its time, for ``tol`` is an estimate.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.harness import in_turns, one_thread, save, table
from benchmarks.sklearn_solvers import load, objective
from targetopt.linear import backend, tangents
from targetopt.sklearn import SSOClassifier

ROWS, COLUMNS, TOPICS = 20_000, 30_000, 60
MULTIPLES = (100.0, 10.0, 3.0, 1.0, 0.3)
TOL = 1e-6
ROUNDS = 7


def unit_rows(X: Any) -> Any:
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return sp.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ X


def labels(X: Any, sharpness: float, rng: np.random.Generator) -> Any:
    z = X @ (rng.normal(size=X.shape[1]) * (rng.random(X.shape[1]) < 0.1))
    z = sharpness * (z - np.median(z)) / z.std()
    return np.where(rng.random(X.shape[0]) < 1 / (1 + np.exp(-z)), 1.0, -1.0)


def datasets() -> Iterator[tuple[str, Any, Any]]:
    containers, y = load("RCV1-v2 subset")
    yield "RCV1-v2 subset", containers["CSR"], y
    rng = np.random.default_rng(0)
    frequency = 1 / np.arange(1, COLUMNS + 1)
    lengths = rng.lognormal(3.7, 0.8, ROWS).astype(int) + 1
    words = rng.choice(COLUMNS, size=lengths.sum(), p=frequency / frequency.sum())
    places = (np.repeat(np.arange(ROWS), lengths), words)
    counts = sp.csr_array((np.ones(words.size), places), shape=(ROWS, COLUMNS))
    y = labels(counts, 3.0, rng)
    yield "words, counts", counts, y
    logarithms = counts.log1p()
    yield "words", unit_rows(logarithms), y
    order = np.argsort(y)
    yield "words, sorted", unit_rows(logarithms)[order], y[order]
    scales = sp.diags_array(10 ** rng.uniform(-2, 2, COLUMNS))
    yield "words, ill-scaled", unit_rows(logarithms @ scales), y
    mixtures = sp.random_array((ROWS, TOPICS), density=0.05, rng=rng, format="csr")
    low_rank = mixtures @ sp.random_array((TOPICS, COLUMNS), density=1e-3, rng=rng, format="csr")
    yield "topics", unit_rows(low_rank), labels(low_rank, 5.0, rng)


def main() -> None:
    one_thread()
    warnings.simplefilter("ignore")
    rows = []
    for name, data, y in datasets():
        X = sp.csr_array(data)
        damping = 0.25 * float(X.data @ X.data) / X.shape[0]
        for multiple in MULTIPLES:
            if not 0.05 < damping / multiple < tangents.MOST_DAMPING:
                continue
            rows.append(compare(name, X, y, multiple))
    table(
        ["data", "alpha·n", "steps", "ms", "gap", "Newton steps", "ms", "gap", "ratio"],
        [
            [
                row["data"],
                f"{row['multiple']:g}",
                *(
                    text
                    for kind in ("numba", "numpy")
                    for text in (
                        f"{row['steps'][kind]}",
                        f"{1e3 * row['seconds'][kind]:.1f}",
                        f"{row['gap'][kind]:.0e}",
                    )
                ),
                f"{row['ratio']:.2f}",
            ]
            for row in rows
        ],
    )
    save("sklearn_start", {"tol": TOL, "rows": rows}, "scikit-learn", "numba")


def compare(name: str, X: Any, y: Any, multiple: float) -> dict[str, Any]:
    alpha = multiple / len(y)

    def fit(kind: str, tol: float = TOL) -> Any:
        with backend.use(kind):
            return SSOClassifier(alpha=alpha, fit_intercept=False, tol=tol).fit(X, y)

    kinds = ("numba", "numpy")
    best = min(objective(X, y, alpha, fit(kind, 1e-12).coef_[0]) for kind in kinds)
    models = {kind: fit(kind) for kind in kinds}
    seconds = in_turns({kind: lambda kind=kind: fit(kind) for kind in kinds}, rounds=ROUNDS)
    return {
        "data": name,
        "multiple": multiple,
        "steps": {kind: int(model.n_iter_[0]) for kind, model in models.items()},
        "gap": {
            kind: objective(X, y, alpha, model.coef_[0]) / best - 1
            for kind, model in models.items()
        },
        "seconds": seconds,
        "ratio": seconds["numba"] / seconds["numpy"],
    }


if __name__ == "__main__":
    main()
