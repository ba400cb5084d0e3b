"""Redo a sample of the published supervised runs and compare them with what ``results/`` holds.

::

    python -m benchmarks.published --out redo                      # draw, redo what is missing, compare
    python -m benchmarks.published --out redo-old --code OLD/src   # the same runs by another version
    python -m benchmarks.published --out redo --against redo-old   # two versions on one machine, bit for bit

Every method and inner solver of the study is in the sample, which is spread over data sets, losses and batch
sizes (`sample`). Published curves are thinned and have single precision, so they are compared in single precision
at the steps that they have; two directories of redone runs are compared in double precision at all steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks import harness
from targetopt.lab.run.job import Job, perform
from targetopt.lab.run.plan import redo_command
from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.spec.grid import resolve
from targetopt.lab.store.directory import Store

RESULTS = Path(__file__).parents[1] / "results"
COUNTS = ("oracle_calls", "value_calls", "inner_steps")
MEASURED = ("loss", "grad_norm")
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Published:
    """One run of ``results/``: where it stands, what it is, and its thinned curve."""

    figure: str
    run: str
    label: str
    problem: str
    loss: str
    batch_size: str
    cpu_time: float
    curve: Columns


def published() -> Iterator[Published]:
    """All supervised runs that ended as planned."""
    for path in sorted(RESULTS.glob("*/curves.parquet")):
        table = pq.read_table(path)
        if "held_out_loss" in table.column_names:  # imitation
            continue
        times = json.loads(path.with_name("facts.json").read_text())["cpu_time"]
        frame = table.to_pandas()
        for run, rows in frame[frame["status"] == "done"].groupby("run", observed=True):
            rows = rows.drop_duplicates("step")  # a run may stand in several panels
            first = rows.iloc[0]
            curve = {name: rows[name].to_numpy() for name in ("step", *COUNTS, *MEASURED)}
            words = (
                str(first[name]) for name in ("label", "problem", "loss_function", "batch_size")
            )
            yield Published(path.parent.name, str(run), *words, times[str(run)], curve)


def sample(size: int, seed: int) -> list[Published]:
    """Every method and inner solver in turns, spread evenly over data sets, losses and batch sizes.

    A method takes the next of its runs from where the sample has the fewest so far: on the loss and data set that it
    has fewest of, then with the batch size. Among those the lot decides, however long they take. The quickest come
    first, so that a redoing that is cut short has as many as possible.
    """
    by_label: dict[str, list[Published]] = {}
    seen: set[str] = set()
    for each in published():
        if each.run not in seen:  # a run that several figures show counts once
            seen.add(each.run)
            by_label.setdefault(each.label, []).append(each)
    rng = np.random.default_rng(seed)
    queues = [[runs[i] for i in rng.permutation(len(runs))] for _, runs in sorted(by_label.items())]
    drawn: Counter[tuple[str, ...]] = Counter()

    def crowded(each: Published) -> tuple[int, ...]:
        return drawn[each.problem, each.loss], drawn["batch", each.batch_size]

    chosen: list[Published] = []
    while len(chosen) < size and any(queues):
        for queue in queues:
            if queue and len(chosen) < size:
                each = queue.pop(min(range(len(queue)), key=lambda i: crowded(queue[i])))
                drawn.update([(each.problem, each.loss), ("batch", each.batch_size)])
                chosen.append(each)
    return sorted(chosen, key=lambda each: each.cpu_time)


def redo(runs: list[Published], out: Path) -> Iterator[Published]:
    """Do what is missing, in this process; a run that was cut short goes on from its checkpoint."""
    specifications = {
        figure: resolve(Experiment.read(RESULTS / figure / "spec.toml"))
        for figure in dict.fromkeys(each.figure for each in runs)
    }
    for each in runs:
        possible = specifications[each.figure].possible()
        config = next(config for config in possible if config.id == each.run)
        command = redo_command(RESULTS / each.figure, each.run)
        job = Job(str(out / each.figure), each.run, config, 1, command, alone=True)
        Store(job.directory).prepare()
        ended = perform(job, stop=lambda: False, tell=lambda event: None)
        if ended.kind != "ended":
            raise SystemExit(f"{each.figure} {each.run} {ended.kind}: {ended.reason}")
        yield each


def redo_by(code: str, runs: list[Published], out: Path) -> Iterator[Published]:
    """Have another version do what is missing, by the command that reports name beside each curve."""
    for figure in dict.fromkeys(each.figure for each in runs):
        ids = [each.run for each in runs if each.figure == figure]
        only = [word for run in ids for word in ("--only", run)]
        command = ["run", str(RESULTS / figure / "spec.toml"), "--out", str(out / figure)]
        subprocess.run(
            [sys.executable, "-m", "targetopt", *command, "--jobs", "1", *only],
            env={**os.environ, "PYTHONPATH": code},
            check=True,
        )
    yield from runs


def curve_of(out: Path, each: Published) -> Columns | None:
    found = Store(out / each.figure).load([each.run])
    return None if not found else dict(found[0].columns)


def compare(before: Columns, after: Columns) -> dict[str, Any]:
    """How two curves differ at the steps that the first one has."""
    common, here, there = np.intersect1d(before["step"], after["step"], return_indices=True)
    single = before["loss"].dtype == np.float32
    outcome: dict[str, Any] = {"steps": len(common), "missing": len(before["step"]) - len(common)}
    outcome["same_counts"] = all(
        np.array_equal(before[name][here], after[name][there]) for name in COUNTS
    )
    same, largest, last = True, 0.0, 0.0
    for name in MEASURED:
        old, new = before[name][here], after[name][there]
        new = new.astype(np.float32) if single else new
        same = same and np.array_equal(old, new, equal_nan=True)
        if name == "loss":
            with np.errstate(invalid="ignore", divide="ignore"):
                off = np.abs(new.astype(float) - old) / np.maximum(
                    np.abs(old.astype(float)), 1e-300
                )
            off = np.where(old == new, 0.0, off)
            largest, last = float(off.max(initial=0.0)), float(off[-1]) if off.size else 0.0
    return {**outcome, "same_bits": bool(same), "largest": largest, "last": last}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--out", type=Path, default=Path("redone"), help="where the runs go")
    options.add_argument("--size", type=int, default=50, help="runs in the sample")
    options.add_argument("--seed", type=int, default=0, help="of the sample")
    options.add_argument("--code", help="another version of the package: its src folder")
    options.add_argument("--against", type=Path, help="compare with redone runs, not with results/")
    options.add_argument("--first", type=int, help="redo only so many, the quickest ones")
    options.add_argument("--save", help="write the outcome to benchmarks/results/NAME.json")
    chosen = options.parse_args()
    runs = sample(chosen.size, chosen.seed)[: chosen.first]
    rows = []
    redone = redo_by(chosen.code, runs, chosen.out) if chosen.code else redo(runs, chosen.out)
    for each in redone:
        after = curve_of(chosen.out, each)
        before = each.curve if chosen.against is None else curve_of(chosen.against, each)
        if after is None or before is None:
            continue
        what = f"{each.figure} {each.problem} {each.loss} {each.batch_size} {each.label}"
        rows.append({"run": each.run, "what": what, **compare(before, after)})
        row = rows[-1]
        bits = (
            "same bits"
            if row["same_bits"]
            else f"largest {row['largest']:.1e}, end {row['last']:.1e}"
        )
        counts = "" if row["same_counts"] else ", COUNTS DIFFER"
        print(f"{each.run}  {what:72s} {row['steps']:4d} steps  {bits}{counts}", flush=True)
    same = sum(row["same_bits"] for row in rows)
    print(f"{len(rows)} of {len(runs)} redone; {same} are the same bit for bit")
    if chosen.save:
        harness.save(chosen.save, {"runs": rows}, "numba")


if __name__ == "__main__":
    main()
