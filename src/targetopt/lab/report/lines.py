"""The runs of a directory as a reader sees them: panels (problem × batch size) of lines (methods).

A *line* is one method on one panel, over its seeds. Grouping is done here, once, for the tables, the figures
and the page alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.report import palette
from targetopt.lab.spec.panels import MAIN
from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.statistics.aggregates import Better
from targetopt.lab.statistics.alignment import align
from targetopt.lab.store.directory import Run, Store, modelled_cost, priced_calls
from targetopt.types import TargetoptError

Array = NDArray[np.float64]

X_AXES = ("oracle_calls", "inner_steps", "epoch", "wall_time", "cost")
"""What a curve can be drawn against; ``cost`` is (oracle_calls + ½ value_calls) · τ + inner_steps."""

Middle = Literal["median", "mean"]
MIDDLES: tuple[Middle, ...] = get_args(Middle)
"""What a curve may be over seeds. The paper draws means; one lost seed makes a mean infinite, and a median not."""

TAUS = np.logspace(0, 4, 41)
"""Oracle costs at which the cost of reaching a level is told."""

_HIGHER = frozenset(
    {"accuracy", "auc", "f1", "iou", "likelihood", "margin", "precision", "r2", "recall"}
    | {"return", "returns", "reward", "rewards", "score", "scores", "success"}
)


class ReportError(TargetoptError, ValueError):
    """There is nothing to report on, or the request does not fit what was run."""


@dataclass(frozen=True)
class LegendEntry:
    """A method as figures show it; ``panels`` are those it is drawn in."""

    label: str
    options: Mapping[str, Any]
    style: palette.Style
    panels: tuple[str, ...] = (MAIN,)

    @property
    def rule(self) -> str | None:
        return palette.rule_of(self.options)


@dataclass(frozen=True)
class Line:
    """One method on one panel: ``runs`` are drawn; ``ended`` has those that failed, too."""

    method: int
    ended: list[Run] = field(default_factory=list)
    bands: dict[tuple[str, str, float], Band | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The curves that were computed already; tables and figures want the same ones."""
    reached: dict[tuple[str, float], Array] = field(default_factory=dict, repr=False, compare=False)
    """What :func:`spent_until` has found already; tables, profiles and the page want the same."""

    @cached_property
    def runs(self) -> list[Run]:
        """Runs with a curve: a crash says nothing about the method, everything else does."""
        return [
            r for r in self.ended if r.manifest["status"] != "failed" and len(r.columns["step"])
        ]

    def with_metric(self, metric: str) -> list[Run]:
        return [run for run in self.runs if metric in run.columns]


@dataclass(frozen=True)
class Panel:
    problem: int
    batch: int
    title: str
    lines: list[Line]
    levels: dict[str, float | None] = field(default_factory=dict, repr=False, compare=False)
    """What :func:`level` has found already."""


@dataclass(frozen=True)
class Results:
    """Everything the report shows, in the order of the specification."""

    directory: Path
    runs: list[Run]
    pending: int
    superseded: int
    methods: list[LegendEntry]
    problems: list[str]
    batches: list[str]
    panels: list[Panel]
    middle: Middle = "median"

    @cached_property
    def metrics(self) -> list[str]:
        """Metrics with at least one finite value, the loss first."""
        found = dict.fromkeys(
            name
            for panel in self.panels
            for line in panel.lines
            for run in line.runs
            for name in run.metrics
            if np.isfinite(run.columns[name]).any()
        )
        return sorted(found, key=lambda name: name != "loss")

    @cached_property
    def figures(self) -> dict[str, list[int]]:
        """The methods of every figure, the main one first."""
        titles = dict.fromkeys([MAIN, *(title for m in self.methods for title in m.panels)])
        found = {
            title: [i for i, method in enumerate(self.methods) if title in method.panels]
            for title in titles
        }
        return {title: members for title, members in found.items() if members}

    def drawn(self) -> Iterable[tuple[Panel, Line]]:
        return ((panel, line) for panel in self.panels for line in panel.lines)

    def log_by_default(self, metric: str) -> bool:
        """Losses that fall by decades are read on a log axis; accuracies and returns are not."""
        if better(metric) == "higher":
            return False
        values = [
            run.columns[metric] for _, line in self.drawn() for run in line.with_metric(metric)
        ]
        finite = np.concatenate([v[np.isfinite(v)] for v in values])
        positive = finite[finite > 0]
        return positive.size > 0.9 * finite.size and bool(positive.max() > 3 * positive.min())


