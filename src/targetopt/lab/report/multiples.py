"""Small multiples on paper: panels in a grid, one legend below, saved as png and pdf. All figures are drawn here.

Text is text: names are never read as mathematics, so a ``$`` in a name is a dollar sign.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from numpy.typing import NDArray

from targetopt.lab.report.palette import Style
from targetopt.lab.store.files import write_whole

_MARKERS = dict(
    zip(
        ("circle", "square", "triangle", "diamond", "down", "plus", "cross", "star"),
        "os^DvPX*",
        strict=True,
    )
)
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CROWDED = 16
"""Figures with more panels have no ticks between the numbered ones, which are many and say little at that size."""
ROUNDING = 1e-16
"""What a number that begins at one and falls to this is worth: float64 could not tell it from nothing beside one."""
_FAR = 1e200  # matplotlib adds margins to it, which must stay finite
_NEAR = 1e-100  # a log axis ends here: numbers below are rounding, and their ratios to large ones are not finite
RC = {
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#555555",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.35,
    "ytick.minor.width": 0.35,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a panel of a figure stands.

    ``title`` is the panel's own; without one, its row and its column say what it is.
    """

    row: int
    column: int
    title: str | None = None


P = TypeVar("P", bound=Place)


@dataclass(frozen=True)
class Entry:
    """One method in the legend."""

    label: str
    style: Style


Painter = Callable[[Any, P], tuple[str, str]]
"""Draws a panel on matplotlib axes and returns the titles of x and y."""


def save(
    path: Path,
    cells: Sequence[P],
    rows: Sequence[str],
    columns: Sequence[str],
    entries: Sequence[Entry],
    paint: Painter[P],
    note: str = "",
    size: tuple[float, float] = (1.85, 1.35),
    also: Callable[[Figure], None] | None = None,
    room: float = 0.0,
) -> None:
    """Draw panels in a grid and write ``path.png`` and ``path.pdf``.

    Args:
        path: without its suffix.
        cells: the panels; rows and columns without one are left out.
        rows, columns: their titles, used where panels have none of their own.
        entries: the legend below; none where panels have legends of their own.
        paint: draws a panel.
        note: a line below the legend.
        size: width and height of a panel, in inches.
        also: gets the figure when it is drawn.
        room: inches to the left of the panels, where long names stand there; as much as titles need if it is less.
    """
    used_rows = sorted({cell.row for cell in cells})
    used_columns = sorted({cell.column for cell in cells})
    labels = [clipped(entry.label) for entry in entries]
    # Inches: room for two-line titles on the left, tick labels between the panels.
    # Panels of one kind share their axes' titles; panels with legends of their own show different things.
    own_axes = not entries
    (panel_width, panel_height), gap_x, gap_y = size, 0.75 if own_axes else 0.5, 0.4
    left, right, top, bottom = 0.85, 0.12, 0.26, 0.42
    tallest = max((cell.title or "").count("\n") for cell in cells)
    top, gap_y = top + 0.15 * tallest, gap_y + 0.15 * tallest
    titled = any(cell.title is not None for cell in cells)
    row_titles = {} if titled else {row: wrapped(rows[row]) for row in used_rows}
    left += 0.14 * max((title.count("\n") for title in row_titles.values()), default=0)
    if titled:
        left, gap_y = 0.62, gap_y + 0.28  # no row titles, but a title and an x-axis to each panel
    left = max(left, room)
    width = left + right + len(used_columns) * (panel_width + gap_x) - gap_x
    if len(used_columns) == 1:
        width, panel_width = width + 1.3, panel_width + 1.3
    # A legend column is its longest label, at about 0.058 inches a letter, and the line before it.
    longest = max(map(len, labels), default=0)
    across = max(1, min(int(width / (0.058 * longest + 0.55)), len(labels)))
    legend = 0.17 * math.ceil(len(labels) / across) + (0.17 if note else 0.0) + 0.08
    height = top + bottom + legend + len(used_rows) * (panel_height + gap_y) - gap_y
    with mpl.rc_context(RC), warnings.catch_warnings():
        # A name in a script the font lacks is drawn with boxes; that is no reason to lose the
        # figure.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(width, height), dpi=200)
        figure.subplots_adjust(
            left=left / width,
            right=1 - right / width,
            top=1 - top / height,
            bottom=(bottom + legend) / height,
            wspace=gap_x / panel_width,
            hspace=gap_y / panel_height,
        )
        axes = figure.subplots(len(used_rows), len(used_columns), squeeze=False)
        for ax in axes.flat:
            ax.set_visible(False)
        for cell in cells:
            ax = axes[used_rows.index(cell.row), used_columns.index(cell.column)]
            ax.set_visible(True)
            x_title, y_title = paint(ax, cell)
            if ax.get_xscale() == "log":
                log_ticks(ax.xaxis, *ax.get_xlim())
            if ax.get_yscale() == "log" and own_axes:
                log_ticks(ax.yaxis, *ax.get_ylim())
            if len(cells) > CROWDED:
                for axis in (ax.xaxis, ax.yaxis):
                    axis.set_minor_locator(NullLocator())
            same_column = [c.row for c in cells if c.column == cell.column]
            if cell.title is not None:
                letters = round(16.2 * size[0])
                ax.set_title("\n".join(clipped(part, letters) for part in cell.title.split("\n")))
            elif cell.row == min(same_column):
                ax.set_title(clipped(columns[cell.column]))
            if cell.row == max(same_column) or own_axes:
                ax.set_xlabel(x_title)
            if cell.column == min(c.column for c in cells if c.row == cell.row) or own_axes:
                row = "" if cell.title is not None else f"{row_titles[cell.row]}\n"
                ax.set_ylabel(row + y_title)
        if entries:
            _legend(figure, entries, labels, across, 0.17 / height if note else 0.0)
        if note:
            figure.text(0.5, 0.05 / height, note, ha="center", va="bottom", fontsize=7)
        _write(figure, path)
        if also is not None:
            also(figure)


