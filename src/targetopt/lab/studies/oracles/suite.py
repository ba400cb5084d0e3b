"""The problems of the study, and how much of it is run at each scale."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from targetopt.lab.problems.base import BatchSize
from targetopt.lab.studies.oracles.arms import (
    ABLATIONS,
    DEFAULT,
    RIVALS,
    RULES,
    TRICKS_FOR_LABELS,
    Arm,
)
from targetopt.types import BadArgument

Scale = Literal["smoke", "quick", "full"]
"""A rehearsal, a study in half an hour, and larger problems with every arm, in sittings."""


@dataclass(frozen=True)
class Extent:
    """How much is run at a scale.

    Attributes:
        seeds: how many are shown.
        tuning_seeds: how many choose settings; none of them is shown.
        tried: values tried of each setting; all, and more until the best lies inside, if None.
        roles: which arms take part.
        price: what a call is taken to cost in inner steps, by which SSO's default chooses m.
        hurried: whether slow arms are left out.
        fewer: how many of the seeds other rules and ablations of SSO are shown with; all if None.
        patience: rivals may ask so many times as often as SSO, which costs little because they compute little
            besides, and says how long they take to get where SSO was within its budget.
    """

    seeds: int
    tuning_seeds: int
    tried: int | None
    roles: frozenset[str]
    price: float = 100.0
    hurried: bool = False
    fewer: int | None = None
    patience: int = 1

    def shown(self, role: str) -> range:
        """The seeds that arms of a role are shown with."""
        few = self.fewer is not None and role in ("rule", "ablation")
        return range(self.fewer if few and self.fewer is not None else self.seeds)

    def times(self, role: str) -> int:
        """How many times the budget of the default arms of a role have."""
        return self.patience if role == "rival" else 1


EVERYBODY = frozenset({"default", "rule", "ablation", "rival", "trick"})
EXTENTS: Mapping[str, Extent] = {
    "smoke": Extent(seeds=1, tuning_seeds=1, tried=2, roles=EVERYBODY - {"ablation"}),
    "quick": Extent(10, 1, None, EVERYBODY, hurried=True, fewer=3, patience=3),
    "full": Extent(10, 1, None, EVERYBODY, fewer=5, patience=3),
}
FIRST_TUNING_SEED = 1000


@dataclass(frozen=True)
class Task:
    """A problem of the study.

    Attributes:
        name: what is typed, and its directory.
        title: what tables and figures call it.
        oracle: in a few words, what a call of the oracle is.
        problem: its name and options as specifications have them; its ``size`` is the scale.
        calls: the budget of every run, in calls, at each scale.
        batch_size: examples in a call; all of them unless said.
        tricks: what its field does, beside the arms that everybody has.
    """

    name: str
    title: str
    oracle: str
    problem: Mapping[str, Any]
    calls: Mapping[str, int]
    batch_size: Mapping[str, BatchSize] | None = None
    tricks: Sequence[Arm] = field(default_factory=tuple)

    def arms(self, scale: str, reveals: frozenset[str]) -> list[Arm]:
        """Everybody who takes part at a scale, the default first."""
        everybody = (DEFAULT, *RIVALS, *RULES, *TRICKS_FOR_LABELS, *self.tricks, *ABLATIONS)
        extent = EXTENTS[scale]
        return [
            arm
            for arm in everybody
            if arm.role in extent.roles
            and arm.needs <= reveals
            and not (extent.hurried and arm.slow)
        ]

    def table(self, scale: str, times: int = 1) -> dict[str, Any]:
        """The problem as a specification has it, with so many times the budget."""
        sized = {**self.problem, "size": scale, "epochs": times * self.calls[scale]}
        if self.batch_size is not None:
            sized["batch_size"] = self.batch_size[scale]
        return sized


def calls(smoke: int, quick: int, full: int) -> dict[str, int]:
    """A budget for each scale."""
    return {"smoke": smoke, "quick": quick, "full": full}


TASKS: dict[str, Task] = {}
"""The suite by name, in the order of its tables."""


def add(task: Task) -> Task:
    """Let the study have one more problem."""
    if TASKS.setdefault(task.name, task) is not task:
        raise BadArgument(f"task={task.name!r} is in the suite already; choose another name")
    return task


def tasks(wanted: Sequence[str] = ()) -> list[Task]:
    """Those that are named, or all of them.

    >>> tasks(["spo"])
    Traceback (most recent call last):
    targetopt.errors.BadArgument: task='spo' is not in the suite. ...
    """
    import targetopt.lab.studies.oracles.tasks  # noqa: F401 - its tasks are added

    for name in wanted:
        if name not in TASKS:
            near = difflib.get_close_matches(name, TASKS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise BadArgument(
                f"task={name!r} is not in the suite.{hint} It has {', '.join(TASKS)}."
            )
    return [task for task in TASKS.values() if not wanted or task.name in wanted]
