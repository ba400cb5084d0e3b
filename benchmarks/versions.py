"""Time two versions of the package on the same work, in turns, by processor time.

::

    python -m benchmarks.versions --before OLD/src                    # ratios: this version over the other one
    python -m benchmarks.versions --before OLD/src --cold             # and the first fit on an empty cache of kernels
    python -m benchmarks.versions --before OLD/src --save versions    # write benchmarks/results/versions.json

Each version answers in a process of its own, which prepares all the work first. Then they take turns: one piece of work
by one, the same by the other, and so on. Ratios are of the medians of the processor time.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).parents[1] / "src")
FIRST_FIT = (
    "import numpy as np, targetopt as to; "
    "to.linear.fit(np.eye(4), np.array([1.0, -1.0, 1.0, -1.0]), inner=to.Armijo(max_steps=20), lr=1.0, "
    "batch_size=2, epochs=1)"
)


def pieces() -> dict[str, Callable[[], object]]:
    """The work, by whichever version is imported: names that both have."""
    import numpy as np
    import scipy.sparse as sp
    import torch

    import targetopt as to

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(4000, 22))
    sparse = sp.csr_array(sp.random(4000, 3000, density=0.01, format="csr", random_state=0))
    data = {
        "dense": (dense, np.sign(dense @ rng.normal(size=22))),
        "sparse": (sparse, np.sign(rng.normal(size=4000))),
    }
    solvers = {
        "Armijo m=20": to.Armijo(max_steps=20),
        "Armijo m=100": to.Armijo(max_steps=100),
        "L-BFGS m=10": to.LBFGS(max_steps=10),
    }
    work: dict[str, Callable[[], object]] = {}
    for kind, (X, y) in data.items():
        for batch in (25, 625):
            same: dict[str, Any] = {"batch_size": batch, "epochs": 5, "seed": 0}
            for name, inner in solvers.items():
                method = {"rule": to.GradientStep(), "inner": inner, "lr": 1.0}
                work[f"fit, {kind}, batch {batch}, {name}"] = lambda X=X, y=y, m=method, s=same: (
                    to.linear.fit(X, y, loss=to.losses.Logistic, **m, **s)
                )
            rival = {"baseline": to.linear.baselines.SGD(), "lr": 0.1}
            work[f"fit, {kind}, batch {batch}, SGD"] = lambda X=X, y=y, m=rival, s=same: (
                to.linear.fit(X, y, loss=to.losses.Logistic, **m, **s)
            )
    x, target = torch.randn(100, 11), torch.randn(100, 3)
    for name, inner in {"m=1": to.GradientDescent(1e-3, max_steps=1), **solvers}.items():
        work[f"step, network, {name}"] = stepping(to, network(torch, x), x, target, inner)
    weight = torch.zeros(22, dtype=torch.float64, requires_grad=True)
    labels = torch.as_tensor(data["dense"][1][:125])
    opt = to.SSO([weight], lr=1.0, rule=to.GradientStep(), inner=to.Armijo(max_steps=20))
    forward, oracle = to.Linear(weight, dense[:125]), to.LossOracle(to.losses.Logistic(labels))
    work["step, linear forward, Armijo m=20"] = lambda: opt.step(forward, oracle)
    return work


def network(torch: Any, x: Any) -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(11, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)
    )


def stepping(to: Any, model: Any, x: Any, target: Any, inner: Any) -> Callable[[], object]:
    opt = to.SSO(model.parameters(), lr=0.1, rule=to.GradientStep(), inner=inner)
    oracle = to.LossOracle(to.losses.Squared(target))
    return lambda: opt.step(lambda: model(x), oracle)


def answer() -> None:
    """Prepare all the work, then do what each line of the standard input names: name, tab, how often."""
    work = pieces()
    print("\t".join(work), flush=True)
    for line in sys.stdin:
        name, times = line.rstrip("\n").split("\t")
        begin = time.process_time()
        for _ in range(int(times)):
            work[name]()
        print((time.process_time() - begin) / int(times), flush=True)


class Version:
    """One version of the package, at work in a process of its own."""

    def __init__(self, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--answer"],
            env=environment(source),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.names = self._line().split("\t")

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().rstrip("\n")
        if not line:
            raise SystemExit("one of the versions cannot do this work; its error is above")
        return line

    def seconds(self, name: str, times: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\t{times}\n")
        self.process.stdin.flush()
        return float(self._line())

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def environment(source: str, **more: str) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": source, **more}


def of_child(command: list[str], source: str, **more: str) -> float:
    """Processor seconds of a command and of all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], env=environment(source, **more), check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cold(source: str) -> float:
    """Of the first fit there ever is: importing, compiling, fitting."""
    with tempfile.TemporaryDirectory() as empty:
        return of_child(["-c", FIRST_FIT], source, NUMBA_CACHE_DIR=empty)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--before", help="the other version: its src folder")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--cold", action="store_true", help="the first fit, on an empty cache")
    options.add_argument("--save", help="write benchmarks/results/NAME.json")
    chosen = options.parse_args()
    if chosen.answer:
        answer()
        return
    from benchmarks import harness

    sources = {"before": chosen.before, "after": HERE}
    found: dict[str, dict[str, float]] = {}
    versions = {name: Version(source) for name, source in sources.items()}
    for piece in versions["after"].names:
        once = {name: max(v.seconds(piece, 1), v.seconds(piece, 1)) for name, v in versions.items()}
        times = max(1, round(0.05 / max(once.values())))
        taken: dict[str, list[float]] = {name: [] for name in versions}
        for _ in range(chosen.rounds):
            for name, version in versions.items():
                taken[name].append(version.seconds(piece, times))
        found[piece] = {name: statistics.median(values) for name, values in taken.items()}
        print(f"{piece:45s} {found[piece]['after'] / found[piece]['before']:.2f}", flush=True)
    for version in versions.values():
        version.end()
    imports: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(3):
        for name, source in sources.items():
            imports[name].append(of_child(["-c", "import targetopt as to; to.SSO"], source))
    found["import and SSO"] = {name: min(values) for name, values in imports.items()}
    if chosen.cold:
        found["first fit, nothing compiled"] = {name: cold(src) for name, src in sources.items()}
    rows = [
        {"work": piece, **times, "ratio": times["after"] / times["before"]}
        for piece, times in found.items()
    ]
    harness.table(
        ("work", "before, s", "after, s", "after / before"),
        [(r["work"], f"{r['before']:.3g}", f"{r['after']:.3g}", f"{r['ratio']:.2f}") for r in rows],
    )
    if chosen.save:
        harness.save(chosen.save, {"rounds": chosen.rounds, "work": rows}, "numba")


if __name__ == "__main__":
    main()
