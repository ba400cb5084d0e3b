"""Which figures a directory makes: curves, a row per target-space rule, the cost of a level, profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from targetopt.lab.report import multiples
from targetopt.lab.report.lines import (
    TAUS,
    Line,
    Panel,
    Results,
    band,
    better,
    cost_to_reach,
    level,
)
from targetopt.lab.report.multiples import Entry, Painter, Place
from targetopt.lab.report.palette import rule_title
from targetopt.lab.report.sensitivity import Tried
from targetopt.lab.statistics.profiles import profile
from targetopt.lab.store.files import explained

AXIS_TITLES = {
    "oracle_calls": "oracle calls",
    "inner_steps": "inner steps",
    "epoch": "epochs",
    "wall_time": "wall time (s)",
}

PRICES = (1.0, 10.0, 100.0, 1000.0)
"""Oracle costs τ for which curves are drawn against the modelled cost."""


MOST_PANELS = 250
"""How many panels are drawn unless all are asked for: 10 problems at 5 batch sizes are 50 in each figure of curves."""

FEW_PANELS = 60
"""How many are drawn of a directory that has more than these; the page itself shows everything of any directory."""

IN_ORDER = ("curves-", "cost-", "profile-", "sensitivity-", "rules-", "price-")
"""How the names of figures begin, those that are looked at first before the others.

