"""What experiments will cost before they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from targetopt.lab.run.forecast import forecast
from targetopt.lab.run.job import settled
from targetopt.lab.run.plan import Plan


@dataclass(frozen=True)
class Cost:
    """What an experiment is made of, and what is left to do.

    Attributes:
        runs: all it shows, and those by which its tuned methods choose.
        own: those that none before it has.
        done: how many of its own are done.
        seconds: CPU time of its own that are not, measured on the first steps of each kind
            (:mod:`targetopt.lab.run.forecast`).
    """

    runs: int
    own: int
    done: int
    seconds: float


def economy(
    plans: Mapping[str, Plan],
    time_limit: float | None = None,
    show: Callable[[int, int, str], None] = lambda done, total, note: None,
) -> dict[str, Cost]:
    """The cost of each experiment, by its name; what tuning has yet to choose counts with the first of its values.

    ``show`` is told how many kinds of runs are timed, of how many, and which is next.
    """
    counts, left = {}, {}
    seen: set[str] = set()
    for name, plan in plans.items():
        for place in range(len(plan.grid.tuned)):
            plan.decide(place)
        runs = {run.id: run for run in (*plan.wanted(), *plan.undecided())}
        own = [run for run in runs.values() if run.id not in seen]
        seen |= runs.keys()
        store = plan.store
        left[name] = [run for run in own if not settled(store.manifest(run.id), time_limit)]
        counts[name] = len(runs), len(own), len(own) - len(left[name])
    seconds = forecast((run for runs in left.values() for run in runs), show)
    if time_limit is not None:
        seconds = {run: min(time, time_limit) for run, time in seconds.items()}
    return {
        name: Cost(*counts[name], sum(seconds[run.id] for run in left[name])) for name in counts
    }


def total(costs: Mapping[str, Cost]) -> Cost:
    """Of all of them together."""
    every = list(costs.values())
    return Cost(
        runs=sum(cost.runs for cost in every),
        own=sum(cost.own for cost in every),
        done=sum(cost.done for cost in every),
        seconds=sum(cost.seconds for cost in every),
    )