@dataclass(frozen=True)
class Band:
    """Median, mean and quartiles over seeds on ``x``; worst possible (±inf) where seeds diverged."""

    x: Array
    low: Array
    median: Array
    high: Array
    mean: Array
    seeds: int

    def middle(self, which: Middle) -> Array:
        """The curve itself, which the quartiles go with: one of :data:`MIDDLES`."""
        return self.mean if which == "mean" else self.median


def better(metric: str) -> Better:
    """Whether a metric is to be minimised, read off its name.

    >>> better("loss"), better("test_accuracy"), better("return")
    ('lower', 'higher', 'higher')
    """
    return "higher" if _HIGHER & set(metric.lower().split("_")) else "lower"


def gather(directory: str | Path) -> Results:
    """Read the ended runs of a directory and group them."""
    path = Path(directory)
    if not path.is_dir():
        raise ReportError(
            f"{path} is not a directory. Give the directory that `targetopt run SPEC.toml` wrote to."
        )
    store = Store(path)
    runs = store.shown()
    plan = store.plan()
    if not runs:
        raise ReportError(
            f"{path} holds no ended run (no runs/*.json), so there is nothing to report"
            + (
                f"; {len(plan)} are planned. Wait, or run the specification again."
                if plan
                else ". Fill it with `targetopt run SPEC.toml`."
            )
        )
    ended = set(store.ended())
    planned = {entry["id"] for entry in plan}
    # A home that is shared has runs of other specifications, too.
    superseded = len(ended - planned) if plan and store.home == store.directory else 0
    return group(path, runs, pending=len(planned - ended), superseded=superseded)


def group(directory: Path, runs: list[Run], *, pending: int = 0, superseded: int = 0) -> Results:
    """Runs as panels of lines; methods, problems and lines in the order of their first run."""
    method_of, methods = _named([run.manifest["method"] for run in runs])
    problem_of, problems = _named([run.manifest["problem"] for run in runs])
    sizes = sorted({r.manifest["batch_size"] for r in runs}, key=lambda b: (b == "full", b))
    batches = [batch_title(size) for size in sizes]
    cells: dict[tuple[int, int], dict[int, Line]] = {}
    for run, method, problem in zip(runs, method_of, problem_of, strict=True):
        cell = cells.setdefault((problem, sizes.index(run.manifest["batch_size"])), {})
        cell.setdefault(method, Line(method)).ended.append(run)
    options = [
        next(r.manifest["method"] for r, m in zip(runs, method_of, strict=True) if m == i)
        for i in range(len(methods))
    ]
    looks = palette.styles(options)
    panels: list[dict[str, None]] = [{} for _ in methods]
    for run, method in zip(runs, method_of, strict=True):
        panels[method].update(dict.fromkeys(run.manifest.get("panels", [MAIN])))
    return Results(
        directory=directory,
        runs=runs,
        pending=pending,
        superseded=superseded,
        methods=[
            LegendEntry(label, o, look, tuple(shown))
            for label, o, look, shown in zip(methods, options, looks, panels, strict=True)
        ],
        problems=problems,
        batches=batches,
        panels=[
            Panel(
                problem,
                batch,
                f"{problems[problem]}, {batches[batch]}",
                [lines[m] for m in sorted(lines)],
            )
            for (problem, batch), lines in sorted(cells.items())
        ],
    )


def batch_title(size: int | str) -> str:
    """What panels call a batch size.

    >>> batch_title(25), batch_title("full")
    ('batch 25', 'full batch')
    """
    return "full batch" if size == "full" else f"batch {size}"


