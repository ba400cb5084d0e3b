"""Tables over seeds: final values with intervals, ranks, and tidy CSV files of everything drawn."""

from __future__ import annotations

import csv
import io
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from targetopt.lab.report.lines import (
    TAUS,
    Line,
    Panel,
    Results,
    band,
    better,
    cost_to_reach,
    finals,
    level,
)
from targetopt.lab.statistics import aggregates as statistics
from targetopt.lab.statistics.pairwise import Comparison
from targetopt.lab.statistics.profiles import profile
from targetopt.lab.store.files import explained, write_whole


@dataclass(frozen=True)
class Final:
    """The final value of one metric of one line: interquartile mean and median over seeds."""

    iqm: float
    low: float
    high: float
    median: float
    rank: float
    runs: int
    diverged: int
    timeout: int
    failed: int


@dataclass(frozen=True)
class Standing:
    """One method over all panels, on one metric."""

    method: int
    rank: float
    wins: int
    panels: int
    statuses: dict[str, int]


def panel_finals(panel: Panel, metric: str) -> dict[int, Final]:
    """Final values of every method of a panel that has the metric, with ranks (ties share one)."""
    direction = better(metric)
    lines = [line for line in panel.lines if line.with_metric(metric)]
    if not lines:
        return {}
    ends = [finals(line, metric) for line in lines]
    estimates = _bootstrapped(ends, direction)
    sign = 1.0 if direction == "lower" else -1.0
    ranks = rankdata([sign * float(e.value) for e in estimates])
    found = {}
    for line, end, estimate, rank in zip(lines, ends, estimates, ranks, strict=True):
        statuses = Counter(run.manifest["status"] for run in line.ended)
        worst = statistics.worst(direction)
        middle = statistics.quantile(np.where(np.isnan(end), worst, end), 0.5)
        found[line.method] = Final(
            float(estimate.value),
            float(estimate.low),
            float(estimate.high),
            float(middle),
            float(rank),
            estimate.runs,
            statuses["diverged"],
            statuses["timeout"],
            statuses["failed"],
        )
    return found


def _bootstrapped(
    ends: Sequence[statistics.Array], direction: statistics.Better
) -> list[statistics.Estimate]:
    """The interquartile mean of each of some samples, those of one size together: they share their draws anyway."""
    found: dict[int, statistics.Estimate] = {}
    for size in {end.size for end in ends}:
        places = [place for place, end in enumerate(ends) if end.size == size]
        stacked = np.stack([ends[place] for place in places])[..., None]
        whole = statistics.bootstrap(stacked, better=direction)
        parts = zip(whole.value, whole.low, whole.high, strict=True)
        for place, part in zip(places, parts, strict=True):
            found[place] = statistics.Estimate(*part, whole.confidence, whole.runs)
    return [found[place] for place in range(len(ends))]


def standings(results: Results, tables: Sequence[dict[int, Final]]) -> list[Standing]:
    """Methods by their mean rank over the panels they were run on, best first."""
    rows = []
    for index in range(len(results.methods)):
        ranks = [table[index].rank for table in tables if index in table]
        best = [min(final.rank for final in table.values()) for table in tables if index in table]
        wins = sum(rank == lowest for rank, lowest in zip(ranks, best, strict=True))
        statuses = Counter(
            run.manifest["status"]
            for _, line in results.drawn()
            if line.method == index
            for run in line.ended
        )
        mean = float(np.mean(ranks)) if ranks else np.inf
        rows.append(Standing(index, mean, wins, len(ranks), dict(statuses)))
    return sorted(rows, key=lambda row: row.rank)


