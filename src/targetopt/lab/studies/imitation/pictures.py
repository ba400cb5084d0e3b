"""The imitation figures as the paper lays them out: against interactions, with the best that can be reached.

The report has every metric of every run; these are the pictures to be put beside the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.report import multiples
from targetopt.lab.report.lines import Array, Panel, Results, band, better, gather
from targetopt.lab.report.plots import Cell, Picture, legend, slug
from targetopt.lab.spec.panels import MAIN
from targetopt.lab.studies.imitation.references import References
from targetopt.lab.studies.paper.runtimes import step_time

HIGHEST = 1e100
"""Medians above it are of diverged runs."""

TITLES = {
    "loss": "policy loss",
    "held_out_loss": "loss, held-out states",
    "mean_return": "return",
    "linear": "linear",
    "mlp": "MLP",
    "torch": "torch loop",
    "auto": "batched simulators",
}


def draw(
    directory: Path,
    figure: str,
    tell: Callable[[str], None] = lambda text: None,
    *,
    further: bool = True,
) -> list[Picture]:
    """Write the pictures of an imitation figure to ``directory/figures``; ``tell`` is told of long work.

    Without ``further`` those of the figure's own methods alone, which are the paper's.
    """
    results = gather(directory)
    titles = [title for title in results.figures if further or title == MAIN]
    folder = directory / "figures"
    folder.mkdir(exist_ok=True)
    if figure == "fig3-runtime":
        return [picture for title in titles for picture in _runtimes(results, folder, title)]
    references = References(directory)
    references.complete(tell)
    return [
        _curves(results, folder, metrics, title, references)
        for title in titles
        for metrics in (("loss", "held_out_loss"), ("mean_return",))
    ]


def _problem(panel: Panel) -> Mapping[str, Any]:
    """The options of a panel's problem."""
    options: Mapping[str, Any] = panel.lines[0].ended[0].manifest["problem"]
    return options


def _curves(
    results: Results,
    folder: Path,
    metrics: Sequence[str],
    title: str,
    references: References,
) -> Picture:
    """Rows policies and metrics, columns environments and who drives."""
    members = results.figures[title]
    rows = list(dict.fromkeys((_problem(p)["policy"], m) for p in results.panels for m in metrics))
    columns = list(dict.fromkeys(_column(panel) for panel in results.panels))
    cells = [
        Cell(
            row=rows.index((_problem(panel)["policy"], metric)),
            column=columns.index(_column(panel)),
            panel=panel,
            lines=[line for line in panel.lines if line.method in members],
        )
        for panel in results.panels
        for metric in metrics
    ]

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        metric = rows[cell.row][1]
        _paint(ax, cell, metric, results, references)
        return "interactions (thousands)", TITLES[metric]

    name = f"oil-{slug(metrics[0].removeprefix('mean_'))}" + (
        "" if title == MAIN else f"-{slug(title)}"
    )
    entries, lost = legend(results, cells)
    note = "dotted: the best that the policy class reaches, or the expert's return"
    multiples.save(
        folder / name,
        cells,
        [TITLES[policy] for policy, _ in rows],
        columns,
        entries,
        paint,
        f"{lost}; {note}" if lost else note,
    )
    shown = " and ".join(TITLES[metric] for metric in metrics)
    heading = "" if title == MAIN else f"{title}: "
    return Picture(name, f"{heading}{shown} against interactions")


def _column(panel: Panel) -> str:
    options = _problem(panel)
    kept = ", all states" if options.get("data") == "all" else ""
    return f"{options['environment'].partition('-')[0]}, {options['behaviour']}{kept}"