def _named(entries: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """Number the distinct entries by first appearance, and give each a label no other has.

    Entries with one label but different options are different things; the label then says the difference.
    """
    keys = [json.dumps(entry, sort_keys=True, default=str) for entry in entries]
    distinct = dict(zip(keys, entries, strict=True))
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    kinds = [distinct[key] for key in number]
    plain = [str(entry.get("label") or entry.get("name") or "unnamed") for entry in kinds]
    labels = []
    for entry, label in zip(kinds, plain, strict=True):
        twins = [other for other, name in zip(kinds, plain, strict=True) if name == label]
        varying = [
            k
            for k in dict.fromkeys(k for t in twins for k in t)
            if len({json.dumps(t.get(k), default=str) for t in twins}) > 1
        ]
        detail = ", ".join(f"{key}={_short(entry.get(key))}" for key in varying)
        labels.append(f"{label} ({detail})" if detail else label)
    return [number[key] for key in keys], labels


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(_short(part) for part in value.values())
    return f"{value:g}" if isinstance(value, float) else str(value)


def positions(run: Run, axis: str, tau: float) -> Array:
    """x of every record of a run on one of :data:`X_AXES`."""
    if axis == "cost":
        return modelled_cost(run.columns, tau)
    return np.asarray(run.columns[axis], dtype=float)


def readings(run: Run, metric: str) -> Array:
    """The metric with nan for anything infinite, which the statistics count as worst.

    A metric that costs much (a return) is not measured at every record, and nan stands in the file; it is
    worth its last measurement there.
    """
    values = np.asarray(run.columns[metric], dtype=float)
    if np.isfinite(values).all():
        return values
    measured = np.where(np.isnan(values), 0, np.arange(values.size))
    values = values[np.maximum.accumulate(measured)]
    return np.where(np.isfinite(values), values, np.nan)


def band(line: Line, metric: str, axis: str, tau: float) -> Band | None:
    """The curves of a line with their quartiles; ``None`` if no run of it has the metric."""
    asked = (metric, axis, tau if axis == "cost" else 0.0)
    if asked not in line.bands:
        line.bands[asked] = _band(line, metric, axis, tau)
    return line.bands[asked]


def _band(line: Line, metric: str, axis: str, tau: float) -> Band | None:
    runs = line.with_metric(metric)
    if not runs:
        return None
    grid, values = align(
        [positions(run, axis, tau) for run in runs],
        [readings(run, metric) for run in runs],
        diverged=[run.manifest["status"] == "diverged" for run in runs],
        better=better(metric),
    )
    low, median, high = (statistics.quantile(values, q) for q in (0.25, 0.5, 0.75))
    return Band(grid, low, median, high, values.mean(axis=-1), len(runs))


def finals(line: Line, metric: str) -> Array:
    """Last recorded value of each run; nan, the worst there is, where the run diverged."""
    return np.array(
        [
            np.nan if run.manifest["status"] == "diverged" else readings(run, metric)[-1]
            for run in line.with_metric(metric)
        ]
    )


def level(panel: Panel, metric: str) -> float | None:
    """A level about half of the panel's methods reach: the median over methods of their median final value."""
    if metric not in panel.levels:
        panel.levels[metric] = _level(panel, metric)
    return panel.levels[metric]


def _level(panel: Panel, metric: str) -> float | None:
    worst = np.inf if better(metric) == "lower" else -np.inf
    ends = [finals(line, metric) for line in panel.lines]
    middles = [
        float(statistics.quantile(np.where(np.isnan(e), worst, e), 0.5)) for e in ends if e.size
    ]
    if not middles:
        return None
    # The upper middle (lower for "higher") of an even number: an actual method's value, reached by half.
    found = sorted(middles, reverse=worst < 0)[len(middles) // 2]
    return found if np.isfinite(found) else None


def first_reached(run: Run, metric: str, goal: float) -> tuple[float, float]:
    """Oracle calls and inner steps spent when the metric first reached ``goal``; inf if it never did.

    A value without its gradient counts as half an oracle call, as everywhere in the modelled cost.
    """
    values = readings(run, metric)
    reached = np.flatnonzero(values <= goal if better(metric) == "lower" else values >= goal)
    if not reached.size:
        return np.inf, np.inf
    first = reached[0]
    return float(priced_calls(run.columns)[first]), float(run.columns["inner_steps"][first])


def spent_until(line: Line, metric: str, goal: float) -> Array:
    """What :func:`first_reached` says of each run of a line that has the metric, (runs, 2)."""
    if (metric, goal) not in line.reached:
        pairs = [first_reached(run, metric, goal) for run in line.with_metric(metric)]
        line.reached[metric, goal] = np.array(pairs).reshape(-1, 2)
    return line.reached[metric, goal]


def cost_to_reach(line: Line, metric: str, goal: float, taus: Array) -> Array:
    """Median over seeds of the modelled cost of first reaching ``goal``, for every τ."""
    spent = spent_until(line, metric, goal)
    if not spent.size:
        return np.full(taus.shape, np.inf)
    return statistics.quantile(taus[:, None] * spent[:, 0] + spent[:, 1], 0.5)
