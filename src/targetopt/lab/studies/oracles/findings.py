"""What the study found, as numbers: calls to the levels, ratios, seconds besides, break-even prices."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.store.directory import Run, Store
from targetopt.lab.studies.oracles.arms import DEFAULT, Arm
from targetopt.lab.studies.oracles.measures import (
    PRICES,
    SHARES,
    Course,
    break_even,
    levels,
    middle,
    ratio,
)
from targetopt.lab.studies.oracles.study import PARTS, Entry, scale_of
from targetopt.lab.studies.oracles.suite import EXTENTS, Scale, Task, tasks
from targetopt.types import BadArgument

MIDDLE = 1
"""The level at which prices are compared: the second of the three."""


@dataclass(frozen=True)
class Found:
    """One arm on one task.

    Attributes:
        label, role: of the arm.
        chosen: the value of its tuned option, if it has one.
        calls: for each level and seed the calls to reach it; infinite where it was not reached.
        beside: the seconds beside the oracle until then.
        lowest: for each seed the lowest loss within the budget of the default.
        at_end: for each seed the lowest loss within its own budget, which may be larger.
        spent: for each seed all calls within its own budget, and the seconds besides.
        statuses: how the runs ended.
    """

    label: str
    role: str
    chosen: float | None
    calls: list[list[float]]
    beside: list[list[float]]
    lowest: list[float]
    at_end: list[float]
    spent: list[tuple[float, float]]
    statuses: dict[str, int]

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Found:
        """What ``asdict`` gave, with null for what was infinite."""
        spent = [(calls, beside) for calls, beside in record["spent"]]
        return cls(**{**_infinite(record), "chosen": record["chosen"], "spent": spent})

    def median_calls(self, level: int) -> float:
        return middle(self.calls[level])

    def median_beside(self, level: int) -> float:
        return middle(self.beside[level])

    def cost(self, level: int) -> tuple[float, float]:
        """Median calls and seconds besides to a level; where it was not reached, all that was spent: it costs more."""
        if math.isfinite(self.median_calls(level)):
            return self.median_calls(level), self.median_beside(level)
        return middle([pair[0] for pair in self.spent]), middle([pair[1] for pair in self.spent])

    def seconds(self, level: int, price: float) -> float:
        """What a level costs at a price: calls · price + the seconds besides; or more, see `cost`."""
        calls, beside = self.cost(level)
        return calls * price + beside


@dataclass(frozen=True)
class TaskFindings:
    """All arms on one task.

    Attributes:
        budget: calls that every run of SSO had.
        patience: how many times that rivals had.
        seeds: how many are shown; some arms may have fewer.
        call_seconds: what a call took here, by the clock.
        arms: the default first.
        made: what its runs were made with, trials included, and what they took (`stamped`).
    """

    name: str
    title: str
    oracle: str
    budget: int
    seeds: int
    call_seconds: float
    arms: list[Found]
    patience: int = 1
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs its numbers are from."""
        return sum(len(arm.lowest) for arm in self.arms)

    @property
    def own(self) -> Found:
        return next(arm for arm in self.arms if arm.role == "default")

    def of(self, *roles: str) -> list[Found]:
        return [arm for arm in self.arms if arm.role in roles]

    def best(self, level: int, *roles: str) -> Found | None:
        """The arm of these roles with the fewest calls to a level; of those that never get there, the lowest."""
        return min(
            self.of(*roles),
            key=lambda arm: (arm.median_calls(level), middle(arm.lowest)),
            default=None,
        )

    def ratio(self, level: int, *roles: str) -> tuple[float, str]:
        """How many times fewer calls the default needs than the best of these roles."""
        best = self.best(level, *roles)
        if best is None:
            return math.nan, ""
        own = self.own.median_calls(level)
        patience = self.patience if best.role == "rival" else 1
        return ratio(best.median_calls(level), own, self.budget, patience)

    def changed(self, label: str) -> float:
        """Calls of an arm to the middle level over those of the default, on the seeds that both have.

        A level that is missed counts as twice the budget; nan if the arm did not take part.
        """
        arm = next((each for each in self.arms if each.label == label), None)
        if arm is None:
            return math.nan
        own = self.own.calls[MIDDLE][: len(arm.lowest)]
        most = 2.0 * self.budget
        return min(arm.median_calls(MIDDLE), most) / min(middle(own), most)

    def middle_ratio(self, *roles: str) -> float:
        """The median of the ratios at the three levels."""
        found = [self.ratio(level, *roles)[0] for level in range(len(SHARES))]
        known = [each for each in found if not math.isnan(each)]
        return middle(known) if known else math.nan

    def break_even(self, *roles: str) -> float:
        """The price of a call above which the default is cheaper than every arm of these roles."""
        own = (self.own.median_calls(MIDDLE), self.own.median_beside(MIDDLE))
        rivals = [arm.cost(MIDDLE) for arm in self.of(*roles)]
        return max((break_even(own, rival) for rival in rivals), default=math.nan)

    def price_ratio(self, price: float, *roles: str) -> float:
        """Seconds of the cheapest of these roles over seconds of the default, at a price."""
        costs = [arm.seconds(MIDDLE, price) for arm in self.of(*roles)]
        if not costs or math.isinf(self.own.median_calls(MIDDLE)):
            return math.nan
        return min(costs) / self.own.seconds(MIDDLE, price)

    def record(self) -> dict[str, Any]:
        """Plain JSON, in which infinities are null."""
        return {
            "name": self.name,
            "title": self.title,
            "oracle": self.oracle,
            "budget": self.budget,
            "patience": self.patience,
            "seeds": self.seeds,
            "call_seconds": self.call_seconds,
            "made": self.made,
            "ratio_to_rivals": [_plain(self.ratio(k, "rival")[0]) for k in range(len(SHARES))],
            "ratio_bound": [self.ratio(k, "rival")[1] for k in range(len(SHARES))],
            "ratio_to_tricks": [_plain(self.ratio(k, "trick")[0]) for k in range(len(SHARES))],
            "break_even_seconds": _plain(self.break_even("rival")),
            "price_ratios": {str(p): _plain(self.price_ratio(p, "rival")) for p in PRICES},
            "arms": [_plain(asdict(arm)) for arm in self.arms],
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> TaskFindings:
        """What `record` has written."""
        own = {each.name: record[each.name] for each in fields(cls)}
        arms = [Found.read(arm) for arm in record["arms"]]
        return cls(**{**own, "arms": arms})


def changes(found: Sequence[TaskFindings]) -> dict[str, str]:
    """What the default is compared with in SSO itself: the label and the role of each ablation and each other rule."""
    return {arm.label: arm.role for task in found for arm in task.of("ablation", "rule")}


def _infinite(value: Any) -> Any:
    """The inverse of `_plain` where nothing is nan."""
    if value is None:
        return math.inf
    if isinstance(value, dict):
        return {key: _infinite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_infinite(each) for each in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def gather(out: Path) -> tuple[Scale, list[TaskFindings]]:
    """The findings of every task whose shown runs have ended, in the order of the suite."""
    scale = scale_of(out)
    if scale is None:
        raise BadArgument(
            f"{out} holds no study. Make one with `targetopt oracles run --out {out}`."
        )
    found = []
    for task in tasks():
        directory = out / task.name
        if (directory / "plan.json").exists():
            one = _task(task, scale, directory)
            if one is not None:
                found.append(one)
    if not found:
        raise BadArgument(
            f"{out} holds no task whose runs have all ended; give the command of its study again."
        )
    return scale, found


def _task(task: Task, scale: Scale, directory: Path) -> TaskFindings | None:
    entry = Entry.of(task, scale)
    runs: list[Run] = []
    for place in entry.shown():
        store = Store(directory / place)
        planned = [each for each in store.plan() if not each.get("trial")]
        ended = store.shown() if planned else []
        whole = bool(ended) and len(ended) >= len(planned)
        if whole:
            runs += ended
        elif place != PARTS:  # which may come later
            return None
    extent = EXTENTS[scale]
    seeds = extent.shown(DEFAULT.role)
    by_arm: dict[str, dict[int, Run]] = {}
    for run in runs:
        by_arm.setdefault(run.manifest["method"]["label"], {})[run.manifest["seed"]] = run
    courses: dict[str, list[Course | None]] = {}
    for arm in entry.arms:
        if arm.label not in by_arm:
            continue
        each = by_arm[arm.label]
        budget = entry.budget_of(arm.role)
        courses[arm.label] = [
            Course.of(each[seed].columns, budget) if seed in each else None
            for seed in extent.shown(arm.role)
        ]
    goals = []
    for seed in seeds:
        there = [each[seed] for each in courses.values() if seed < len(each)]
        goals.append(levels([course for course in there if course is not None], entry.budget))
    chosen = _chosen(directory)
    arms = [
        _arm(arm, courses[arm.label], goals, by_arm[arm.label], chosen.get(arm.label), entry.budget)
        for arm in entry.arms
        if arm.label in by_arm
    ]
    if not any(arm.label == DEFAULT.label for arm in arms):
        return None
    per_call = [
        float(run.columns["oracle_time"][-1])
        / max(int(run.columns["oracle_calls"][-1] + run.columns["value_calls"][-1]), 1)
        for run in runs
        if len(run.columns["step"])
    ]
    return TaskFindings(
        task.name,
        task.title,
        task.oracle,
        entry.budget,
        len(seeds),
        middle(per_call),
        arms,
        extent.patience,
        stamped(directory),
    )


def stamped(directory: Path) -> dict[str, Any]:
    """What the runs of a task were made with, trials included, and the processor time they took."""
    stores = [Store(path.parent) for path in sorted(directory.rglob("plan.json"))]
    planned = {run["id"]: store for store in stores for run in store.plan()}
    known = [store.manifest(run) for run, store in planned.items()]
    manifests = [manifest for manifest in known if manifest is not None]
    return {
        "runs": len(manifests),
        "processor_minutes": round(sum(m.get("cpu_time", 0.0) for m in manifests) / 60, 2),
        "commits": sorted({str(m["commit"]) for m in manifests}),
        "versions": manifests[0]["versions"] if manifests else {},
        "machine": manifests[0]["machine"] if manifests else {},
    }


def _chosen(directory: Path) -> dict[str, float]:
    path = directory / "choices.json"
    records = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return {record["arm"]: record["chosen"] for record in records}


def _arm(
    arm: Arm,
    courses: Sequence[Course | None],
    goals: Sequence[np.ndarray[Any, Any]],
    runs: Mapping[int, Run],
    chosen: float | None,
    budget: int,
) -> Found:
    nowhere = (math.inf, math.inf)
    spent = [
        [
            nowhere if course is None else course.reached(float(goal[level]))
            for course, goal in zip(courses, goals, strict=False)  # some have fewer seeds
        ]
        for level in range(len(SHARES))
    ]
    statuses: dict[str, int] = {}
    for run in runs.values():
        status = run.manifest["status"]
        statuses[status] = statuses.get(status, 0) + 1
    return Found(
        arm.label,
        arm.role,
        chosen,
        [[pair[0] for pair in level] for level in spent],
        [[pair[1] for pair in level] for level in spent],
        [math.inf if course is None else course.lowest_within(budget) for course in courses],
        [math.inf if course is None else float(course.lowest[-1]) for course in courses],
        [
            (0.0, 0.0) if course is None else (float(course.calls[-1]), float(course.beside[-1]))
            for course in courses
        ],
        statuses,
    )