def _legend(
    figure: Figure, entries: Sequence[Entry], labels: Sequence[str], across: int, bottom: float
) -> None:
    figure.legend(
        [_handle(entry.style) for entry in entries],
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, bottom),
        ncols=across,
        fontsize=7.5,
        handlelength=2.6,
        columnspacing=1.4,
        labelspacing=0.3,
        borderaxespad=0.2,
    )


def _write(figure: Figure, path: Path) -> None:
    """``path.png`` and ``path.pdf``, whole, without anything that changes from day to day."""
    # Straight to the canvases: savefig draws every figure twice to find a layout we have set.
    image = io.BytesIO()
    FigureCanvasAgg(figure).print_png(image, metadata={"Software": None})
    write_whole(path.with_name(path.name + ".png"), image.getvalue())
    image = io.BytesIO()
    anonymous = dict.fromkeys(("CreationDate", "Producer", "Creator"))
    FigureCanvasPdf(figure).print_pdf(image, metadata=anonymous)
    write_whole(path.with_name(path.name + ".pdf"), image.getvalue())


def plot(ax: Any, x: NDArray[Any], y: NDArray[Any], style: Style, index: int) -> None:
    """One line with a handful of marks, shifted from method to method so that they do not pile up."""
    shown = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & (np.abs(y) < _FAR))
    if not shown.size:
        return
    places = np.log(x[shown]) if ax.get_xscale() == "log" else x[shown]
    share = (np.arange(4) + 0.25 + 0.12 * (index % 5)) / 4
    wanted = places[0] + (places[-1] - places[0]) * share
    marked = sorted({int(shown[np.argmin(np.abs(places - w))]) for w in wanted})
    # Not ax.plot, which looks for units and colours that are known here, and takes twice as long.
    line = Line2D(x, np.where(np.abs(y) < _FAR, y, np.nan), markevery=marked, **_look(style))
    line.set_clip_path(ax.patch)
    ax.add_line(line)
    ax.autoscale_view()


def ring(ax: Any, x: float, y: float, style: Style) -> None:
    """A ring around one point of a line."""
    if math.isfinite(y):
        look: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "linestyle": "none"}
        line = Line2D([x], [y], markeredgecolor=style.light, markeredgewidth=1.1, **look)
        line.set_markersize(8.0)
        ax.add_line(line)


