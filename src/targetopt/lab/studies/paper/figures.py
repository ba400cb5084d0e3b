"""The figures by name, their three scales, and what stands in for data that are not there."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

from targetopt.display import Progress
from targetopt.lab import Experiment, data
from targetopt.lab.spec.experiment import FurtherPanel, Tuning
from targetopt.lab.studies.theory.figures import FIGURES as THEORY
from targetopt.types import BadArgument


@dataclass(frozen=True)
class Scale:
    """How much of a figure is run; ``m`` and the methods are the same at every scale.

    Attributes:
        tuning_epochs: those of the runs by which tuned methods choose their step.
        tried: how many of the values of tuned options are tried; all if None.
        extend: how many values may be added at either end of such a list until its best lies inside.
        options: of the problems, where they differ from the figure's.
    """

    epochs: int
    seeds: int
    batch_size: Sequence[int | str]
    tuning_epochs: int
    tried: int | None = None
    extend: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


SCALES: Mapping[str, Scale] = {
    "smoke": Scale(epochs=2, seeds=1, batch_size=(625,), tuning_epochs=1, tried=2),
    "quick": Scale(
        epochs=20, seeds=3, batch_size=(25, 125, 625, "full"), tuning_epochs=20, extend=2
    ),
    "paper": Scale(
        epochs=500, seeds=3, batch_size=(25, 125, 625, "full"), tuning_epochs=100, extend=6
    ),
}
"""Seconds; minutes; and the paper's own (App. E). Figures whose file has ``scales`` have others."""

CHEAP_FIRST = ("mushrooms", "ijcnn1", "rcv1")
"""Data sets in the order in which their runs are done, so that what is done early can be looked at early."""

THEORY_TITLES = {
    "theory-bounds": "§4: measured distances beside the bounds",
    "theory-counterexample": "Prop. 4.4: the bias of stochastic surrogates, and its cure",
}

NEARER_STAND_INS = {"rcv1": "rcv1-v2-subset"}
"""Real data that resemble a data set more than its synthetic twin does; taken where they lie at hand."""


@dataclass(frozen=True)
class Figure:
    """One figure at one scale, ready to run.

    Attributes:
        name: as in the command line.
        experiment: its grid.
        stand_ins: for each data set that could not be had, what was taken instead.
    """

    name: str
    experiment: Experiment
    stand_ins: dict[str, str]


def names() -> tuple[str, ...]:
    """Every figure that ``targetopt reproduce`` knows.

    >>> names()[0], names()[-1]
    ('fig1-oil', 'theory-counterexample')
    """
    entries = resources.files("targetopt.lab.studies.paper").iterdir()
    supervised = sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml"))
    return (*supervised, *THEORY)


def title(name: str) -> str:
    """What a figure shows, in a line.

    >>> title("figA-svrg")
    'App. E.5: SSO and SVRG, squared loss'
    """
    check(name)
    return THEORY_TITLES[name] if name in THEORY else str(specification(name)["name"])


def check(name: str) -> None:
    """Refuse a name that is none of :func:`names`, listing them."""
    if name in names():
        return
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise BadArgument(
        f"figure={name!r} is unknown.{hint} The figures are: {', '.join(names())}; or all of a group: "
        "'supervised', 'imitation', 'theory', 'all'."
    )


def load(name: str, scale: str, *, twins: bool = False) -> Figure:
    """The grid of a figure with runs at a scale, with stand-ins for data that cannot be had.

    Args:
        name: one of :func:`names`.
        scale: one of :data:`SCALES`.
        twins: whether to take the synthetic twin of every data set, which is generated alike everywhere, even
            where the data could be had.
    """
    check(name)
    if scale not in SCALES:
        raise BadArgument(f"scale={scale!r} must be one of {', '.join(SCALES)}")
    table = specification(name)
    stand_ins = {}
    for problem in table["problems"]:
        for key in ("name", "data"):
            wanted = problem.get(key)
            if wanted not in CHEAP_FIRST:
                continue
            taken = data.find(wanted).stand_in if twins else available(wanted)
            if taken != wanted:
                problem[key] = stand_ins[wanted] = taken
    for method in table["methods"]:
        for_some = method.get("on", {})
        if "name" in for_some:
            for_some["name"] = [stand_ins.get(name, name) for name in for_some["name"]]
    size = Scale(**table["scales"][scale]) if "scales" in table else SCALES[scale]
    for problem in table["problems"]:
        problem |= size.options
    for tune in (method["tune"] for method in table["methods"] if "tune" in method):
        tune |= {key: values[: size.tried] for key, values in tune.items()}
    shown = [f"{scale} scale", *(f"{new} in place of {old}" for old, new in stand_ins.items())]
    experiment = Experiment(
        name=f"{name} · {table['name']} ({'; '.join(shown)})",
        problems=table["problems"],
        methods=table["methods"],
        epochs=size.epochs,
        seeds=size.seeds,
        batch_size=list(size.batch_size),
        tuning=Tuning(epochs=size.tuning_epochs, extend=size.extend),
        panels=[FurtherPanel(**panel) for panel in table.get("panels", [])],
    )
    return Figure(name, experiment, stand_ins)


def rank(problem: str) -> int:
    """The place of a problem, or of what stands in for it, in :data:`CHEAP_FIRST`.

    >>> rank("mushrooms"), rank("rcv1-v2-subset"), rank("something else")
    (0, 2, 3)
    """
    places = [place for place, name in enumerate(CHEAP_FIRST) if name in problem]
    return places[0] if places else len(CHEAP_FIRST)


@lru_cache
def available(name: str) -> str:
    """The data set ``name`` if it is here or can be downloaded, else what stands in for it.

    Only its absence is excused: a file that is there but is something else remains an error.
    """
    dataset = data.find(name)
    try:
        with Progress(name, "bytes") as shown:
            data.load(dataset, progress=shown.show)
    except data.MissingError:
        nearer = NEARER_STAND_INS.get(name)
        if nearer is not None and data.locate(data.find(nearer)) is not None:
            return nearer
        return dataset.stand_in
    return name


def specification(name: str) -> dict[str, Any]:
    """The file of a figure; one that is ``like`` another is that one with other ``options`` of its problems."""
    path = resources.files("targetopt.lab.studies.paper") / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "like" not in table:
        return table
    model = specification(table["like"])
    problems = [{**problem, **table["options"]} for problem in model["problems"]]
    return {**model, "name": table["name"], "problems": problems}
