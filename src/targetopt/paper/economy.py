"""What figures will cost before they are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from targetopt.bench.forecast import forecast
from targetopt.bench.work import settled
from targetopt.paper.reproduce import assign


@dataclass(frozen=True)
class Cost:
    """What a figure is made of, and what is left to do.

    Attributes:
        runs: all it shows, and those by which its tuned methods choose.
        own: those that no figure before it has.
        done: how many of its own are done.
        seconds: CPU time of its own that are not, measured on the first steps of each kind
            (:mod:`targetopt.bench.forecast`).
    """

    runs: int
    own: int
    done: int
    seconds: float


def economy(wanted: Sequence[str], out: Path, scale: str) -> dict[str, Cost]:
    """The cost of each figure that has runs, and of all of them together.

    What tuning has yet to choose is counted with the first of its values.
    """
    counts, left = {}, {}
    seen: set[str] = set()
    for name, assignment in assign(wanted, out, scale).items():
        assignment.store.home = out
        for place in range(len(assignment.grid.tuned)):
            assignment.decide(place)
        runs = {run.id: run for run in (*assignment.wanted(), *assignment.undecided())}
        own = [run for run in runs.values() if run.id not in seen]
        seen |= runs.keys()
        left[name] = [run for run in own if not settled(assignment.store.manifest(run.id), None)]
        counts[name] = len(runs), len(own), len(own) - len(left[name])
    seconds = forecast(run for runs in left.values() for run in runs)
    costs = {
        name: Cost(*counts[name], sum(seconds[run.id] for run in left[name])) for name in counts
    }
    whole = Cost(
        runs=sum(cost.runs for cost in costs.values()),
        own=sum(cost.own for cost in costs.values()),
        done=sum(cost.done for cost in costs.values()),
        seconds=sum(cost.seconds for cost in costs.values()),
    )
    return {**costs, "all": whole}