def write_tables(
    results: Results,
    tables: dict[str, list[dict[int, Final]]],
    pairs: Sequence[Comparison],
    *,
    axis: str,
    tau: float,
) -> list[str]:
    """Write ``DIR/tables``: ``runs``, ``summary``, ``pairwise``, ``curves``, ``cost`` and ``profile``, all ``.csv``."""
    folder = results.directory / "tables"
    with explained(folder):
        folder.mkdir(exist_ok=True)
    where = ("problem", "batch", "method")

    def key(panel: Panel, line: Line) -> tuple[str, str, str]:
        return (
            results.problems[panel.problem],
            results.batches[panel.batch],
            results.methods[line.method].label,
        )

    def runs() -> Iterable[Sequence[object]]:
        for panel, line in results.drawn():
            for run in line.ended:
                entry = run.manifest
                counts = entry.get("counts", {})
                head = (entry["id"], *key(panel, line), entry["seed"], entry["status"])
                costs = (
                    counts.get("oracle_calls"),
                    counts.get("inner_steps"),
                    entry.get("duration"),
                )
                for metric in run.metrics:
                    values = run.columns[metric]
                    yield (*head, metric, values[-1] if len(values) else None, *costs)

    def summary() -> Iterable[Sequence[object]]:
        for metric, per_panel in tables.items():
            for panel, table in zip(results.panels, per_panel, strict=True):
                for line in panel.lines:
                    if line.method in table:
                        f = table[line.method]
                        numbers = (f.iqm, f.low, f.high, f.median, f.rank)
                        counts = (f.runs, f.diverged, f.timeout, f.failed)
                        yield (*key(panel, line), metric, *numbers, *counts)

    def curves() -> Iterable[Sequence[object]]:
        for metric in results.metrics:
            for panel, line in results.drawn():
                curve = band(line, metric, axis, tau)
                if curve is not None:
                    columns = (curve.x, curve.median, curve.low, curve.high, curve.mean)
                    head = (*key(panel, line), metric, axis)
                    for point in zip(*(column.tolist() for column in columns), strict=True):
                        yield (*head, *point, curve.seeds)

    def costs() -> Iterable[Sequence[object]]:
        for metric in results.metrics[:1]:
            for panel in results.panels:
                goal = level(panel, metric)
                if goal is None:
                    continue
                for line in panel.lines:
                    costs = cost_to_reach(line, metric, goal, TAUS)
                    for t, cost in zip(TAUS.tolist(), costs.tolist(), strict=True):
                        yield (*key(panel, line), metric, goal, t, cost)

    def profiles() -> Iterable[Sequence[object]]:
        main = next(iter(results.figures.values()))
        for metric, t in itertools.product(results.metrics[:1], TAUS[::10]):
            found = profile(results, main, metric, t)
            if found is not None:
                for method, shares in found.shares.items():
                    label = results.methods[method].label
                    for factor, share in zip(found.factors, shares, strict=True):
                        yield label, metric, t, factor, share, found.panels

    def compared() -> Iterable[Sequence[object]]:
        labels = [method.label for method in results.methods]
        for each in pairs:
            numbers = (each.probability, each.low, each.high, each.panels)
            yield (labels[each.row], labels[each.column], results.metrics[0], *numbers)

    spent = ("oracle_calls", "inner_steps", "duration")
    _csv(folder / "runs.csv", ("id", *where, "seed", "status", "metric", "final", *spent), runs())
    aggregated = ("iqm", "low", "high", "median", "rank", "runs", "diverged", "timeout", "failed")
    _csv(folder / "summary.csv", (*where, "metric", *aggregated), summary())
    beats = ("method", "other", "metric", "probability", "low", "high", "panels")
    _csv(folder / "pairwise.csv", beats, compared())
    drawn = ("median", "quartile_low", "quartile_high", "mean", "seeds")
    _csv(folder / "curves.csv", (*where, "metric", "axis", "x", *drawn), curves())
    _csv(folder / "cost.csv", (*where, "metric", "level", "tau", "cost"), costs())
    averaged = ("method", "metric", "tau", "factor", "share", "panels")
    _csv(folder / "profile.csv", averaged, profiles())
    return ["runs.csv", "summary.csv", "pairwise.csv", "curves.csv", "cost.csv", "profile.csv"]


def _csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_whole(path, text.getvalue().encode())
