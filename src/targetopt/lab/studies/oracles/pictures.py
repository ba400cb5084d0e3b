"""The study's pictures: who needs how many calls, profiles, what a price changes, and what each part brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.report.multiples import Entry, Place, log_ticks, plot, save
from targetopt.lab.report.palette import DASHED, SOLID, Style, oklch
from targetopt.lab.statistics.profiles import shares_of
from targetopt.lab.studies.oracles.findings import Found, TaskFindings, changes
from targetopt.lab.studies.oracles.measures import PRICES, SHARES

OWN = "SSO default"
_HUES = {"rival": 255.0, "rule": 30.0, "ablation": 145.0, "trick": 320.0}
_MARKERS = ("circle", "square", "triangle", "diamond", "cross")
_POINTS = ("o", "s", "D")


def draw(found: Sequence[TaskFindings], folder: Path) -> list[Path]:
    """Draw everything into a folder; the pictures, the most important one first."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [_overview(found, folder / "overview"), _prices(found, folder / "prices")]
    if len(found) > 1:
        drawn.append(_profiles(found, folder / "profiles"))
    if any(task.of("ablation") for task in found):
        drawn.append(_ablations(found, folder / "ablations"))
    return drawn


def look(arm: Found, place: int) -> Style:
    """The default is red and solid; everybody else has the hue of their role, and a marker."""
    if arm.role == "default":
        return Style(oklch(0.55, 0.2, 27.0), oklch(0.7, 0.18, 27.0), SOLID, "circle")
    lightness = 0.4 + 0.09 * (place % 5)
    dash = DASHED if arm.role in ("rival", "trick") else SOLID
    marker = _MARKERS[place % len(_MARKERS)]
    hue = _HUES[arm.role] + 18.0 * (place % 5 - 2)
    return Style(oklch(lightness, 0.12, hue), oklch(0.75, 0.12, hue), dash, marker)


def _single(path: Path, paint: Any, height: float, entries: Sequence[Entry] = ()) -> Path:
    save(path, [Place(row=0, column=0, title="")], [""], [""], entries, paint, size=(4.6, height))
    return path.with_name(path.name + ".png")


def _overview(found: Sequence[TaskFindings], path: Path) -> Path:
    """For every problem the ratios to the best tuned rival at three levels, lost ones left of the line."""
    order = sorted(found, key=lambda task: _low(task.middle_ratio("rival")))
    colours = [oklch(lightness, 0.16, 27.0) for lightness in (0.75, 0.6, 0.42)]

    def paint(ax: Any, cell: Place) -> tuple[str, str]:
        ax.axvline(1.0, color="0.4", linewidth=0.8)
        ax.axvspan(1e-3, 1.0, color="0.93", linewidth=0)
        for level, share in enumerate(SHARES):
            ratios = [task.ratio(level, "rival") for task in order]
            x = [value for value, _ in ratios]
            ax.scatter(
                x, range(len(order)), s=22, color=colours[level], marker=_POINTS[level],
                label=f"level {share:g}", zorder=3,
            )  # fmt: skip
            for y, (value, bound) in enumerate(ratios):
                if bound == "≥":
                    ax.annotate("→", (value, y), fontsize=7, ha="left", va="center", zorder=4)
                elif bound == "≤":
                    ax.annotate("←", (value, y), fontsize=7, ha="right", va="center", zorder=4)
        ax.set_xscale("log")
        known = [
            v for task in order for k in range(3) if math.isfinite(v := task.ratio(k, "rival")[0])
        ]
        ax.set_xlim(min(0.3, *known) / 1.2, max(6.0, *known) * 1.4)
        ax.set_ylim(-0.6, len(order) - 0.4)
        ax.set_yticks(range(len(order)), [task.title for task in order], fontsize=6.5)
        ax.grid(axis="y", linewidth=0.3)
        ax.legend(
            fontsize=6, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncol=3, handletextpad=0.1
        )
        return "calls of the best tuned rival / calls of to.SSO(params)", ""

    # room for the problems' names on the left comes with the figure's width
    return _single_wide(path, paint, max(1.2, 0.21 * len(order) + 0.3))


def _single_wide(path: Path, paint: Any, height: float) -> Path:
    def shifted(ax: Any, cell: Place) -> tuple[str, str]:
        box = ax.get_position()
        ax.set_position([box.x0 + 0.24, box.y0, box.width - 0.24, box.height])
        titles: tuple[str, str] = paint(ax, cell)
        return titles

    return _single(path, shifted, height)


