"""How the two theory figures look."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from targetopt.lab.report import multiples
from targetopt.lab.report.multiples import Place

if TYPE_CHECKING:
    from targetopt.lab.studies.theory.figure_data import BoundsData, CounterexampleData

# Okabe & Ito's colours: told apart with any colour vision
_BLUE, _ORANGE, _GREEN, _RED, _BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000"
_VARIANT = {"sso": (_BLUE, "SSO"), "analysis": (_GREEN, "q̃: regulariser on all data")}
_DASHES = {"constant": "-", "1/t": "--", "1/sqrt(t)": "-.", "exponential": ":"}


Draw = Callable[[Any], tuple[str, str]]
"""Draws on axes and returns the titles of x and y."""


@dataclass(frozen=True, kw_only=True)
class _Panel(Place):
    draw: Draw


def _save(path: Path, panels: Mapping[str, Draw]) -> None:
    """Titled panels, three to a row, each with a legend of its own."""
    cells = [
        _Panel(row=k // 3, column=k % 3, title=title, draw=draw)
        for k, (title, draw) in enumerate(panels.items())
    ]

    def paint(axes: Any, cell: _Panel) -> tuple[str, str]:
        titles = cell.draw(axes)
        axes.legend(fontsize=7)
        return titles

    multiples.save(path, cells, (), (), (), paint, size=(3.4, 2.6))


def _scales(axes: Any, scales: str) -> None:
    axes.set_xscale("log" if scales[0] == "l" else "linear")
    axes.set_yscale("log" if scales[1] == "l" else "linear")


def draw_bounds(path: Path, data: BoundsData) -> None:
    """``path.png`` and ``path.pdf``."""
    problems = len({c.setting.problem for c in data.comparisons})
    _save(
        path,
        {
            "Thm 4.2, constant steps": partial(_draw_distance, data=data, schedule="constant"),
            "Thm 4.2, exponential steps": partial(
                _draw_distance, data=data, schedule="exponential"
            ),
            f"{problems} random problems": partial(_draw_survey, data=data),
            "Projection error against m": partial(_draw_projection, data=data),
            "Errors remembered, exponential steps (κ = 10)": partial(_draw_forgetting, data=data),
            "Interpolation: linear convergence": partial(_draw_interpolation, data=data),
            "Lemma C.1, ℓ not convex": partial(_draw_stationarity, data=data),
        },
    )


def _draw_distance(axes: Any, data: BoundsData, schedule: str) -> tuple[str, str]:
    _scales(axes, "ll")
    for method, (colour, label) in _VARIANT.items():
        runs, bound = data.curves[schedule, method]
        t = np.arange(1, len(bound) + 1)
        rms = np.sqrt((runs.distance[1:] ** 2).mean(axis=1))
        axes.plot(t, rms, color=colour, label=f"{label}, measured")
        axes.plot(t, bound, color=colour, linestyle="--", label="its bound (Thm 4.2, sharp)")
    return "t", "rms ‖z − z*‖"


def _draw_survey(axes: Any, data: BoundsData) -> tuple[str, str]:
    groups = {
        "general, sharp": ([c.rms_ratio for c in data.comparisons], _BLUE),
        "(a) printed": (
            [c.printed_ratio for c in data.comparisons if c.setting.schedule == "constant"],
            _GREEN,
        ),
        "(b) sharp": (
            [c.closed_ratio for c in data.comparisons if c.setting.schedule == "exponential"],
            _BLUE,
        ),
        "(b) printed": (
            [c.printed_ratio for c in data.comparisons if c.setting.schedule == "exponential"],
            _RED,
        ),
    }
    rng = np.random.default_rng(0)
    for position, (values, colour) in enumerate(groups.values()):
        spread = position + rng.uniform(-0.3, 0.3, size=len(values))
        axes.scatter(spread, np.maximum(values, 1e-6), s=6, color=colour, alpha=0.5, linewidths=0)
    axes.axhline(1, color=_BLACK, linewidth=0.8, label="the bound")
    _scales(axes, "xl")
    axes.set_xticks(range(len(groups)), list(groups))
    return "", "measured / bound"


def _draw_projection(axes: Any, data: BoundsData) -> tuple[str, str]:
    m = np.array(data.projection.inner_steps)
    axes.plot(m, data.projection.measured, color=_BLUE, label="E ε², half batches")
    axes.plot(m, data.projection.bound, color=_BLUE, linestyle="--", label="Prop. 4.3")
    shown = data.full.inexact > 1e-26
    axes.plot(m[shown], data.full.measured[shown], color=_GREEN, label="E ε², all data")
    axes.plot(m[shown], data.full.bound[shown], color=_GREEN, linestyle="--", label="Prop. 4.3")
    rate = np.exp(-2 * m / data.full.kappa_g) * data.full.inexact[0]
    axes.plot(m[shown], rate[shown], color=_BLACK, linestyle=":", label="∝ exp(−2m/κ_g)")
    _scales(axes, "xl")
    return "m", "E ε²"


def _draw_forgetting(axes: Any, data: BoundsData) -> tuple[str, str]:
    T, total, bound, printed = data.forgetting.T
    axes.plot(T, total, color=_BLUE, marker="o", markersize=3, label="C_T")
    axes.plot(T, bound, color=_BLUE, linestyle="--", label="our bound")
    axes.plot(T, printed, color=_RED, label="Lemma D.8 as printed")
    axes.plot(T, T, color=_BLACK, linestyle=":", label="T")
    _scales(axes, "ll")
    return "T", "C_T"


def _draw_interpolation(axes: Any, data: BoundsData) -> tuple[str, str]:
    rms, bound, zeta = (data.interpolation[k] for k in ("rms", "bound", "zeta"))
    t = np.arange(1, len(rms) + 1)
    axes.plot(t, rms, color=_BLUE, label="rms ‖z − z*‖, SSO")
    axes.plot(t[1:], bound, color=_BLUE, linestyle="--", label="its bound")
    axes.plot(t, zeta, color=_ORANGE, label="ζ_t² (printed as 0)")
    _scales(axes, "xl")
    return "t", ""


def _draw_stationarity(axes: Any, data: BoundsData) -> tuple[str, str]:
    """The run that comes closest to its bound, for each m."""
    for m, colour in zip((1, 5, 20), (_BLUE, _GREEN, _ORANGE), strict=True):
        runs = [run for run in data.stationarity if run.inner_steps == m]
        tightest = max(runs, key=lambda run: float((run.measured / run.bound).max()))
        t = np.arange(1, len(tightest.bound) + 1)
        axes.plot(t, tightest.measured, color=colour, label=f"min ‖∇h‖², m = {m}")
        axes.plot(t, tightest.bound, color=colour, linestyle="--")
    axes.plot([], [], color=_BLACK, linestyle="--", label="2β (h(θ_1) − h*)/T")
    _scales(axes, "ll")
    return "T", ""


def draw_counterexample(path: Path, data: CounterexampleData) -> None:
    """``path.png`` and ``path.pdf``."""
    _save(
        path,
        {
            "Prop. 4.4: E θ_T of SSO, m = ∞": partial(_draw_bias, data=data),
            "Exponential steps": partial(_draw_cures, data=data),
            "Five copies of the two examples": partial(_draw_refutations, data=data),
        },
    )


def _draw_bias(axes: Any, data: CounterexampleData) -> tuple[str, str]:
    _scales(axes, "lx")
    for name, exact in data.exact.items():
        ends = data.biases[name, "sso"]
        reach = [[b.mean - b.low for b in ends.values()], [b.high - b.mean for b in ends.values()]]
        means = [b.mean for b in ends.values()]
        axes.errorbar(list(ends), means, reach, fmt="o", markersize=3, color=_BLUE, capsize=2)
        axes.plot(
            list(exact), list(exact.values()), color=_BLUE, linestyle=_DASHES[name], label=name
        )
    axes.axhline(0.375, color=_RED, linewidth=0.8, label="⅜")
    axes.axhline(0, color=_BLACK, linewidth=0.8, label="θ*")
    return "T", "E(θ_T − θ*)"


def _draw_cures(axes: Any, data: CounterexampleData) -> tuple[str, str]:
    _scales(axes, "ll")
    colours = {"sso": _BLUE, "analysis": _GREEN, "independent": _ORANGE}
    labels = {"sso": "SSO", "analysis": "q̃", "independent": "independent batches"}
    for variant, colour in colours.items():
        ends = data.biases["exponential", variant]
        rms = [b.rms for b in ends.values()]
        axes.plot(list(ends), rms, color=colour, marker="o", markersize=3, label=labels[variant])
    return "T", "rms (θ_T − θ*)"


def _draw_refutations(axes: Any, data: CounterexampleData) -> tuple[str, str]:
    _scales(axes, "ll")
    T = [r.steps for r in data.refutations]
    axes.plot(T, [r.distance for r in data.refutations], color=_BLUE, label="‖E z − z*‖, exact")
    axes.plot(T, [r.printed for r in data.refutations], color=_RED, label="Thm 4.2 (b) as printed")
    axes.plot(T, [r.sharp for r in data.refutations], color=_BLUE, linestyle="--", label="ours")
    return "T", "distance to z*"
