"""The study as runs of the engine: trials until every setting is chosen, then what is shown.

::

    DIR/runs                  every run, those of trials included; see targetopt.lab.store.directory
    DIR/TASK/trials           the plan of a task's trials
    DIR/TASK/choices.json     what was chosen, and from what
    DIR/TASK                  the plan of what is shown; `targetopt report DIR/TASK` draws its curves
    DIR/TASK/rivals           the same for arms that may ask more often than SSO, if the scale lets them
    DIR/TASK/parts            the same for arms that are shown with fewer seeds, if the scale has such
    DIR/study.json            the scale

Nothing that has ended is run again: the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from targetopt.lab.run.plan import Plan, Summary
from targetopt.lab.run.runner import Display, run_all
from targetopt.lab.spec.experiment import Experiment
from targetopt.lab.spec.problem_options import load_problem
from targetopt.lab.store.directory import Store
from targetopt.lab.store.files import StoreError, write_whole
from targetopt.lab.store.records import read_json
from targetopt.lab.studies.oracles.arms import DEFAULT, Arm
from targetopt.lab.studies.oracles.choosing import ROUNDS, Search, judge
from targetopt.lab.studies.oracles.measures import Course
from targetopt.lab.studies.oracles.suite import EXTENTS, FIRST_TUNING_SEED, Scale, Task, tasks
from targetopt.types import BadArgument

PARTS, RIVALS = "parts", "rivals"
FILE = "study.json"
CHOICES = "choices.json"


Asked = tuple[str, dict[str, Any], range]
"""What an experiment is to contain: the role of an arm, its table, and its seeds."""


@dataclass
class Entry:
    """A task under way: its arms, and the searches of those that are tuned."""

    task: Task
    scale: Scale
    arms: list[Arm]
    searches: list[Search]
    budget: int

    @classmethod
    def of(cls, task: Task, scale: Scale) -> Entry:
        problem = load_problem({**task.problem, "size": scale})
        arms = task.arms(scale, problem.reveals)
        tried = EXTENTS[scale].tried
        batches = problem.batches(task.batch_size[scale]) if task.batch_size else 1
        searches = [Search.of(arm, tried) for arm in arms if arm.tune]
        return cls(task, scale, arms, searches, task.calls[scale] * batches)

    @property
    def settled(self) -> bool:
        return all(search.settled for search in self.searches)

    def trials(self) -> dict[str, Experiment]:
        """Every value of every list, on the tuning seeds; and the default, for the levels that it sets."""
        first, count = FIRST_TUNING_SEED, EXTENTS[self.scale].tuning_seeds
        seeds = range(first, first + count)
        own: list[Asked] = [(DEFAULT.role, DEFAULT.plain(None), seeds)]
        tried: list[Asked] = [
            (search.arm.role, search.arm.with_value(value), seeds)
            for search in self.searches
            for value in search.values
        ]
        return self._experiments("trials", [*own, *tried], "trials")

    def shown(self) -> dict[str, Experiment]:
        """Every arm as it was chosen, on the seeds that are shown, by its place in the task's directory."""
        chosen = {search.arm.label: search.best for search in self.searches}
        methods: list[Asked] = [
            (arm.role, arm.plain(chosen.get(arm.label)), EXTENTS[self.scale].shown(arm.role))
            for arm in self.arms
        ]
        return self._experiments(self.task.title, methods)

    def budget_of(self, role: str) -> int:
        """The calls that an arm of this role may make."""
        return self.budget * EXTENTS[self.scale].times(role)

    def _experiments(
        self, what: str, asked: Sequence[Asked], folder: str = ""
    ) -> dict[str, Experiment]:
        """One experiment for each budget and number of seeds, by its place in the task's directory."""
        extent = EXTENTS[self.scale]
        groups: dict[str, list[Asked]] = {}
        for role, table, seeds in asked:
            patient = extent.times(role) > 1
            part = RIVALS if patient else PARTS if len(seeds) < len(asked[0][2]) else ""
            groups.setdefault("/".join(filter(None, (folder, part))), []).append(
                (role, table, seeds)
            )
        return {
            place: Experiment(
                name=f"{self.task.name} · {what} ({self.scale} scale)",
                problems=[self.task.table(self.scale, extent.times(group[0][0]))],
                methods=[self._priced(table) for _, table, _ in group],
                seeds=list(group[0][2]),
                engine="torch",
            )
            for place, group in groups.items()
        }

    def _priced(self, table: dict[str, Any]) -> dict[str, Any]:
        """SSO's default is told what a call costs: a run must not depend on how busy its machine was."""
        automatic = table["name"] == DEFAULT.table["name"]
        return {"price": EXTENTS[self.scale].price, **table} if automatic else table


