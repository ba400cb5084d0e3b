"""What the experiment engine adds to a run: claim, scheduling, two files that are on the disk.

The claim is about wall time on a machine with nothing else to do; the CPU time beside it does not
depend on what else runs, but leaves out the waiting for the disk.
"""

from __future__ import annotations

import os
import tempfile
import time

import psutil

from benchmarks.harness import save, table, verdict
from targetopt.lab import Experiment, run

RUNS = 1000
LIMIT_MS = 20.0


def trivial(seeds: int) -> Experiment:
    """One full-batch step of SGD in two dimensions, ``seeds`` times."""
    return Experiment(
        name="trivial",
        problems=[{"name": "quadratic"}],
        methods=[{"name": "sgd", "lr": 0.01}],
        epochs=1,
        seeds=seeds,
        engine="torch",
    )


def cpu_seconds() -> float:
    """CPU time of this process and of all workers that have ended.

    Workers are children of the process they are forked from, which is a child of this one.
    """
    servers = [child.cpu_times() for child in psutil.Process().children()]
    workers = sum(times.children_user + times.children_system for times in servers)
    return time.process_time() + workers


def main() -> None:
    measured = {}
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory() as directory:
            run(trivial(jobs), directory, jobs=jobs)  # imports are paid once per session
            began, cpu = time.perf_counter(), cpu_seconds()
            summary = run(trivial(RUNS), directory, jobs=jobs)
            wall = time.perf_counter() - began
            time.sleep(1.0)  # the workers' parent hears of their end
            cpu = cpu_seconds() - cpu
            assert summary.statuses == {"done": RUNS}
        measured[jobs] = {"cpu_ms_per_run": 1e3 * cpu / RUNS, "wall_ms_per_run": 1e3 * wall / RUNS}
    rows = [
        [
            jobs,
            f"{m['cpu_ms_per_run']:.2f}",
            verdict(m["cpu_ms_per_run"], LIMIT_MS),
            f"{m['wall_ms_per_run']:.2f}",
            verdict(m["wall_ms_per_run"], LIMIT_MS),
        ]
        for jobs, m in measured.items()
    ]
    print(f"{RUNS} trivial runs, everything included (load {os.getloadavg()[0]:.1f}):")
    table(["jobs", "CPU ms per run", "", "wall ms per run", ""], rows)
    save(
        "engine",
        {"runs": RUNS, "limit_ms": LIMIT_MS, "load": os.getloadavg()[0], "by_jobs": measured},
        "pyarrow",
    )


if __name__ == "__main__":
    main()
