"""The control as one figure that shows who wins where, and a page around it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.report.multiples import Entry, Place, log_ticks, plot, save
from targetopt.lab.report.palette import DASHED, SOLID, Style, oklch
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.control.study import ARMS, CASES, EPOCHS, SEEDS, STEPS, Case, Cell, read

FLOOR = 1e-16
STYLES = {
    "SSO, η = 1/(8L)": Style(oklch(0.72, 0.15, 27.0), oklch(0.8, 0.14, 27.0), SOLID, "circle"),
    "SSO, η = 1/(2L)": Style(oklch(0.58, 0.19, 27.0), oklch(0.7, 0.17, 27.0), SOLID, "square"),
    "SSO, η = 1/L": Style(oklch(0.42, 0.16, 27.0), oklch(0.6, 0.16, 27.0), SOLID, "triangle"),
    "SSO, nothing chosen": Style(oklch(0.5, 0.2, 340.0), oklch(0.7, 0.18, 340.0), SOLID, "plus"),
    "Proximal, η tuned": Style(oklch(0.5, 0.14, 145.0), oklch(0.7, 0.14, 145.0), SOLID, "diamond"),
    "echoing, η = ∞ (SLS × m)": Style(oklch(0.5, 0.15, 255.0), oklch(0.7, 0.13, 255.0), DASHED, "circle"),
    "Adam × m, tuned": Style(oklch(0.35, 0.1, 285.0), oklch(0.65, 0.1, 285.0), DASHED, "square"),
    "Adam, one step a batch, tuned": Style(oklch(0.65, 0.0, 0.0), oklch(0.75, 0.0, 0.0), DASHED, "triangle"),
    "Memory": Style(oklch(0.6, 0.13, 90.0), oklch(0.75, 0.13, 90.0), SOLID, "cross"),
}  # fmt: skip


def write(folder: Path) -> Path:
    """Draw ``control.png`` and write ``README.md`` from what was measured."""
    cells = read(folder)
    draw(cells, folder / "control")
    page = folder / "README.md"
    write_whole(page, text(cells).encode())
    return page


def _rows(cells: Sequence[Cell]) -> list[tuple[Case, int]]:
    measured = {(cell.case, cell.batch) for cell in cells}
    return [(c, b) for c in CASES for b in c.batches if (c.name, b) in measured]


def draw(cells: Sequence[Cell], path: Path) -> None:
    """A panel for every problem and batch size: what is left of the gap over m, a curve for every arm."""
    rows = _rows(cells)
    across = 4
    places = [
        Place(row=k // across, column=k % across, title=f"{case.title}\nbatch {batch}")
        for k, (case, batch) in enumerate(rows)
    ]
    which = dict(zip([(p.row, p.column) for p in places], rows, strict=True))

    def paint(ax: Any, place: Place) -> tuple[str, str]:
        case, batch = which[place.row, place.column]
        ax.set_xscale("log")
        ax.set_yscale("log")
        lowest = 1.0
        for number, arm in enumerate(ARMS):
            found = {
                c.m: c.gap
                for c in cells
                if (c.case, c.batch, c.arm) == (case.name, batch, arm.label)
            }
            if not arm.by_steps and found:
                found = dict.fromkeys(case.steps, found[1])
            shown = {
                m: min(max(gap, FLOOR), 10.0) for m, gap in found.items() if math.isfinite(gap)
            }
            if shown:
                lowest = min(lowest, *shown.values())
                plot(
                    ax,
                    np.array(list(shown)),
                    np.array(list(shown.values())),
                    STYLES[arm.label],
                    number,
                )
        ax.set_xticks(STEPS, [str(m) for m in STEPS])
        ax.set_xlim(STEPS[0] / 1.4, STEPS[-1] * 1.4)
        ax.set_ylim(lowest / 3, 3.0)
        log_ticks(ax.yaxis, lowest / 3, 3.0)
        return "m", "share of the gap that is left"

    entries = [Entry(arm.label, STYLES[arm.label]) for arm in ARMS]
    save(path, places, [""] * (1 + len(rows) // across), [""] * across, entries, paint)


def best(cells: Sequence[Cell], case: str, batch: int, *, gradient_only: bool) -> list[Cell]:
    """The cells of one problem and batch size from the best to the worst, over arms and m."""
    allowed = {arm.label for arm in ARMS if arm.gradient_only or not gradient_only}
    here = [c for c in cells if (c.case, c.batch) == (case, batch) and c.arm in allowed]
    return sorted(here, key=lambda c: c.gap)


def text(cells: Sequence[Cell]) -> str:
    """The page in Markdown: the figure, who wins where, every number."""
    head = [
        "| problem | batch | lowest of all | lowest that needs gradients only | SSO's best |",
        "|---|---:|---|---|---|",
    ]
    for case, batch in _rows(cells):
        anybody = best(cells, case.name, batch, gradient_only=False)[0]
        blind = best(cells, case.name, batch, gradient_only=True)[0]
        own = next(
            c
            for c in best(cells, case.name, batch, gradient_only=True)
            if c.arm.startswith("SSO, η")
        )
        head.append(
            f"| {case.title} ({'noisy' if case.noisy else 'interpolating'}) | {batch} | {_said(anybody)} | "
            f"{_said(blind)} | {_said(own)} |"
        )
    every = [
        "| problem | batch | arm | m | setting | gap left | processor seconds |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for case, batch in _rows(cells):
        for c in best(cells, case.name, batch, gradient_only=False):
            setting = "" if c.chosen is None else f"{c.chosen:.3g}"
            steps = str(c.m) if next(a for a in ARMS if a.label == c.arm).by_steps else ""
            every.append(
                f"| {case.title} | {batch} | {c.arm} | {steps} | {setting} | {_number(c.gap)} | {c.seconds:.1f} |"
            )
    return (
        "# With labels in hand: surrogate, the loss itself, or memory?\n\n"
        "![What is left of the gap after some epochs, by m](control.png)\n\n"
        f"Every arm sees the same batches in the same order for {EPOCHS} epochs, from zero weights. The gap is the "
        "loss on all data above its minimum, as a share of the gap at the start: the geometric mean over seeds "
        f"{', '.join(map(str, SEEDS))}. Settings were chosen on another seed, from lists that were extended while the "
        "best value was at their edge. One batch is one oracle call; m inner steps on it cost none.\n\n"
        + "\n".join(head)
        + "\n\n*Lowest that needs gradients only* leaves out echoing, Adam × m, Proximal and SSO with nothing chosen "
        "(which is Proximal, too), because they need the loss of a batch at other points than asked about. "
        "Proximal's steps are not compiled, so it took part at m ≤ 10 only.\n\n## Every number\n\n"
        + "\n".join(every)
        + "\n\n## How it was made\n\n    python -m targetopt.lab.studies.control results/control\n"
    )


def _number(gap: float) -> str:
    return "diverged" if math.isinf(gap) else f"{gap:.2g}"


def _said(cell: Cell) -> str:
    by_steps = next(arm for arm in ARMS if arm.label == cell.arm).by_steps
    return f"{cell.arm}{f', m = {cell.m}' if by_steps else ''}: {_number(cell.gap)}"
