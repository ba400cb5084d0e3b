"""Which figures a directory makes: curves, a row per target-space rule, and the cost of a level."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from targetopt.bench import multiples
from targetopt.bench.files import explained
from targetopt.bench.lines import TAUS, Results, band, better, cost_to_reach, level
from targetopt.bench.multiples import Cell, Entry, Painter

AXIS_TITLES = {
    "oracle_calls": "oracle calls",
    "inner_steps": "inner steps",
    "epoch": "epochs",
    "wall_time": "wall time (s)",
}
RULE_TITLES = {
    "gradientstep": "gradient step",
    "linesearch": "line search",
    "adagrad": "AdaGrad",
    "adagradnorm": "AdaGrad-Norm",
    "newton": "Newton",
    "mirrordescent": "mirror descent",
    "ftrl": "FTRL",
}


@dataclass(frozen=True)
class Picture:
    """A figure on disk, ``DIR/figures/<name>.png`` and ``.pdf``, and what it shows."""

    name: str
    title: str


def draw_all(results: Results, *, axis: str, tau: float) -> list[Picture]:
    """Write every figure to ``DIR/figures``.

    One a metric, rows problems and columns batch sizes; for the first metric also one a problem with
    a row for each target-space rule (the paper's figure 2), and what reaching a common level costs.
    """
    folder = results.directory / "figures"
    with explained(folder):
        folder.mkdir(exist_ok=True)
    pictures = []
    by_problem = _by_problem(results)
    against = axis_title(axis, tau)
    for metric in results.metrics:
        title = f"{words(metric)} against {against}"
        painter = _curves(results, metric, axis, tau)
        pictures.append(Picture(f"curves-{slug(metric)}", title.capitalize()))
        _save(results, pictures[-1], by_problem, results.problems, painter)
    for metric in results.metrics[:1]:
        painter = _curves(results, metric, axis, tau)
        groups = rules(results)
        for problem, label in enumerate(results.problems) if len(groups) > 1 else ():
            by_rule = _by_rule(results, problem, groups)
            name = f"rules-{slug(metric)}-{problem + 1}-{slug(label)}"
            title = f"{words(metric).capitalize()} on {label}, a row for each target-space rule"
            pictures.append(Picture(name, title))
            _save(results, pictures[-1], by_rule, [rule for rule, _ in groups], painter)
        reachable = [cell for cell in by_problem if level(cell.panel, metric) is not None]
        if reachable:
            title = f"Modelled cost of reaching a common {words(metric)}, against τ"
            pictures.append(Picture(f"cost-{slug(metric)}", title))
            painter = _costs(results, metric)
            _save(results, pictures[-1], reachable, results.problems, painter)
    return pictures


def _by_problem(results: Results) -> list[Cell]:
    """Rows problems, columns batch sizes; four to a row when each problem has a single batch size."""
    if len(results.panels) == len(results.problems):
        return [
            Cell(
                *divmod(k, 4),
                p,
                p.lines,
                f"{results.problems[p.problem]}\n{results.batches[p.batch]}",
            )
            for k, p in enumerate(results.panels)
        ]
    return [Cell(p.problem, p.batch, p, p.lines) for p in results.panels]


def _by_rule(results: Results, problem: int, groups: list[tuple[str, list[int]]]) -> list[Cell]:
    """Rows rules, columns batch sizes; four to a row when the problem has a single batch size."""
    panels = [panel for panel in results.panels if panel.problem == problem]
    cells = []
    for k, (title, members) in enumerate(groups):
        for panel in panels:
            shown = [line for line in panel.lines if line.method in members]
            if len(panels) == 1:
                cells.append(Cell(*divmod(k, 4), panel, shown, title))
            else:
                cells.append(Cell(k, panel.batch, panel, shown))
    return cells


def rules(results: Results) -> list[tuple[str, list[int]]]:
    """Target-space rules, each with the methods shown beside it: its SSO variants, all baselines."""
    names = list(dict.fromkeys(m.rule for m in results.methods if m.rule is not None))
    return [
        (
            f"SSO {RULE_TITLES.get(rule, rule)}",
            [i for i, m in enumerate(results.methods) if m.rule in (None, rule)],
        )
        for rule in names
    ]


def axis_title(axis: str, tau: float) -> str:
    """
    >>> axis_title("cost", 100.0)
    'oracle calls × 100 + inner steps'
    """
    return f"oracle calls × {tau:g} + inner steps" if axis == "cost" else AXIS_TITLES[axis]


def words(metric: str) -> str:
    """
    >>> words("grad_norm")
    'grad norm'
    """
    return metric.replace("_", " ")


def slug(text: str) -> str:
    """A file name from any text.

    >>> slug("Mushrooms <b>, m=1/2"), slug("损失")
    ('mushrooms-b-m-1-2', 'x')
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "x"


def _save(
    results: Results,
    picture: Picture,
    cells: Sequence[Cell],
    rows: Sequence[str],
    paint: Painter,
) -> None:
    shown = sorted({line.method for cell in cells for line in cell.lines})
    lost = {
        line.method
        for cell in cells
        for line in cell.lines
        if any(run.manifest["status"] == "diverged" for run in line.runs)
    }
    entries = [
        Entry(results.methods[i].label + (" †" if i in lost else ""), results.methods[i].style)
        for i in shown
    ]
    note = "† diverged with at least one seed" if lost else ""
    path = results.directory / "figures" / picture.name
    multiples.save(path, cells, rows, results.batches, entries, paint, note)


def _curves(results: Results, metric: str, axis: str, tau: float) -> Painter:
    log = results.log_by_default(metric)

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        ax.set_xscale("log")
        ax.set_yscale("log" if log else "linear")
        starts, ends = [], []
        for line in cell.lines:
            curve = band(line, metric, axis, tau)
            if curve is None:
                continue
            style = results.methods[line.method].style
            low, mid, high = (
                multiples.drawable(v, log) for v in (curve.low, curve.mid, curve.high)
            )
            # The start, 0 calls, has no place on a log axis.
            x = np.where(curve.x > 0, curve.x, np.nan)
            if curve.seeds > 1:
                multiples.fill(ax, x, low, high, style)
            multiples.plot(ax, x, mid, style, line.method)
            starts.append(float(curve.mid[0]))
            seen = curve.mid[np.isfinite(x) & np.isfinite(curve.mid) & np.isfinite(mid)]
            ends += [float(seen.min()), float(seen.max())] if seen.size else []
        if ends:
            highest = max(starts) if better(metric) == "lower" else None
            multiples.limit(ax, min(ends), max(ends), highest, log)
        return axis_title(axis, tau), words(metric)

    return paint


def _costs(results: Results, metric: str) -> Painter:
    sign = "≤" if better(metric) == "lower" else "≥"

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        ax.set_xscale("log")
        ax.set_yscale("log")
        goal = level(cell.panel, metric)
        assert goal is not None  # cells without a level are not drawn
        spent = [cost_to_reach(line, metric, goal, TAUS) for line in cell.lines]
        for line, costs in zip(cell.lines, spent, strict=True):
            if np.isfinite(costs).all() and costs.all():
                style = results.methods[line.method].style
                multiples.plot(ax, TAUS, costs, style, line.method)
        reached = [c for costs in spent for c in costs if np.isfinite(c) and c > 0]
        if reached:
            multiples.limit(ax, min(reached), max(reached), None, True)
        text = f"{words(metric)} {sign} {goal:.3g}"
        ax.text(0.97, 0.04, text, transform=ax.transAxes, ha="right", fontsize=7, color="#444444")
        return "τ, cost of an oracle call", "cost to reach it"

    return paint