def _low(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _prices(found: Sequence[TaskFindings], path: Path) -> Path:
    """For every problem the seconds of the cheapest rival over those of the default, by the price of a call.

    Each has a panel, in which the others are grey; those where SSO wins by most at a second a call come first.
    """
    ratios = {task.name: [task.price_ratio(price, "rival") for price in PRICES] for task in found}
    order = sorted(found, key=lambda task: -_low(ratios[task.name][PRICES.index(1.0)]))
    own = Style(oklch(0.55, 0.2, 27.0), oklch(0.7, 0.18, 27.0), SOLID, "circle")
    other = Style(oklch(0.8, 0.0, 0.0), oklch(0.8, 0.0, 0.0), SOLID, "circle")
    cells = [
        _Panel(row=k // 6, column=k % 6, title=task.title.replace(", ", ",\n", 1), task=task)
        for k, task in enumerate(order)
    ]
    known = [value for each in ratios.values() for value in each if math.isfinite(value)]

    def paint(ax: Any, cell: _Panel) -> tuple[str, str]:
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.axhspan(1e-6, 1.0, color="0.93", linewidth=0)
        for y in ratios.values():
            ax.plot(PRICES, y, color=other.light, linewidth=0.5, zorder=2)
        y = ratios[cell.task.name]
        ax.plot(PRICES, y, color=own.light, marker="o", markersize=2.5, linewidth=1.3, zorder=3)
        ax.set_xlim(PRICES[0] / 1.3, PRICES[-1] * 1.3)
        ax.set_ylim(min(0.5, *known) / 1.3, max(2.0, *known) * 1.3)
        log_ticks(ax.yaxis, *ax.get_ylim())
        return "price of a call, s", "rival / SSO"

    entries = [
        Entry("this problem", own),
        Entry("the other problems", other),
    ]
    note = "Time of the best tuned rival over that of SSO, by the price of a call; SSO is the slower one on grey ground"
    save(path, cells, (), (), entries, paint, note, size=(1.35, 1.2))
    return path.with_name(path.name + ".png")


@dataclass(frozen=True, kw_only=True)
class _Panel(Place):
    task: TaskFindings


def _profiles(found: Sequence[TaskFindings], path: Path) -> Path:
    """How often an arm is within a factor of the fewest calls, over problems, levels and seeds."""
    everywhere = [
        label
        for label in dict.fromkeys(arm.label for arm in found[0].arms)
        if all(any(arm.label == label for arm in task.arms) for task in found)
    ]
    members = [next(a for a in found[0].arms if a.label == label) for label in everywhere]
    members = [arm for arm in members if arm.role != "ablation"]
    if len({len(arm.calls[0]) for arm in members}) > 1:  # other rules may be shown with fewer seeds
        members = [arm for arm in members if arm.role != "rule"]
    labels = [arm.label for arm in members]
    costs = []
    for task in found:
        by_label = {arm.label: arm for arm in task.arms}
        for level in range(len(SHARES)):
            cost = np.array([by_label[label].calls[level] for label in labels])
            if np.isfinite(cost).any():
                costs.append(cost)
    factors, shares = shares_of(costs)
    styles = [look(arm, place) for place, arm in enumerate(members)]

    def paint(ax: Any, cell: Place) -> tuple[str, str]:
        ax.set_xscale("log")
        for place, (style, share) in enumerate(zip(styles, shares, strict=True)):
            plot(ax, np.append(factors, 2 * factors[-1]), np.append(share, share[-1]), style, place)
        ax.set_ylim(0, 1.02)
        ax.set_xlim(1, min(2 * factors[-1], 30))
        return "calls / fewest median calls", "share of problems, levels, seeds"

    return _single(
        path, paint, 2.2, [Entry(label, s) for label, s in zip(labels, styles, strict=True)]
    )


def _ablations(found: Sequence[TaskFindings], path: Path) -> Path:
    """Calls with a part of the default changed, or with another rule, over calls with it, for every problem."""
    labels = list(changes(found))

    def paint(ax: Any, cell: Place) -> tuple[str, str]:
        ax.axvline(1.0, color="0.4", linewidth=0.8)
        for y, label in enumerate(labels):
            ratios = [each for task in found if not math.isnan(each := task.changed(label))]
            spread = y + 0.24 * (np.arange(len(ratios)) / max(len(ratios) - 1, 1) - 0.5)
            ax.scatter(ratios, spread, s=9, color=oklch(0.5, 0.13, 145.0), zorder=3)
            ax.plot([np.median(ratios)] * 2, [y - 0.3, y + 0.3], color="0.1", linewidth=1.4)
        ax.set_xscale("log")
        ax.set_yticks(range(len(labels)), labels, fontsize=7)
        ax.set_ylim(-0.6, len(labels) - 0.4)
        return "calls with this change or rule / calls of the default, level 0.01", ""

    return _single_wide(path, paint, 0.32 * len(labels) + 0.5)