def _paint(ax: Any, cell: Cell, metric: str, results: Results, references: References) -> None:
    log = better(metric) == "lower"
    ax.set_yscale("log" if log else "linear")
    starts, ends = [], []
    for line in cell.lines:
        curve = band(line, metric, "oracle_calls", 1.0)
        if curve is None:
            continue
        style = results.methods[line.method].style
        # a return is measured now and then; lines join the measurements
        measured = [r.columns["oracle_calls"][~np.isnan(r.columns[metric])] for r in line.runs]
        kept = np.isin(curve.x, np.concatenate(measured))
        low, mid, high = (
            multiples.drawable(v[kept], log) for v in (curve.low, curve.median, curve.high)
        )
        x = curve.x[kept] * int(line.runs[0].manifest["batch_size"]) / 1000
        if curve.seeds > 1:
            multiples.fill(ax, x, low, high, style)
        multiples.plot(ax, x, mid, style, line.method)
        starts.append(float(curve.median[0]))
        ends += mid[np.isfinite(mid) & (np.abs(mid) < HIGHEST)].tolist()
    run = next((run for line in cell.lines for run in line.runs), None)
    best = None if run is None else references.of(run, metric)
    if best is not None:
        ax.axhline(best, color="#777777", linestyle=":", linewidth=1.0)
        ends.append(best)
    if ends:
        # online, losses on the expert's states may well rise before they fall
        multiples.limit(ax, min(ends), max(ends), 5 * max(starts) if log else None, log)


def _runtimes(results: Results, folder: Path, title: str) -> list[Picture]:
    """Bars: CPU time of a step over that of an SGD step; rows gatherers, columns states per step.

    No picture where no run of SGD has ended well.
    """
    members = results.figures[title]
    gatherers = list(dict.fromkeys(_problem(panel)["gatherer"] for panel in results.panels))
    rows = [TITLES[gatherer] for gatherer in gatherers]
    cells = [
        Cell(
            row=gatherers.index(_problem(panel)["gatherer"]),
            column=panel.batch,
            panel=panel,
            lines=[line for line in panel.lines if line.method in members],
        )
        for panel in results.panels
    ]
    ratios = {id(cell): _beside_sgd(results, cell) for cell in cells}
    cells = [cell for cell in cells if ratios[id(cell)]]  # the others lack SGD to compare with
    if not cells:
        return []

    def paint(ax: Any, cell: Cell) -> tuple[str, str]:
        found = ratios[id(cell)]
        highest = max(float(ratio.max()) for ratio in found.values())
        ax.set_yscale("log")
        for place, (method, ratio) in enumerate(found.items()):
            value = float(np.median(ratio))
            ax.bar(place, value, color=results.methods[method].style.light, width=0.8)
            ax.vlines(place, ratio.min(), ratio.max(), color="#888888", linewidth=0.8)
            ax.text(place, ratio.max() * 1.1, f"{value:.2g}", ha="center", fontsize=5)
        ax.set_ylim(0.5, 2 * highest)
        multiples.log_ticks(ax.yaxis, 0.5, 2 * highest)
        ax.set_xticks([])
        return "", "step time / SGD's"

    columns = [f"{batch.removeprefix('batch ')} states per step" for batch in results.batches]
    name = "oil-runtime" + ("" if title == MAIN else f"-{slug(title)}")
    entries, note = legend(results, cells)
    multiples.save(folder / name, cells, rows, columns, entries, paint, note)
    heading = "" if title == MAIN else f"{title}: "
    return [Picture(name, f"{heading}CPU time of a step over that of an SGD step")]


def _beside_sgd(results: Results, cell: Cell) -> dict[int, Array]:
    """Each method's step time over SGD's, for the seeds that both have."""
    times = {
        line.method: {run.manifest["seed"]: step_time(run) for run in line.runs}
        for line in cell.lines
    }
    named = (t for i, t in times.items() if results.methods[i].options["name"] == "sgd")
    sgd = next(named, {})
    ratios = {
        method: np.array([seconds / sgd[seed] for seed, seconds in seeds.items() if seed in sgd])
        for method, seeds in times.items()
    }
    return {method: ratio for method, ratio in ratios.items() if ratio.size}