def fill(ax: Any, x: NDArray[Any], low: NDArray[Any], high: NDArray[Any], style: Style) -> None:
    """A band, in one piece wherever both of its sides are numbers. It does not move the limits."""
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(low) & np.isfinite(high))
    pieces = np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if known.size else []
    shapes = [np.concatenate([np.c_[x[p], low[p]], np.c_[x[p], high[p]][::-1]]) for p in pieces]
    band = PolyCollection(shapes, facecolors=style.light, alpha=0.16, linewidths=0)
    ax.add_collection(band, autolim=False)


def drawable(values: NDArray[Any], log: bool) -> NDArray[Any]:
    """Infinities far outside the frame, so that bands reach it; nothing ≤ 0 on a log axis."""
    bounded = np.clip(values, -_FAR, _FAR)
    return np.where(bounded > 0, bounded, np.nan) if log else bounded


def limit(ax: Any, low: float, high: float, start: float | None, log: bool) -> None:
    """Limits of y from the curves.

    Where lower is better, ``start`` is the highest value a curve begins with. A curve that explodes far above it, or
    vanishes below its rounding, does not flatten the others.
    """
    if start is not None and math.isfinite(start):
        high = max(min(high, 2 * start if log else start + 0.5 * abs(start)), low)
        low = max(low, min(ROUNDING * start, high)) if log else low
    if log:
        low, high = max(low, _NEAR), max(high, _NEAR)
        pad = max((high / low) ** 0.05, 1.05)
        ax.set_ylim(low / pad, high * pad)
        log_ticks(ax.yaxis, low / pad, high * pad)
    else:
        pad = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
        ax.set_ylim(low - pad, high + pad)


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Powers of ten; 1-2-5 on less than two decades; even steps on less than one."""
    decades = math.log10(high / low)
    if decades >= 2:
        axis.set_major_locator(LogLocator(10, numticks=6))
        minor = range(2, 10) if decades < 3.5 else (1,)
        axis.set_minor_locator(LogLocator(10, subs=[float(k) for k in minor], numticks=200))
    else:
        if decades > 0.7:
            exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            ticks = [k * 10.0**e for e in exponents for k in (1, 2, 5)]
        else:
            ticks = list(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
        axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
        axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_minor_formatter(NullFormatter())


def tick_text(value: float) -> str:
    """A tick of a log axis: handy numbers as they are, powers of ten beyond.

    >>> tick_text(100.0), tick_text(1e-5), tick_text(0.02), tick_text(2e6)
    ('100', '10⁻⁵', '0.02', '2·10⁶')
    """
    exponent = math.floor(math.log10(value) + 1e-9) if value > 0 else 0
    if -3 <= exponent <= 3:
        return f"{value:g}"
    mantissa = value / 10.0**exponent
    power = f"10{superscript(exponent)}"
    return power if abs(mantissa - 1) < 1e-6 else f"{mantissa:g}·{power}"


def superscript(exponent: int) -> str:
    """
    >>> superscript(-12)
    '⁻¹²'
    """
    return str(exponent).translate(_SUPERSCRIPT)


def clipped(text: str, letters: int = 34) -> str:
    """Text on one line, no longer than a legend can bear.

    >>> clipped("a very long name", 8)
    'a very …'
    """
    line = " ".join(text.split())
    return line if len(line) <= letters else line[: letters - 1] + "…"


def wrapped(text: str, letters: int = 26) -> str:
    """Text on at most two lines, which a row of panels is high enough for.

    >>> wrapped("synthetic twin of ijcnn1 (logistic)")
    'synthetic twin of ijcnn1\\n(logistic)'
    """
    first, *rest = textwrap.wrap(text, letters) or [""]
    return "\n".join(
        [first, clipped(" ".join(rest), letters)] if rest else [clipped(first, letters)]
    )


def _look(style: Style) -> dict[str, Any]:
    return {
        "color": style.light,
        # The page's dashes are in pixels, matplotlib's in line widths.
        "linestyle": (0, tuple(d / 1.6 for d in style.dash)) if style.dash else "-",
        "marker": _MARKERS[style.marker],
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
    }


def _handle(style: Style) -> Line2D:
    return Line2D([], [], **_look(style))