def run(
    out: Path,
    *,
    scale: Scale = "quick",
    wanted: Sequence[str] = (),
    jobs: int | None = None,
    executor: str = "local",
    time_limit: float | None = None,
    parts: bool = True,
    display: Display | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Summary]:
    """Do what is missing of the study in ``out``: trials, choices, and the runs that are shown.

    Args:
        out: a directory for this scale.
        scale: ``"smoke"``, ``"quick"`` or ``"full"``.
        wanted: names of tasks; all if empty.
        jobs, executor, time_limit, display: as in :func:`targetopt.lab.run`.
        parts: whether to run what is shown with fewer seeds, too; it can be added later.
        tell: told in sentences what is going on.
    """
    _claim(out, scale)
    entries = _entries(scale, wanted, tell)
    settings: dict[str, Any] = {
        "jobs": jobs, "executor": executor, "time_limit": time_limit, "display": display,
    }  # fmt: skip
    if not _tune(entries, out, settings, tell):
        return []
    plans = []
    for entry in entries:
        directory = _shared(out / entry.task.name, out).directory
        records = [search.record() for search in entry.searches]
        write_whole(directory / CHOICES, json.dumps(records, indent=1).encode())
        plans += _plans(out, entry, _asked(entry, parts))
    tell(f"Every setting is chosen; now the runs that are shown: {len(entries)} problems.")
    return run_all(plans, **settings)


def foreseen(
    out: Path,
    *,
    scale: Scale = "quick",
    wanted: Sequence[str] = (),
    parts: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[tuple[str, str], Plan]:
    """The plans of the study in ``out`` as far as they are known, by task and place; nothing is written.

    Trials that have ended are judged, so that lists are as long as they have grown. What is shown of a setting that is
    not chosen yet has some value of its list, with which a run takes about as long. Arguments as in :func:`run`.
    """
    _check(out, scale)
    plans: dict[tuple[str, str], Plan] = {}
    for entry in _entries(scale, wanted, tell):
        for _ in range(ROUNDS):
            tried = _foreseen(out, entry, entry.trials())
            trials = list(tried.values())
            if entry.settled or not all(_ended(plan) for plan in trials):
                break
            _go_on(entry, trials)
        plans |= {(entry.task.name, place): plan for place, plan in tried.items()}
        shown = _foreseen(out, entry, _asked(entry, parts))
        plans |= {(entry.task.name, place): plan for place, plan in shown.items()}
    return plans


def _foreseen(out: Path, entry: Entry, experiments: Mapping[str, Experiment]) -> dict[str, Plan]:
    """As `_plans`, by place, with nothing written."""
    plans = {}
    for place, experiment in experiments.items():
        store = Store(out / entry.task.name / place)
        store.home = out
        plans[place] = Plan(experiment, store)
    return plans


def _ended(plan: Plan) -> bool:
    return all(plan.store.manifest(run.id) is not None for run in plan.wanted())


def _entries(scale: Scale, wanted: Sequence[str], tell: Callable[[str], None]) -> list[Entry]:
    """The tasks that can be run here; what is left out is told."""
    entries = []
    for task in tasks(wanted):
        try:
            entries.append(Entry.of(task, scale))
        except ModuleNotFoundError as error:
            tell(
                f"{task.name} is left out: it needs the package {error.name!r} "
                "(pip install 'targetopt[decisions,images]')."
            )
    if not entries:
        raise BadArgument(
            "no task of the study can be run here; the lines above say what is missing"
        )
    return entries


def _asked(entry: Entry, parts: bool) -> dict[str, Experiment]:
    """What is shown of a task, with or without what has fewer seeds."""
    return {k: v for k, v in entry.shown().items() if parts or k != PARTS}


def _plans(out: Path, entry: Entry, experiments: Mapping[str, Experiment]) -> list[Plan]:
    return [
        Plan(experiment, _shared(out / entry.task.name / place, out))
        for place, experiment in experiments.items()
    ]


def _claim(out: Path, scale: Scale) -> None:
    """Write the scale down; one directory has one."""
    _check(out, scale)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / FILE, json.dumps({"scale": scale}).encode())


