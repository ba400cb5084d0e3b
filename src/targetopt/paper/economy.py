"""What figures will cost before they are run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from targetopt.bench.forecast import forecast, kind
from targetopt.bench.work import settled
from targetopt.paper.reproduce import assign


def economy(
    wanted: Sequence[str], out: Path, scale: str
) -> Iterator[tuple[str, int, int, int, float]]:
    """For each figure with runs, and for all: its runs, those no figure before it has, those done, CPU seconds.

    The seconds are those of its own runs that are not done yet, measured on the first steps of each
    kind (:mod:`targetopt.bench.forecast`). What tuning will choose is counted with its first value.
    """
    seen: set[str] = set()
    totals = [0, 0, 0, 0.0]
    for name, assignment in assign(wanted, out, scale).items():
        assignment.store.home = out
        for place in range(len(assignment.grid.tuned)):
            assignment.decide(place)
        runs = {run.id: run for run in (*assignment.wanted(), *assignment.undecided())}
        new = [run for run in runs.values() if run.id not in seen]
        open_ = [run for run in new if not settled(assignment.store.manifest(run.id), None)]
        took = forecast(open_)
        seen |= runs.keys()
        row = (len(runs), len(new), len(new) - len(open_), sum(took[kind(run)] for run in open_))
        totals = [total + number for total, number in zip(totals, row, strict=True)]
        yield name, *row
    yield "all", int(totals[0]), int(totals[1]), int(totals[2]), totals[3]
