"""Memory on noisy mini-batches: how near the optimum, beside SSO and scikit-learn's saga, and what a step costs.

ijcnn1 is the paper's problem, logistic loss without regularisation. The RCV1-v2 subset has λ = 1/n, so
that there is an optimum to reach; its 47 236 columns are too many for a factored Gram matrix, so there the
inner solver is one gradient step, and scikit-learn's saga is the same method with batches of one example.
Gaps are f − f*, with f* from Newton's method. Seconds are CPU seconds of one thread, without loading the data and
without measuring the gaps.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression

import targetopt as to
from benchmarks.harness import in_turns, one_thread, save, table, verdict
from targetopt.baselines import linear_smoothness
from targetopt.lab import problems
from targetopt.lab.problems import LinearProblem
from targetopt.linear import Run

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
BATCHES = (25, 125, 625)
EPOCHS = (1, 2, 5, 10, 15, 20, 25, 30)
GOALS = (1e-6, 1e-9, 1e-12)
STEPS = 280  # of a timed call: one epoch of ijcnn1 at batch 125
EXAMPLES = 20242  # of the RCV1-v2 subset


def problem(name: str, **options: Any) -> LinearProblem:
    os.environ.setdefault("TARGETOPT_DATA", str(DATA))
    found = problems.get(name, **options)
    assert isinstance(found, LinearProblem)
    return found


def on_its_way(p: LinearProblem, epochs: int, **method: Any) -> dict[str, Any]:
    """The gap after each epoch of a compiled run, and the CPU seconds of the steps alone."""
    optimum = p.reference().value
    begin = time.process_time()
    run = Run(p.design, p.linear.y, weight_decay=p.weight_decay, **method)
    seconds = [time.process_time() - begin]  # factoring the Gram matrix belongs to it
    gaps = [run.measure()["loss"] - optimum]
    for _ in range(epochs):
        begin = time.process_time()
        run.advance(run.steps_per_epoch)
        seconds.append(seconds[-1] + time.process_time() - begin)
        gaps.append(run.measure()["loss"] - optimum)
    return {"gaps": gaps, "seconds": seconds}


def reached(curve: dict[str, Any]) -> dict[str, Any]:
    """Epochs and seconds until the gap is, and stays, below each goal; None if it does not get there."""
    out: dict[str, Any] = {}
    for goal in GOALS:
        above = [epoch for epoch, gap in enumerate(curve["gaps"]) if gap > goal]
        first = above[-1] + 1 if above else 0
        there = first < len(curve["gaps"])
        epochs = curve.get("epochs", range(len(curve["gaps"])))
        out[f"{goal:g}"] = [epochs[first], curve["seconds"][first]] if there else None
    return out


def scikit_learn(p: LinearProblem, epochs: tuple[int, ...]) -> dict[str, Any]:
    """scikit-learn's saga stopped after so many epochs: a run of its own for each number."""
    optimum, X, y = p.reference().value, p.linear.X, p.linear.y
    gaps, seconds = [], []
    C = 1 / (p.weight_decay * p.n) if p.weight_decay else np.inf
    for count in epochs:
        model = LogisticRegression(
            C=C, solver="saga", tol=0.0, max_iter=count, fit_intercept=False, random_state=0
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge
            begin = time.process_time()
            model.fit(X, y)
            seconds.append(time.process_time() - begin)
        gaps.append(p.metrics_at(model.coef_[0])["loss"] - optimum)
    return {"epochs": list(epochs), "gaps": gaps, "seconds": seconds}


def smooth_step(p: LinearProblem, batch_size: int) -> float:
    """α of one gradient step: 1/(ℒ + λ + 2σL_max), with ℒ the expected smoothness of a batch.

    That is twice what the proof of SAGA asks for.
    """
    n, L = p.n, p.loss.smoothness
    assert L is not None
    sigma = (n - batch_size) / (batch_size * (n - 1))
    largest = L * float(p.design.row_norms_squared().max())
    whole = linear_smoothness(p.linear.X, L)
    expected = (1 - sigma) * whole + sigma * largest
    return 1.0 / (expected + p.weight_decay + 2.0 * sigma * largest)


def show(name: str, curves: dict[str, dict[str, Any]]) -> None:
    print(name)
    header = ["", *[f"{epoch}" for epoch in EPOCHS], "to 1e-12: epochs", "seconds"]
    rows = []
    for label, curve in curves.items():
        at = curve.get("epochs", list(range(len(curve["gaps"]))))
        shown = [f"{curve['gaps'][at.index(e)]:.1e}" if e in at else "" for e in EPOCHS]
        goal = curve["reached"]["1e-12"]
        rows.append([label, *shown, *(["", ""] if goal is None else [goal[0], f"{goal[1]:.2f}"])])
    table(header, rows)


def on_ijcnn1() -> dict[str, Any]:
    """Gaps by epoch with the Gram matrix factored once, beside SSO and scikit-learn's saga."""
    p = problem("ijcnn1")
    curves = {}
    for b in BATCHES:
        curves[f"Memory, batch {b}"] = on_its_way(
            p, 30, rule=to.Memory(), inner=to.Exact(), batch_size=b
        )
        for label, inner in (("m = ∞", to.Exact()), ("m = 20", to.Armijo(max_steps=20))):
            curves[f"SSO {label}, batch {b}"] = on_its_way(
                p, 30, rule=to.GradientStep(), inner=inner, batch_size=b
            )
    curves["Memory (miso), batch 125"] = on_its_way(
        p, 100, rule=to.Memory("miso"), inner=to.Exact(), lr=4.0, batch_size=125
    )
    curves["scikit-learn saga"] = scikit_learn(p, (1, 10, 30, 100, 300))
    return curves


def on_text() -> dict[str, Any]:
    """Gaps by epoch with one gradient step, on the RCV1-v2 subset with λ = 1/n."""
    p = problem("rcv1-v2-subset", weight_decay=1 / EXAMPLES)
    curves = {}
    for b in BATCHES:
        one = to.GradientDescent(smooth_step(p, b), max_steps=1)
        epochs = 40 if b < 625 else 120
        curves[f"Memory m = 1, batch {b}"] = on_its_way(
            p, epochs, rule=to.Memory(), inner=one, lr=1.0, batch_size=b
        )
        curves[f"SSO m = 20, batch {b}"] = on_its_way(
            p, 30, rule=to.GradientStep(), inner=to.Armijo(max_steps=20), batch_size=b
        )
    curves["scikit-learn saga"] = scikit_learn(p, (1, 2, 5, 10, 15, 20, 25, 30, 40))
    return curves


def cost() -> dict[str, float]:
    """One step of Memory on ijcnn1 at batch 125 over one plain step, all in turns in one process."""
    p = problem("ijcnn1")
    parts: dict[str, dict[str, Any]] = {
        "Memory, exact": {"rule": to.Memory(), "inner": to.Exact()},
        "Memory (miso), exact": {"rule": to.Memory("miso"), "inner": to.Exact()},
        "SSO, exact": {"rule": to.GradientStep(), "inner": to.Exact()},
        "SSO, m = 20": {"rule": to.GradientStep(), "inner": to.Armijo(max_steps=20)},
        "SSO, m = 1": {"rule": to.GradientStep(), "inner": to.GradientDescent(0.1, max_steps=1)},
    }
    runs = {
        name: Run(to.linear.design(p.linear.X), p.linear.y, batch_size=125, **part)
        for name, part in parts.items()
    }
    calls = {name: (lambda run=run: run.advance(STEPS)) for name, run in runs.items()}
    times = {name: t / STEPS for name, t in in_turns(calls, rounds=15).items()}
    table(
        ["step on ijcnn1, batch 125", "µs", "over SSO, exact"],
        [[k, f"{1e6 * t:.1f}", f"{t / times['SSO, exact']:.2f}"] for k, t in times.items()],
    )
    for plain in ("SSO, exact", "SSO, m = 20", "SSO, m = 1"):
        print(f"Memory / {plain}: {verdict(times['Memory, exact'] / times[plain], 3)}")
    return times


def main() -> None:
    one_thread()
    found: dict[str, Any] = {"scikit-learn": sklearn.__version__, "step_seconds": cost()}
    for name, measure in (("ijcnn1", on_ijcnn1), ("rcv1-v2-subset", on_text)):
        curves = found[name] = measure()
        for curve in curves.values():
            curve["reached"] = reached(curve)
        show(name, curves)
        save("memory", found, "scikit-learn", "numba")


if __name__ == "__main__":
    main()
