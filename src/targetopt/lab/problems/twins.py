"""Synthetic twins of the LIBSVM data sets: the same shape and statistics, no data file needed.

A twin has the shape of its original and, within a few per cent, its number of non-zeros, non-zeros per
row and per column, row norms, label counts and leading eigenvalues of XᵀX. What was measured on the
originals to this end (mixture parameters, quantiles, eigenvalues: no rows) lies in ``twins.npz``,
made by ``python -m targetopt.lab.problems.twin_fit``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from targetopt.lab.problems.base import Array, checked_seed
from targetopt.lab.problems.linear import LinearProblem, binary_loss
from targetopt.lab.problems.registry import register

Statistics = dict[str, NDArray[Any]]
Csr: TypeAlias = "sp.csr_array[np.float64, tuple[int, int]]"

CORE_CHANCE = 0.6  # that a document uses a given core word of its topic
CORE_WORDS = 10
HEAVY = 200  # columns used by more rows than this are spread over distinct rows one by one


def load_statistics(name: str) -> Statistics:
    """What was measured on the original ``name``."""
    path = resources.files("targetopt.lab.problems") / "twins.npz"
    with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {k.removeprefix(name + "/"): stored[k] for k in stored if k.startswith(name + "/")}


def mushrooms_twin(statistics: Statistics, seed: int) -> tuple[Csr, Array]:
    """Categorical attributes, one-hot, from a mixture of independent-attribute populations.

    Labels are the sign of a linear score, so that the twin is separable as the original is.
    """
    rng = np.random.default_rng(checked_seed(seed))
    populations, bounds = statistics["probabilities"].astype(float), statistics["bounds"]
    population = _proportional(statistics["weights"].astype(float), int(statistics["rows"]))
    n, attributes = len(population), len(bounds) - 1
    columns = np.empty((n, attributes), dtype=np.int32)
    for k, chances in enumerate(populations):
        members = np.flatnonzero(population == k)
        for a in range(attributes):
            share = chances[bounds[a] : bounds[a + 1]]
            columns[members, a] = bounds[a] + rng.permutation(_proportional(share, len(members)))
    columns = columns[rng.permutation(n)]
    shape = (n, int(bounds[-1]))
    indptr = np.arange(n + 1, dtype=np.int32) * attributes
    X = sp.csr_array((np.ones(columns.size), columns.ravel(), indptr), shape=shape)
    score = X @ statistics["teacher"].astype(float)
    levels = np.unique(score.round(9))
    positives = np.array([(score > level).sum() for level in levels])
    nearest = levels[np.abs(positives - int(statistics["positives"])).argmin()]
    return X, np.where(score.round(9) > nearest, 1.0, -1.0)


def ijcnn1_twin(statistics: Statistics, seed: int) -> tuple[Csr, Array]:
    """A cyclic phase, one-hot, and twelve real features from a Gaussian mixture of that phase.

    Labels are drawn from a logistic model: not separable, as the original is not.
    """
    rng = np.random.default_rng(checked_seed(seed))
    n, phases = int(statistics["rows"]), len(statistics["weights"])
    reals = statistics["means"].shape[2]
    X = np.zeros((n, phases + reals))
    for phase in range(phases):
        rows = np.arange(phase, n, phases)
        X[rows, phase] = 1.0
        part = rng.permutation(_proportional(statistics["weights"][phase], len(rows)))
        factors = statistics["factors"][phase].astype(float)
        normal = rng.standard_normal((len(rows), reals))
        X[rows, phases:] = statistics["means"][phase][part]
        X[rows, phases:] += np.einsum("ijk,ik->ij", factors[part], normal)
    score = X @ statistics["teacher"].astype(float) + rng.logistic(size=n)
    return sp.csr_array(X), _largest_positive(score, int(statistics["positives"]))


def rcv1_twin(statistics: Statistics, seed: int) -> tuple[Csr, Array]:
    """Documents of unit length with topics: word and document frequencies of the original.

    Each document has a topic, whose *core words* it uses with chance ``CORE_CHANCE`` and gives a
    part of its squared length; the rest goes to words drawn by their frequency. A topic of n_t
    documents then adds an eigenvalue in proportion to n_t and to that part, by which the leading
    eigenvalues of XᵀX are set to the original's. Labels follow topics and words, and are separable.
    """
    rng = np.random.default_rng(checked_seed(seed))
    n, d = (int(size) for size in statistics["shape"])
    length = _from_quantiles(statistics["row_quantiles"], n)
    rng.shuffle(length)
    used = int(statistics["used_columns"])
    ranks = np.log(np.arange(1, used + 1))
    frequency = np.exp(np.interp(ranks, statistics["log_ranks"], statistics["log_frequencies"]))
    frequency = np.maximum(np.round(frequency * length.sum() / frequency.sum()), 1).astype(int)

    energies = statistics["energies"].astype(float)
    topic = _proportional(statistics["topic_weights"].astype(float), n)
    rng.shuffle(topic)
    core = _core_words(frequency, np.bincount(topic, minlength=len(energies)))
    chosen = rng.random((n, CORE_WORDS)) < CORE_CHANCE
    chosen &= np.cumsum(chosen, axis=1) <= length[:, None] - 1
    core_rows = np.nonzero(chosen)[0]
    core_columns = core[topic][chosen]

    left = length - chosen.sum(axis=1)
    frequency = frequency - np.bincount(core_columns, minlength=used)
    rows, columns = _spread(left, np.maximum(frequency, 0), rng)
    # a document does not use a word twice
    keys = np.concatenate([core_rows, rows]) * np.int64(used) + np.concatenate(
        [core_columns, columns]
    )
    keys, first = np.unique(keys, return_index=True)
    is_core = first < len(core_rows)
    rows, columns = keys // used, keys % used

    rarity = np.log(n / (1.0 + np.bincount(columns, minlength=used)))
    value = np.exp(0.5 * rng.standard_normal(len(keys)))
    value *= np.maximum(rarity[columns], 0.1) ** float(statistics["rarity_power"])
    for part, share in ((is_core, energies[topic]), (~is_core, 1.0 - energies[topic])):
        square = np.bincount(rows[part], value[part] ** 2, minlength=n)
        value[part] *= np.sqrt(share / np.maximum(square, 1e-300))[rows[part]]
    value /= np.sqrt(np.bincount(rows, value**2, minlength=n))[rows]
    place = rng.permutation(d)[:used]
    X = sp.csr_array((value, (rows, place[columns])), shape=(n, d))
    leaning = np.where(rng.random(len(energies)) < 0.5, 1.0, -1.0)
    word = 0.1 * rng.standard_normal(used)
    word[core] += leaning[:, None]
    teacher = np.zeros(d)
    teacher[place] = word
    return X, _largest_positive(X @ teacher, int(statistics["positives"]))


def _core_words(frequency: NDArray[np.int_], sizes: NDArray[np.int_]) -> NDArray[np.intp]:
    """For each topic the rarest words, not taken yet, that are frequent enough to be its core."""
    free = np.ones(len(frequency), dtype=bool)
    core = np.empty((len(sizes), CORE_WORDS), dtype=np.intp)
    for topic in np.argsort(-sizes, kind="stable"):
        enough = np.flatnonzero(free & (frequency >= 1.25 * CORE_CHANCE * sizes[topic]))
        core[topic] = enough[-CORE_WORDS:]
        free[core[topic]] = False
    return core


def _spread(
    capacity: NDArray[np.int_], frequency: NDArray[np.int_], rng: np.random.Generator
) -> tuple[NDArray[np.int_], NDArray[np.int_]]:
    """Rows and columns of entries: each column in as many distinct rows as it should be in.

    Rows are drawn in proportion to the room they have left.
    """
    capacity = capacity.astype(float)
    rows, columns = [], []
    heavy = np.flatnonzero(frequency > HEAVY)
    for column in heavy:
        arrival = rng.standard_exponential(len(capacity)) / np.maximum(capacity, 1e-9)
        taken = np.argpartition(arrival, frequency[column])[: frequency[column]]
        capacity[taken] -= 1
        rows.append(taken)
        columns.append(np.full(len(taken), column))
    light = frequency.copy()
    light[heavy] = 0
    stubs = np.repeat(np.arange(len(frequency)), light)
    room = np.repeat(np.arange(len(capacity)), np.maximum(capacity, 0).astype(int))
    count = min(len(stubs), len(room))
    rows.append(rng.permutation(room)[:count])
    columns.append(rng.permutation(stubs)[:count])
    return np.concatenate(rows), np.concatenate(columns)


def _proportional(weights: NDArray[Any], count: int) -> NDArray[np.int_]:
    """``count`` numbers 0 … len(weights)−1, each as often as its weight says, to one."""
    ends = np.round(np.cumsum(weights) / np.sum(weights) * count).astype(int)
    numbers: NDArray[np.int_] = np.repeat(np.arange(len(weights)), np.diff(ends, prepend=0))
    return numbers


def _from_quantiles(quantiles: NDArray[Any], count: int) -> NDArray[np.int_]:
    """``count`` whole numbers whose quantiles, evenly spaced, are the given ones."""
    at = (np.arange(count) + 0.5) / count
    values = np.interp(at, np.linspace(0, 1, len(quantiles)), quantiles.astype(float))
    return np.asarray(np.round(values), dtype=np.int_)


def _largest_positive(score: Array, positives: int) -> Array:
    labels = np.full(len(score), -1.0)
    labels[np.argsort(-score, kind="stable")[:positives]] = 1.0
    return labels


TWINS: dict[str, Callable[[Statistics, int], tuple[Csr, Array]]] = {
    "mushrooms": mushrooms_twin,
    "ijcnn1": ijcnn1_twin,
    "rcv1": rcv1_twin,
}


def _twin(original: str) -> Callable[..., LinearProblem]:
    def build(
        loss: str = "logistic", bias: bool = False, weight_decay: float = 0.0, seed: int = 0
    ) -> LinearProblem:
        kind = binary_loss(loss)
        X, y = TWINS[original](load_statistics(original), seed)
        extras = (
            [loss] + ["bias"] * bias + ([f"weight_decay={weight_decay:g}"] if weight_decay else [])
        )
        return LinearProblem(
            f"synthetic {original} ({', '.join(extras)})",
            X,
            y,
            kind,
            bias=bias,
            weight_decay=weight_decay,
            classification=True,
        )

    return build


for _name, _shape in {
    "mushrooms": "8124 × 112",
    "ijcnn1": "35000 × 22",
    "rcv1": "20242 × 47236",
}.items():
    register(
        f"synthetic-{_name}", f"synthetic twin of {_name}, {_shape}, no data file; linear model"
    )(_twin(_name))
