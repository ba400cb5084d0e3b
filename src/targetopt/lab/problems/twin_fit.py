"""Measure on the original data what the synthetic twins are made from.

Run ``python -m targetopt.lab.problems.twin_fit DATA_DIR twins.npz``. LIBSVM's rcv1 is measured on
the RCV1-v2 subset, which has its shape and feature space.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import svds

from targetopt.lab import data
from targetopt.lab.problems.base import Array
from targetopt.lab.problems.linear import LinearProblem
from targetopt.lab.problems.optima.objective import LinearObjective
from targetopt.lab.problems.optima.reference import compute_reference
from targetopt.lab.problems.twins import Csr, Statistics, rcv1_twin
from targetopt.losses import Logistic

POPULATIONS = 64
STARTS = 10
PARTS_PER_PHASE = 3
TOPICS = 100
CALIBRATIONS = 7


def fit_mushrooms(X: Csr, y: Array) -> Statistics:
    """Attribute bounds, a mixture of independent-attribute populations (EM), a linear teacher."""
    dense = X.toarray()
    n = len(dense)
    bounds, total = [0], np.zeros(n)
    for column in range(dense.shape[1]):
        total += dense[:, column]
        if (total == 1).all():  # each row has exactly one of an attribute's values
            bounds.append(column + 1)
            total[:] = 0
    eigenvalues = np.linalg.eigvalsh(dense.T @ dense)[::-1][:40]

    def misfit(mixture: tuple[Array, Array]) -> float:
        expected = np.linalg.eigvalsh(n * _second_moment(*mixture, bounds))[::-1][:40]
        return float(np.abs(expected / eigenvalues - 1).max())

    starts = (_mixture(dense, np.random.default_rng(seed)) for seed in range(STARTS))
    weights, chances = min(starts, key=misfit)
    return {
        "rows": np.array(n),
        "bounds": np.array(bounds),
        "weights": weights.astype(np.float32),
        "probabilities": chances.astype(np.float32),
        "teacher": _teacher(X, y).astype(np.float32),
        "positives": np.array((y > 0).sum()),
    }


def _mixture(dense: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Weights and value chances of populations with independent attributes, by EM."""
    seeds = dense[rng.choice(len(dense), POPULATIONS, replace=False)]
    chances = 0.9 * seeds + 0.1 * dense.mean(axis=0)
    weights = np.full(POPULATIONS, 1 / POPULATIONS)
    for _ in range(60):
        likelihood = dense @ np.log(chances.T + 1e-9) + np.log(weights)
        part = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
        part /= part.sum(axis=1, keepdims=True)
        weights = part.mean(axis=0)
        chances = (part.T @ dense) / part.sum(axis=0)[:, None]
    return weights, chances


def _second_moment(weights: Array, chances: Array, bounds: list[int]) -> Array:
    """E[xxᵀ] of the mixture: independent attributes, of which each row has one value."""
    moment: Array = (chances.T * weights) @ chances
    for low, high in itertools.pairwise(bounds):
        moment[low:high, low:high] = np.diag(weights @ chances[:, low:high])
    return moment


def fit_ijcnn1(X: Csr, y: Array) -> Statistics:
    """For each of the ten phases a Gaussian mixture of the twelve real features, and a teacher."""
    from sklearn.mixture import GaussianMixture

    dense = X.toarray()
    phase = dense[:, :10].argmax(axis=1)
    mixtures = [
        GaussianMixture(PARTS_PER_PHASE, random_state=0, reg_covar=1e-7).fit(dense[phase == p, 10:])
        for p in range(10)
    ]
    return {
        "rows": np.array(len(dense)),
        "weights": np.array([m.weights_ for m in mixtures], dtype=np.float32),
        "means": np.array([m.means_ for m in mixtures], dtype=np.float32),
        "factors": np.array([np.linalg.cholesky(m.covariances_) for m in mixtures], np.float32),
        "teacher": _teacher(X, y).astype(np.float32),
        "positives": np.array((y > 0).sum()),
    }


def fit_rcv1(X: Csr, y: Array) -> Statistics:
    """Quantiles of row lengths and column frequencies; topics calibrated to the eigenvalues."""
    eigenvalues = leading_eigenvalues(X, TOPICS + 1)
    frequency = np.sort(np.bincount(X.indices, minlength=X.shape[1]))[::-1]
    frequency = frequency[frequency > 0]
    ranks = np.unique(np.geomspace(1, len(frequency), 120).round().astype(int))
    weights = eigenvalues[1:].copy()
    statistics: Statistics = {
        "shape": np.array(X.shape),
        "row_quantiles": np.quantile(np.diff(X.indptr), np.linspace(0, 1, 513)),
        "used_columns": np.array(len(frequency)),
        "log_ranks": np.log(ranks),
        "log_frequencies": np.log(frequency[ranks - 1]),
        "topic_weights": weights,
        "energies": np.full(TOPICS, 0.3),
        "rarity_power": np.array(1.0),
        "positives": np.array((y > 0).sum()),
    }
    for _ in range(CALIBRATIONS):
        found = leading_eigenvalues(rcv1_twin(statistics, 0)[0], TOPICS + 1)
        ratio = eigenvalues / found
        print("worst ratio of the first 50:", np.abs(np.log(ratio[:50])).max().round(4))
        energies = statistics["energies"] * ratio[1:] ** 0.7
        statistics["energies"] = np.clip(energies, 0.02, 0.9)
        statistics["rarity_power"] = statistics["rarity_power"] - 0.7 * np.log(ratio[0])
    return statistics


def leading_eigenvalues(X: Any, count: int) -> Array:
    """The largest eigenvalues of XᵀX, in descending order."""
    start = np.random.default_rng(0).standard_normal(min(X.shape))
    singular = svds(X, k=count, v0=start, return_singular_vectors=False)
    return np.asarray(np.sort(singular)[::-1] ** 2)


def _teacher(X: Csr, y: Array) -> Array:
    """θ of a lightly regularised logistic regression."""
    problem = LinearProblem("", X, y, Logistic, bias=False, weight_decay=1e-6, classification=True)
    theta = compute_reference(LinearObjective(problem)).parameters
    assert theta is not None
    return theta


def main(data_dir: Path, target: Path) -> None:
    """Write the statistics of all three originals."""
    stored: dict[str, NDArray[Any]] = {}
    for name, source, fit in (
        ("mushrooms", "mushrooms", fit_mushrooms),
        ("ijcnn1", "ijcnn1", fit_ijcnn1),
        ("rcv1", "rcv1-v2-subset", fit_rcv1),
    ):
        dataset = data.find(source)
        loaded = data.load(dataset, data_dir=data_dir).data
        statistics = fit(loaded.X, dataset.signs(loaded.labels))
        stored |= {f"{name}/{key}": value for key, value in statistics.items()}
    with target.open("wb") as file:
        np.savez_compressed(file, **stored)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