What else lies in the folder is somebody else's.
"""


@dataclass(frozen=True)
class Picture:
    """A figure on disk, ``DIR/figures/<name>.png`` and ``.pdf``, and what it shows."""

    name: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Cell(Place):
    """A panel of a figure, and the lines it shows."""

    panel: Panel
    lines: Sequence[Line]


@dataclass(frozen=True)
class Sheet:
    """A figure about to be drawn: its cells, the titles of rows and columns, and who paints a cell."""

    picture: Picture
    cells: Sequence[Cell]
    rows: Sequence[str]
    columns: Sequence[str]
    paint: Painter[Cell]


@dataclass(frozen=True)
class Drawn:
    """The figures that were drawn, and those that a directory of very many panels would have as well."""

    pictures: list[Picture]
    left_out: list[Picture]


def draw_all(
    results: Results,
    *,
    axis: str,
    tau: float,
    most: float = MOST_PANELS,
    tried: Sequence[Tried] = (),
    also: Callable[[Figure], None] | None = None,
) -> Drawn:
    """Write figures to ``DIR/figures``, and take away those that an earlier report left there.

    One a metric, rows problems and columns batch sizes, and one a further panel. For the first metric also
    one a problem with a row for each target-space rule (the paper's figure 2), what reaching a
    common level costs, for each batch size the curves against modelled cost for some τ, and, over all
    of them, how often a method is nearly the cheapest.

    Args:
        results: what is drawn.
        axis: the x-axis of the curves.
        tau: the cost of one oracle call in inner steps.
        most: panels in all. Where there are more, the curves of the first metric are drawn, and of the other
            figures, in the order of :data:`IN_ORDER`, those kinds that fit into :data:`FEW_PANELS`.
        tried: what tuned methods were tried with.
        also: gets every figure when it is drawn.
    """
    folder = results.directory / "figures"
    with explained(folder):
        folder.mkdir(exist_ok=True)
    sheets_of_all = (*_sheets(results, axis, tau), *_sensitivity(results, tried))
    every = [sheet for sheet in sheets_of_all if sheet.cells]
    sheets = _fitting(every, most)
    for sheet in sheets:
        _save(results, sheet, also)
    kept = {sheet.picture.name for sheet in sheets}
    for path in folder.iterdir():
        ours = path.stem.startswith(IN_ORDER) and path.suffix in (".png", ".pdf")
        if ours and path.stem not in kept:
            path.unlink()
    left_out = [sheet.picture for sheet in every if sheet.picture.name not in kept]
    return Drawn([sheet.picture for sheet in sheets], left_out)


def _fitting(sheets: Sequence[Sheet], most: float) -> list[Sheet]:
    """All, or the first one and of every kind what fits as a whole."""
    if sum(len(sheet.cells) for sheet in sheets) <= most:
        return list(sheets)
    kept = {sheet.picture.name: len(sheet.cells) for sheet in sheets[:1]}
    for kind in IN_ORDER:
        of_kind = {
            sheet.picture.name: len(sheet.cells)
            for sheet in sheets[1:]
            if sheet.picture.name.startswith(kind)
        }
        if sum(kept.values()) + sum(of_kind.values()) <= min(most, FEW_PANELS):
            kept |= of_kind
    return [sheet for sheet in sheets if sheet.picture.name in kept]


def _sheets(results: Results, axis: str, tau: float) -> Iterator[Sheet]:
    against = axis_title(axis, tau)
    main = next(iter(results.figures.values()))
    for metric in results.metrics:
        title = f"{words(metric)} against {against}".capitalize()
        painter = _curves(results, metric, axis, tau)
        picture = Picture(f"curves-{slug(metric)}", title)
        yield _measured(_by_problem(results, main, picture, painter), metric)
    for metric in results.metrics[:1]:
        painter = _curves(results, metric, axis, tau)
        for panel, members in list(results.figures.items())[1:]:
            picture = Picture(f"curves-{slug(metric)}-{slug(panel)}", f"{panel}: {words(metric)}")
            yield _measured(_by_problem(results, members, picture, painter), metric)
        groups = rules(results)
        for problem, label in enumerate(results.problems) if len(groups) > 1 else ():
            name = f"rules-{slug(metric)}-{problem + 1}-{slug(label)}"
            title = f"{words(metric).capitalize()} on {label}, a row for each target-space rule"
            cells = _by_rule(results, problem, groups)
            titles = [rule for rule, _ in groups]
            sheet = Sheet(Picture(name, title), cells, titles, results.batches, painter)
            yield _measured(sheet, metric)
        yield from _by_cost(results, main, metric)


def _by_cost(results: Results, main: list[int], metric: str) -> Iterator[Sheet]:
    """What reaching a common level costs, and curves against cost, a column for each τ."""
    title = f"Modelled cost of reaching a common {words(metric)}, against τ"
    whole = _by_problem(
        results, main, Picture(f"cost-{slug(metric)}", title), _costs(results, metric)
    )
    whole = _measured(whole, metric)
    reachable = [cell for cell in whole.cells if level(cell.panel, metric) is not None]
    yield replace(whole, cells=reachable)
    painters = [_curves(results, metric, "cost", each) for each in PRICES]

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        return "modelled cost", painters[cell.column](ax, cell)[1]

    for batch, size in enumerate(results.batches):
        panels = [panel for panel in results.panels if panel.batch == batch]
        cells = [
            Cell(row=panel.problem, column=column, panel=panel, lines=_among(panel, main))
            for panel in panels
            for column in range(len(PRICES))
        ]
        picture = Picture(
            f"price-{slug(metric)}-{slug(size)}",
            f"{words(metric).capitalize()} against modelled cost, (oracle calls + ½ values) × τ + inner steps, {size}, "
            "a column for each τ",
        )
        yield _measured(Sheet(picture, cells, results.problems, _prices(), paint), metric)
    yield from _profiles(results, main, metric)


def _profiles(results: Results, main: list[int], metric: str) -> Iterator[Sheet]:
    found = [profile(results, main, metric, price) for price in PRICES]
    drawn = {column: each for column, each in enumerate(found) if each is not None}
    if not drawn:
        return

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        ax.set_xscale("log")
        shown = drawn[cell.column]
        widest = max(float(shown.factors[-1]), 2.0)
        for method, shares in shown.shares.items():
            steps = np.append(shares, shares[-1])
            x = np.repeat(np.append(shown.factors, widest * 1.1), 2)[1:]
            multiples.plot(ax, x, np.repeat(steps, 2)[:-1], results.methods[method].style, method)
        ax.set_xlim(1.0, widest * 1.1)
        ax.set_ylim(-0.03, 1.03)
        return "cost / lowest cost", "share of the runs"

    panels = next(iter(drawn.values())).panels
    title = f"How often a method is nearly the cheapest, over {panels} panels, a column for each τ"
    # A method's line here is all its runs, so that the legend says who diverged anywhere.
    everything = [
        Line(i, [r for _, line in results.drawn() if line.method == i for r in line.ended])
        for i in main
    ]
    cells = [
        Cell(row=0, column=column, panel=results.panels[0], lines=everything) for column in drawn
    ]
    row = f"{panels} panels"
    yield Sheet(Picture(f"profile-{slug(metric)}", title), cells, [row], _prices(), paint)


def _prices() -> list[str]:
    return [f"τ = {price:g}" for price in PRICES]


def _by_problem(
    results: Results, members: list[int], picture: Picture, paint: Painter[Cell]
) -> Sheet:
    """Rows problems, columns batch sizes; four to a row when each problem has a single batch size."""
    if len(results.panels) == len(results.problems):
        cells = [
            Cell(
                row=k // 4,
                column=k % 4,
                panel=p,
                lines=_among(p, members),
                title=f"{results.problems[p.problem]}\n{results.batches[p.batch]}",
            )
            for k, p in enumerate(results.panels)
        ]
    else:
        cells = [
            Cell(row=p.problem, column=p.batch, panel=p, lines=_among(p, members))
            for p in results.panels
        ]
    return Sheet(picture, cells, results.problems, results.batches, paint)


def _measured(sheet: Sheet, metric: str) -> Sheet:
    """The sheet without the cells that nothing would be drawn in: some problems lack an optimum to compare with."""
    cells = [cell for cell in sheet.cells if any(line.with_metric(metric) for line in cell.lines)]
    return replace(sheet, cells=cells)


def _among(panel: Panel, members: list[int]) -> list[Line]:
    return [line for line in panel.lines if line.method in members]


def _by_rule(results: Results, problem: int, groups: list[tuple[str, list[int]]]) -> list[Cell]:
    """Rows rules, columns batch sizes; four to a row when the problem has a single batch size."""
    panels = [panel for panel in results.panels if panel.problem == problem]
    cells = []
    for k, (title, members) in enumerate(groups):
        for panel in panels:
            shown = [line for line in panel.lines if line.method in members]
            if len(panels) == 1:
                cells.append(Cell(row=k // 4, column=k % 4, panel=panel, lines=shown, title=title))
            else:
                cells.append(Cell(row=k, column=panel.batch, panel=panel, lines=shown))
    return cells


def rules(results: Results) -> list[tuple[str, list[int]]]:
    """Target-space rules, each with the methods shown beside it: its SSO variants, all baselines."""
    main = [(i, results.methods[i].rule) for i in next(iter(results.figures.values()))]
    names = dict.fromkeys(rule for _, rule in main if rule is not None)
    return [(rule_title(name), [i for i, rule in main if rule in (None, name)]) for name in names]


def axis_title(axis: str, tau: float) -> str:
    """
    >>> axis_title("cost", 100.0)
    '(oracle calls + ½ values) × 100 + inner steps'
    """
    return (
        f"(oracle calls + ½ values) × {tau:g} + inner steps"
        if axis == "cost"
        else AXIS_TITLES[axis]
    )


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


def legend(results: Results, cells: Sequence[Cell]) -> tuple[list[Entry], str]:
    """The methods that are shown, and what the mark means that some of them have."""
    shown = sorted({line.method for cell in cells for line in cell.lines})
    marks = {"diverged": ("†", "diverged"), "timeout": ("‡", "was cut short by the time limit")}
    marked = {
        (line.method, status)
        for cell in cells
        for line in cell.lines
        for status in {run.manifest["status"] for run in line.runs} & marks.keys()
    }
    entries = []
    for i in shown:
        signs = [f" {mark}" for status, (mark, _) in marks.items() if (i, status) in marked]
        entries.append(Entry(results.methods[i].label + "".join(signs), results.methods[i].style))
    met = {status for _, status in marked}
    notes = [f"{mark} {what}" for status, (mark, what) in marks.items() if status in met]
    return entries, "; ".join(notes) + " with at least one seed" if notes else ""


def _save(results: Results, sheet: Sheet, also: Callable[[Figure], None] | None) -> None:
    entries, note = legend(results, sheet.cells)
    path = results.directory / "figures" / sheet.picture.name
    grid = (sheet.cells, sheet.rows, sheet.columns)
    multiples.save(path, *grid, entries, sheet.paint, note, also=also)


def _sensitivity(results: Results, tried: Sequence[Tried]) -> Iterator[Sheet]:
    """How the final value depends on each tuned option: a line for each method, a ring at what was chosen."""
    for option in dict.fromkeys(each.option for each in tried):
        of_option = [each for each in tried if each.option == option]
        metric = of_option[0].metric

        def paint(ax: Any, cell: Cell, of_option: list[Tried] = of_option) -> tuple[str, str]:
            ax.set_xscale("log")
            ax.set_yscale("log" if results.log_by_default(of_option[0].metric) else "linear")
            for each in of_option:
                if results.panels[each.panel] is cell.panel:
                    look = results.methods[each.method].style
                    x, y = np.array(each.values), np.array(each.finals)
                    multiples.plot(ax, x, y, look, each.method)
                    chosen = each.values.index(each.chosen)
                    multiples.ring(ax, x[chosen], y[chosen], look)
            return of_option[0].option, f"final {words(of_option[0].metric)}"

        shown = {(each.panel, each.method) for each in of_option}
        members = sorted({each.method for each in of_option})
        title = f"Final {words(metric)} of trials against {option}; the value that was chosen has a ring"
        sheet = _by_problem(results, members, Picture(f"sensitivity-{slug(option)}", title), paint)
        numbers = {id(panel): place for place, panel in enumerate(results.panels)}
        kept = [
            replace(
                cell, lines=[x for x in cell.lines if (numbers[id(cell.panel)], x.method) in shown]
            )
            for cell in sheet.cells
        ]
        yield replace(sheet, cells=[cell for cell in kept if cell.lines])


def _curves(results: Results, metric: str, axis: str, tau: float) -> Painter[Cell]:
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
            middle = curve.middle(results.middle)
            low, mid, high = (multiples.drawable(v, log) for v in (curve.low, middle, curve.high))
            # The start, 0 calls, has no place on a log axis.
            x = np.where(curve.x > 0, curve.x, np.nan)
            if curve.seeds > 1:
                multiples.fill(ax, x, low, high, style)
            multiples.plot(ax, x, mid, style, line.method)
            starts.append(float(middle[0]))
            seen = middle[np.isfinite(x) & np.isfinite(middle) & np.isfinite(mid)]
            ends += [float(seen.min()), float(seen.max())] if seen.size else []
        if ends:
            highest = max(starts) if better(metric) == "lower" else None
            multiples.limit(ax, min(ends), max(ends), highest, log)
        return axis_title(axis, tau), words(metric)

    return paint


def _costs(results: Results, metric: str) -> Painter[Cell]:
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
