"""``status`` and ``report`` on ten thousand small runs: seconds, and the most memory they take.

The runs are made up, ten problems × five batch sizes × twenty methods × ten seeds with thirty records each, and are
written in the form in which the engine writes them.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks import harness
from targetopt.lab.store.directory import Store, to_json, to_table

RECORDS = 30
PROBLEMS, BATCHES, SEEDS = 10, (25, 125, 625, 1000, "full"), 10
METHODS = (
    *({"name": "sso", "rule": rule, "m": m} for rule in ("gradient-step", "newton") for m in range(1, 9)),
    *({"name": name} for name in ("sgd", "sls", "adam", "adagrad")),
)  # fmt: skip


def fill(directory: Path, seeds: int = SEEDS) -> int:
    """Write the made-up runs; returns how many."""
    store = Store(directory)
    store.prepare()
    rng = np.random.default_rng(0)
    plan = []
    grid = itertools.product(range(PROBLEMS), BATCHES, METHODS, range(seeds))
    for number, (problem, batch, method, seed) in enumerate(grid):
        run = f"{number:016x}"
        label = " ".join(str(value) for value in method.values())
        inner = int(method.get("m", 1))
        losses = np.exp(-0.2 * np.arange(RECORDS) * rng.uniform(0.5, 1.5))
        rows = [
            {
                "step": t,
                "oracle_calls": t,
                "value_calls": 0,
                "inner_steps": inner * t,
                "forward_calls": inner * t,
                "backward_calls": inner * t,
                "epoch": t / 3,
                "wall_time": 0.01 * t * rng.uniform(0.9, 1.1),
                "loss": float(loss),
                "grad_norm": float(loss) ** 0.5,
                "accuracy": 1 - float(loss) / 2,
            }
            for t, loss in enumerate(losses)
        ]
        manifest = {
            "id": run,
            "status": "done",
            "reason": "",
            "attempt": 1,
            "problem": {"name": f"problem-{problem}", "label": f"problem {problem}"},
            "method": {**method, "label": label},
            "seed": seed,
            "batch_size": batch,
            "epochs": 10,
            "config": {},
            "versions": {"targetopt": "0"},
            "commit": "0" * 40,
            "machine": {"cores": 2},
            "started": "2024-05-01T12:00:00+00:00",
            "command": f"targetopt run --out {directory} --only {run}",
            "duration": 1.0,
            "cpu_time": 1.0,
            "counts": {name: rows[-1][name] for name in ("oracle_calls", "inner_steps")},
        }
        pq.write_table(to_table(run, rows), store.metrics_path(run))
        store.manifest_path(run).write_bytes(to_json(manifest))
        entry = {"id": run, "problem": f"problem {problem}", "method": label}
        plan.append({**entry, "seed": seed, "batch_size": batch})
    (directory / "plan.json").write_text(json.dumps(plan))
    return len(plan)


CALL = """
import resource, sys, time
from targetopt.lab.cli.main import main
wall, cpu = time.perf_counter(), time.process_time()
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print(time.perf_counter() - wall, time.process_time() - cpu,
      resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, file=sys.stderr)
"""


def main() -> None:
    """Measure both commands, each in a process of its own, and keep the numbers."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        runs = fill(Path(folder))
        print(f"{runs} runs written in {time.perf_counter() - began:.0f} s", flush=True)
        for command in ("status", "report"):
            done = subprocess.run(
                [sys.executable, "-c", CALL, command, folder],
                capture_output=True,
                text=True,
                check=True,
            )
            wall, cpu, memory = map(float, done.stderr.splitlines()[-1].split())
            measured[command] = {"seconds": wall, "cpu_seconds": cpu, "megabytes": memory}
            print(f"{command}: {wall:.1f} s, {cpu:.1f} s of processor time, {memory:.0f} MB")
    harness.save("report", {"runs": runs, **measured}, "pyarrow", "matplotlib")


if __name__ == "__main__":
    main()
