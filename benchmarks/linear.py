"""Linear models: cost of an outer step, of many inner steps, memory, and growth with the data.

The eager torch step is given its batch ready and dense; ours draws it and gathers the sparse rows
itself. Ratios compare the same precision, float64; eager float32 is shown beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.datasets import load_svmlight_file

import targetopt as to
from benchmarks import grid
from benchmarks.harness import (
    RESULTS,
    in_turns,
    one_thread,
    save,
    spread,
    table,
    times_in_turns,
    verdict,
)
from targetopt.linear import Run
from targetopt.linear.design import design

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = {
    "mushrooms": "mushrooms.bz2",
    "ijcnn1": "ijcnn1.tr.bz2",
    "RCV1-v2 subset": "rcv1_like_20242.binary.bz2",
}
STEPS = 20  # outer steps per timed call
RCV1_BATCHES = (("RCV1-v2 subset", 25), ("RCV1-v2 subset", 125), ("RCV1-v2 subset", 625))


def load(name: str) -> tuple[sp.csr_matrix, np.ndarray[Any, Any]]:
    X, y = load_svmlight_file(str(DATA / FILES[name]))
    return X, np.where(y == y.max(), 1.0, -1.0)


def eager_step(
    X: sp.csr_matrix, y: Any, batch_size: int, dtype: torch.dtype
) -> Callable[[], object]:
    """One SGD step of ``nn.Linear`` on a ready batch: what a torch user would write."""
    x = torch.tensor(X[:batch_size].toarray(), dtype=dtype)
    labels = torch.tensor(y[:batch_size], dtype=dtype)
    model = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=dtype)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.softplus(-labels * model(x)[:, 0]).mean().backward()
        optimiser.step()

    return step


def fused_steps(X: sp.csr_matrix, y: Any, batch_size: int, m: int) -> Callable[[], object]:
    """``STEPS`` outer steps of the compiled driver, batches drawn and gathered as it goes."""
    run = Run(X, y, inner=to.Armijo(max_steps=m), lr=2.0, batch_size=batch_size)

    def steps() -> None:
        if not run.advance(STEPS):
            raise ArithmeticError("the measured run diverged")

    return steps


def sso_step(X: sp.csr_matrix, y: Any, batch_size: int, m: int) -> Callable[[], object]:
    """One outer step of `to.SSO` with a `to.Linear` forward."""
    model = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=torch.float64)
    opt = to.SSO(model.parameters(), lr=2.0, inner=to.Armijo(max_steps=m))
    everything = to.Linear(model, X)
    forward = everything.rows(np.arange(batch_size))
    oracle = to.LossOracle(to.losses.Logistic(torch.tensor(y[:batch_size])))
    return lambda: opt.step(forward, oracle)


def outer_steps() -> list[dict[str, Any]]:
    """An outer step with m = 100 against an eager SGD step on the same batch size."""
    limits = {
        "mushrooms": {25: 1.0, 125: 2.0, 625: 2.0},
        "ijcnn1": {25: 1.0, 125: 2.0, 625: 2.0},
        "RCV1-v2 subset": {25: 0.1, 125: 0.1},
    }
    rows = []
    for name, by_batch in limits.items():
        X, y = load(name)
        for batch_size, limit in by_batch.items():
            times = in_turns(
                {
                    "eager": eager_step(X, y, batch_size, torch.float64),
                    "eager32": eager_step(X, y, batch_size, torch.float32),
                    "fit": fused_steps(X, y, batch_size, 100),
                    "SSO": sso_step(X, y, batch_size, 100),
                }
            )
            rows.append(
                {
                    "data": name,
                    "batch": batch_size,
                    "eager_us": 1e6 * times["eager"],
                    "eager32_us": 1e6 * times["eager32"],
                    "fit_us": 1e6 * times["fit"] / STEPS,
                    "sso_us": 1e6 * times["SSO"],
                    "ratio": times["fit"] / STEPS / times["eager"],
                    "limit": limit,
                }
            )
    return rows


def at_625() -> list[dict[str, Any]]:
    """An outer step with m = 100 on 625 rows with twelve entries each, against an eager step on the same rows."""
    rows = []
    for columns in (123, 300):
        rng = np.random.default_rng(0)
        X = grid.MAKERS["binary"](10_000, columns, rng)
        z = np.asarray(X @ rng.normal(size=columns))
        y = np.where(z + rng.logistic(size=z.size) > 0, 1.0, -1.0)
        fits = {
            "eager": eager_step(X, y, 625, torch.float64),
            "fit": fused_steps(X, y, 625, 100),
        }
        times = times_in_turns(fits)
        ratios = [a / STEPS / b for a, b in zip(times["fit"], times["eager"], strict=True)]
        rows.append(
            {
                "columns": columns,
                "eager_us": 1e6 * statistics.median(times["eager"]),
                "fit_us": 1e6 * statistics.median(times["fit"]) / STEPS,
                "ratio": statistics.median(ratios),
                "spread": spread(ratios),
                "limit": 1.0,
            }
        )
    return rows


def in_company() -> list[dict[str, Any]]:
    """An epoch of each of eight runs that share their batches, against one that is alone."""
    rows = []
    for name, batch_size in (("mushrooms", 25), ("ijcnn1", 25), *RCV1_BATCHES):
        X, y = load(name)
        options = {"inner": to.Armijo(max_steps=20), "lr": 2.0, "batch_size": batch_size}
        alone, shared = Run(X, y, **options), design(X)
        company = [Run(shared, y, **options) for _ in range(8)]

        def advance(runs: list[Run] = company) -> None:
            if not all(run.advance(run.steps_per_epoch) for run in runs):
                raise ArithmeticError("the measured run diverged")

        times = in_turns({"alone": lambda run=alone: advance([run]), "company": advance})
        steps = alone.steps_per_epoch
        rows.append(
            {
                "data": name,
                "batch": batch_size,
                "alone_us": 1e6 * times["alone"] / steps,
                "company_us": 1e6 * times["company"] / steps / len(company),
                "ratio": times["company"] / len(company) / times["alone"],
            }
        )
    return rows


def inner_steps() -> list[dict[str, Any]]:
    """m = 1000 against m = 1 at b = 125."""
    rows = []
    for name in FILES:
        X, y = load(name)
        for path, make, share in (("SSO", sso_step, 1), ("fit", fused_steps, STEPS)):
            times = in_turns({str(m): make(X, y, 125, m) for m in (1, 10, 100, 1000)}, rounds=7)
            rows.append(
                {
                    "data": name,
                    "path": path,
                    **{f"m{m}_us": 1e6 * t / share for m, t in times.items()},
                    "ratio": times["1000"] / times["1"],
                    "limit": 10.0,
                }
            )
    return rows


def peak_memory() -> dict[str, Any]:
    """Peak of a fit on the RCV1-v2 subset, over the size of its CSR arrays (in its own process)."""
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.linear", "--peak-memory"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    csr, extra = (float(number) for number in found.stdout.split())
    return {
        "csr_mb": csr / 1e6,
        "extra_mb": extra / 1e6,
        "ratio": (csr + extra) / csr,
        "limit": 5.0,
    }


def measure_peak_memory() -> None:
    """Print the bytes of the CSR matrix and the most that fits allocated beyond it."""
    X, y = load("RCV1-v2 subset")
    X = sp.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
    fits = [
        {"inner": to.Armijo(max_steps=100), "batch_size": 125, "steps": 200},
        {"inner": to.LBFGS(max_steps=20), "steps": 5, "weight_decay": 1e-4},
        {"rule": to.Newton(), "inner": to.Exact(), "steps": 3, "weight_decay": 1e-4},
    ]
    for options in fits:  # compile first: compilers need memory too
        to.linear.fit(X[:130, :50], y[:130], **{**options, "batch_size": 64, "steps": 1})
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for options in fits:
        to.linear.fit(X, y, **options)
    csr = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    print(csr, max(_status("VmHWM") - before, 0))


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise LookupError(field)


def synthetic(nnz: int) -> tuple[sp.csr_matrix, Any]:
    """100 non-zeros in each row, 20000 columns."""
    rng = np.random.default_rng(0)
    n = nnz // 100
    gaps = rng.integers(1, 200, size=(n, 100), dtype=np.int32)
    columns = np.cumsum(gaps, axis=1, dtype=np.int32) - 1
    X = sp.csr_matrix(
        (rng.standard_normal(nnz), columns.ravel(), np.arange(0, nnz + 1, 100)), (n, 20000)
    )
    X.has_canonical_format = True
    return X, rng.choice([-1.0, 1.0], size=n)


def growth() -> list[dict[str, Any]]:
    """CPU seconds of one epoch at b = 125, m = 10, against the number of non-zeros."""
    rows = []
    for nnz in (10**5, 10**6, 10**7, 10**8):
        X, y = synthetic(nnz)
        run = Run(X, y, inner=to.Armijo(max_steps=10), lr=2.0, batch_size=125)
        run.advance(2)
        times = []
        for _ in range(7 if nnz < 10**8 else 3):
            start = time.process_time()
            run.advance(run.steps_per_epoch)
            times.append(time.process_time() - start)
        seconds = float(np.median(times))
        rows.append({"nnz": nnz, "epoch_s": seconds, "ns_per_nnz": 1e9 * seconds / nnz})
    _plot_growth(rows)
    return rows


def _plot_growth(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    nnz, seconds = [r["nnz"] for r in rows], [r["epoch_s"] for r in rows]
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    axes.loglog(nnz, seconds, "o-", label="one epoch (b = 125, m = 10)")
    axes.loglog(nnz, [seconds[-1] * x / nnz[-1] for x in nnz], "--", color="gray", label="linear")
    axes.set(xlabel="non-zeros of X", ylabel="CPU seconds")
    axes.legend()
    RESULTS.mkdir(exist_ok=True)
    figure.savefig(RESULTS / "linear_growth.png", dpi=150)
    plt.close(figure)


def main() -> None:
    one_thread()
    steps = outer_steps()
    table(
        ["data", "b", "eager SGD µs", "float32", "fit m=100 µs", "SSO m=100 µs", "fit / eager", ""],
        [
            [
                r["data"],
                r["batch"],
                f"{r['eager_us']:.0f}",
                f"{r['eager32_us']:.0f}",
                f"{r['fit_us']:.0f}",
                f"{r['sso_us']:.0f}",
                f"{r['ratio']:.3f}",
                verdict(r["ratio"], r["limit"]),
            ]
            for r in steps
        ],
    )
    company = in_company()
    table(
        ["data", "b", "m=20 alone, µs a step", "one of eight", "one of eight / alone"],
        [
            [
                r["data"],
                r["batch"],
                f"{r['alone_us']:.1f}",
                f"{r['company_us']:.1f}",
                f"{r['ratio']:.2f}",
            ]
            for r in company
        ],
    )
    inner = inner_steps()
    table(
        ["data", "path", "m=1 µs", "m=10", "m=100", "m=1000", "m=1000 / m=1", ""],
        [
            [
                r["data"],
                r["path"],
                *(f"{r[f'm{m}_us']:.0f}" for m in (1, 10, 100, 1000)),
                f"{r['ratio']:.1f}",
                verdict(r["ratio"], r["limit"]),
            ]
            for r in inner
        ],
    )
    memory = peak_memory()
    table(
        ["CSR MB", "extra MB", "(CSR + extra) / CSR", ""],
        [
            [
                f"{memory['csr_mb']:.1f}",
                f"{memory['extra_mb']:.1f}",
                f"{memory['ratio']:.2f}",
                verdict(memory["ratio"], memory["limit"]),
            ]
        ],
    )
    epochs = growth()
    table(
        ["non-zeros", "epoch, CPU s", "ns per non-zero"],
        [[f"{r['nnz']:.0e}", f"{r['epoch_s']:.3f}", f"{r['ns_per_nnz']:.1f}"] for r in epochs],
    )
    payload = {
        "outer_step": steps,
        "in_company": company,
        "inner_steps": inner,
        "peak_memory": memory,
        "growth": epochs,
    }
    print(f"written: {save('linear', payload, 'numba', 'scikit-learn').name}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--peak-memory"]:
        measure_peak_memory()
    else:
        main()
