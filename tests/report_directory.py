"""A result directory with real curves: logistic regression on scikit-learn's data, in numpy.

The optimisers are written out here, small and independent of the library, so that the report's tests stand on
their own; what they write goes through the library's own store.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_wine

from targetopt.lab.store.directory import Store

HOSTILE = "<img src=x onerror=alert(1)>$x_1$</script>&amp;"

CALLS = [0, 1, 2, 4, 8]
INNER = [0, 7, 19, 40, 83]
LOSSES = [4.0, 2.0, 1.0, 0.5, 0.25]

PROBLEMS = (
    {"name": "breast-cancer", "label": "breast cancer, logistic", "weight_decay": 0.0},
    {"name": "wine", "label": "wine, logistic", "weight_decay": 0.0},
)
METHODS = (
    {"name": "sgd", "label": "SGD", "lr": 0.1},
    {"name": "sls", "label": "SLS"},
    {"name": "adam", "label": "Adam", "lr": 0.01},
    {"name": "adagrad", "label": "Adagrad", "lr": 0.1},
    {"name": "sso", "label": "SSO m=1", "rule": "GradientStep", "m": 1},
    {"name": "sso", "label": "SSO m=10", "rule": "GradientStep", "m": 10},
    {"name": "sso", "label": "SSO m=100", "rule": "GradientStep", "m": 100},
    {"name": "sso", "label": "SSO-SLS m=10", "rule": "LineSearch", "m": 10},
    {"name": "sso", "label": "SSO-SLS m=100", "rule": "LineSearch", "m": 100},
)
WILD = {"name": "sgd", "label": "SGD, lr=100000", "lr": 1e5}


@cache
def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    bunch = load_breast_cancer() if name == "breast-cancer" else load_wine()
    x = (bunch.data - bunch.data.mean(0)) / bunch.data.std(0)
    return np.hstack([x, np.ones((len(x), 1))]), np.where(bunch.target == 0, 1.0, -1.0)


def loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    return float(np.logaddexp(0.0, -y * (x @ w)).mean())


def gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.T @ target_gradient(y, x @ w) / len(y)


def target_gradient(y: np.ndarray, z: np.ndarray) -> np.ndarray:
    return -y * expit(-y * z)


def optimise(
    problem: Mapping[str, Any], method: Mapping[str, Any], seed: int, batch: int | str, epochs: int
) -> Iterator[dict[str, float]]:
    """Rows of one run, as the engine would record them: the start, then about 40 a run."""
    x, y = data(problem["name"])
    n = len(y)
    size = n if batch == "full" else min(int(batch), n)
    rng = np.random.default_rng(seed)
    w = 0.1 * rng.standard_normal(x.shape[1])
    step = _stepper(method, x, w)
    counts = dict.fromkeys(
        ("oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls"), 0
    )
    total = epochs * max(n // size, 1)
    recorded = {0, total, *np.unique(np.geomspace(1, total, 40).astype(int)).tolist()}
    began = time.perf_counter()
    for t in range(total + 1):
        if t in recorded:
            yield {
                "step": t,
                **counts,
                "epoch": t * size / n,
                "wall_time": time.perf_counter() - began,
                "loss": loss(x, y, w),
                "grad_norm": float(np.linalg.norm(gradient(x, y, w))),
                "accuracy": float((np.sign(x @ w) == y).mean()),
            }
        if t < total:
            rows = rng.choice(n, size, replace=False)
            w, inner, values = step(x[rows], y[rows], w)
            counts["oracle_calls"] += 1
            counts["value_calls"] += values
            counts["inner_steps"] += inner
            counts["forward_calls"] += inner + values + 1
            counts["backward_calls"] += inner


def _stepper(method: Mapping[str, Any], x: np.ndarray, w0: np.ndarray) -> Callable[..., Any]:
    lr = method.get("lr", 1.0)
    state = {"eta": 1.0, "squares": np.zeros_like(w0), "mean": np.zeros_like(w0), "t": 0}

    def backtrack(value: Callable[[float], float], decrease: float) -> tuple[float, int]:
        eta, trials, here = 2.0 * state["eta"], 1, value(0.0)
        while value(eta) > here - 0.5 * eta * decrease and trials < 40:
            eta, trials = eta / 2, trials + 1
        state["eta"] = eta
        return eta, trials

    def sso(xb: np.ndarray, yb: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int, int]:
        z = xb @ w
        g = target_gradient(yb, z)
        eta, values = 2.0, 0
        if method["rule"] == "LineSearch":
            eta, values = backtrack(
                lambda e: float(np.logaddexp(0, -yb * (z - e * g)).mean()), float(g @ g) / len(g)
            )
        smooth = np.linalg.norm(xb, 2) ** 2 / len(yb) / eta
        for k in range(1, method["m"] + 1):
            slope = xb.T @ (g + (xb @ w - z) / eta) / len(yb)
            w = w - slope / smooth
            if np.linalg.norm(slope) < 1e-12:
                return w, k, values
        return w, method["m"], values

    def parametric(xb: np.ndarray, yb: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, int, int]:
        g, values = gradient(xb, yb, w), 0
        state["t"] += 1
        if method["name"] == "sls":
            eta, values = backtrack(lambda e: loss(xb, yb, w - e * g), float(g @ g))
            move = eta * g
        elif method["name"] == "adam":
            state["mean"] = 0.9 * state["mean"] + 0.1 * g
            state["squares"] = 0.999 * state["squares"] + 0.001 * g * g
            scale = np.sqrt(state["squares"] / (1 - 0.999 ** state["t"])) + 1e-8
            move = lr * state["mean"] / (1 - 0.9 ** state["t"]) / scale
        elif method["name"] == "adagrad":
            state["squares"] = state["squares"] + g * g
            move = lr * g / (np.sqrt(state["squares"]) + 1e-10)
        else:
            move = lr * g
        return w - move, 1, values

    return sso if method["name"] == "sso" else parametric


def manifest(
    problem: Any,
    method: Any,
    seed: int,
    batch: int | str,
    epochs: int,
    status: str,
    reason: str = "",
) -> dict[str, Any]:
    identity = json.dumps([problem, method, seed, batch, epochs])
    run = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return {
        "id": run,
        "status": status,
        "reason": reason,
        "attempt": 1,
        "time_limit": 1.0 if status == "timeout" else None,
        "problem": dict(problem),
        "method": dict(method),
        "seed": seed,
        "batch_size": batch,
        "epochs": epochs,
        "config": {"problem": dict(problem), "method": dict(method), "seed": seed},
        "versions": {"targetopt": "0.1.0", "numpy": np.__version__},
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "machine": {"cpu": "test machine", "cores": 2, "memory": "8 GB"},
        "started": "2024-05-01T12:00:00+00:00",
        "duration": 1.25,
        "counts": {},
        "command": f"targetopt run spec.toml --only {run}",
    }


def add(
    store: Store, problem: Any, method: Any, seed: int, batch: int | str, epochs: int = 30
) -> str:
    """Run one configuration and store it; recorded as diverged at the first loss above 1e6."""
    rows: list[dict[str, float]] = []
    status, reason = "done", ""
    for row in optimise(problem, method, seed, batch, epochs):
        rows.append(row)
        if row["loss"] > 1e3 * max(rows[0]["loss"], 1.0):
            status, reason = "diverged", f"loss {row['loss']:.3g} at step {row['step']}"
            break
    entry = manifest(problem, method, seed, batch, epochs, status, reason)
    entry["counts"] = {
        k: rows[-1][k]
        for k in ("oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls")
    }
    store.save(entry, rows)
    return entry["id"]


def add_rows(
    store: Store,
    rows: Sequence[Mapping[str, float]],
    *,
    label: str = "SGD",
    seed: int = 0,
    status: str = "done",
    reason: str = "",
    problem: Any = PROBLEMS[0],
    batch: int | str = "full",
    **method: Any,
) -> str:
    """Store a run whose rows the test has chosen; columns not given are 0."""
    axes = (
        "step",
        "oracle_calls",
        "value_calls",
        "inner_steps",
        "forward_calls",
        "backward_calls",
        "epoch",
        "wall_time",
    )
    entry = manifest(
        problem, {"name": "sgd", "label": label, **method}, seed, batch, 1, status, reason
    )
    store.save(entry, [{**dict.fromkeys(axes, 0), **row} for row in rows])
    return entry["id"]


def write_plan(store: Store, runs: Sequence[str], **further: Any) -> None:
    """``plan.json`` as the engine writes it; runs without a manifest are still to come."""
    plan = []
    for run in runs:
        entry = store.manifest(run) or {
            "problem": {"label": "p"}, "method": {"label": "m"}, "batch_size": "full", "seed": 0,
        }  # fmt: skip
        labels = {key: entry[key]["label"] for key in ("problem", "method")}
        size = {key: entry[key] for key in ("batch_size", "seed")}
        plan.append({"id": run, **labels, **size, **further})
    (store.directory / "plan.json").write_text(json.dumps(plan))


def make(
    directory: Path,
    *,
    problems: Sequence[Any] = PROBLEMS,
    methods: Sequence[Any] = METHODS,
    batches: Sequence[int | str] = (25, "full"),
    seeds: int = 3,
    epochs: int = 30,
) -> Store:
    """The grid, one method that diverges, one run that failed, one that is still to come."""
    directory.mkdir(parents=True, exist_ok=True)
    store = Store(directory)
    store.prepare()
    made = []
    for problem in problems:
        for batch in batches:
            for method in (*methods, WILD):
                made += [add(store, problem, method, seed, batch, epochs) for seed in range(seeds)]
    failed = manifest(
        problems[0],
        methods[0],
        99,
        batches[0],
        epochs,
        "failed",
        "RuntimeError: the oracle <b>went away</b>",
    )
    store.save(failed, [])
    write_plan(store, [*made, failed["id"], "f" * 16])
    (directory / "spec.toml").write_text('name = "test grid"\nseeds = 3\n')
    return store


def make_exact(directory: Path) -> None:
    """Numbers a test can foresee: one seed of A, three of B at 2, 3 and 5 times A's loss, one failure, and HOSTILE
    for the names of a method and of the problem."""
    store = Store(directory)
    store.prepare()

    def rows(factor: float) -> list[dict[str, float]]:
        return [
            {
                "step": t,
                "oracle_calls": calls,
                "inner_steps": inner,
                "epoch": calls / 8,
                "wall_time": 0.5 * t,
            }
            | {"loss": factor * value, "gap": value - 0.5, "accuracy": 1 - value / 5}
            for t, (calls, inner, value) in enumerate(zip(CALLS, INNER, LOSSES, strict=True))
        ]

    problem = {"name": HOSTILE, "label": f"problem {HOSTILE}"}
    made = [add_rows(store, rows(1.0), label="A", problem=problem)]
    for seed, factor in enumerate((2.0, 3.0, 5.0)):
        made.append(add_rows(store, rows(factor), label="B", seed=seed, problem=problem, lr=1))
    made.append(add_rows(store, rows(7.0), label=HOSTILE, problem=problem, lr=2))
    failed = {"label": "A", "seed": 5, "status": "failed", "reason": HOSTILE, "problem": problem}
    made.append(add_rows(store, [], **failed))
    write_plan(store, made)