def _check(out: Path, scale: Scale) -> None:
    """Refuse a scale that is none, and a directory that holds the study at another one."""
    if scale not in EXTENTS:
        raise BadArgument(f"scale={scale!r} must be one of {', '.join(EXTENTS)}")
    found = scale_of(out)
    if found is not None and found != scale:
        raise BadArgument(
            f"{out} holds the study at scale {found!r}; give another --out for {scale!r}"
        )


def scale_of(out: Path) -> Scale | None:
    """The scale of the study in a directory; None if there is none."""
    found = read_json(out / FILE, "Run `targetopt oracles run` again.")
    if found is None:
        return None
    written = found.get("scale") if isinstance(found, dict) else None
    for scale in get_args(Scale):
        if written == scale:
            return cast(Scale, scale)
    raise StoreError(f"{out / FILE} does not name a scale. Run `targetopt oracles run` again.")


def _shared(directory: Path, home: Path) -> Store:
    store = Store(directory)
    store.share(home)
    return store


def _tune(
    entries: list[Entry], out: Path, settings: dict[str, Any], tell: Callable[[str], None]
) -> bool:
    """Try, and extend lists, until each best lies inside; false if that was interrupted."""
    for number in range(1, ROUNDS + 1):
        going = [entry for entry in entries if not entry.settled]
        if not going:
            return True
        plans = [_plans(out, entry, entry.trials()) for entry in going]
        tell(f"Trials, round {number}: {', '.join(entry.task.name for entry in going)}.")
        summaries = run_all([plan for each in plans for plan in each], **settings)
        if any(summary.interrupted for summary in summaries):
            return False
        for entry, own in zip(going, plans, strict=True):
            _go_on(entry, own)
    return True


def _go_on(entry: Entry, plans: Sequence[Plan]) -> None:
    """Judge what was tried, and extend the lists whose best value lies at an end."""
    most = max(entry.budget_of(search.arm.role) for search in entry.searches)
    judge(entry.searches, _courses(entry, plans), entry.budget, most)
    for search in entry.searches:
        if EXTENTS[entry.scale].tried is not None:
            search.settled = True
        elif not search.settled:
            search.go_on()


def _courses(entry: Entry, plans: Sequence[Plan]) -> dict[tuple[str, float], list[Course | None]]:
    """The trials of each arm and value, over the tuning seeds; the default has the value nan."""
    known = {DEFAULT.label: (DEFAULT, math.nan)} | {
        search.arm.with_value(value)["label"]: (search.arm, value)
        for search in entry.searches
        for value in search.values
    }
    found: dict[tuple[str, float], list[Course | None]] = {}
    for plan in plans:
        configs = plan.grid.runs
        ended = {run.manifest["id"]: run for run in plan.store.load({c.id for c in configs})}
        for config in configs:
            arm, value = known[config.method_label]
            run = ended.get(config.id)
            budget = entry.budget_of(arm.role)
            course = None if run is None else Course.of(run.columns, budget)
            found.setdefault((arm.label, value), []).append(course)
    return found
