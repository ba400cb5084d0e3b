"""How the two theory figures look (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from targetopt.theory.figure_data import BoundsData, CounterexampleData

# Okabe & Ito's colours: told apart with any colour vision
_BLUE, _ORANGE, _GREEN, _RED, _BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#000000"
_VARIANT = {"sso": (_BLUE, "SSO"), "analysis": (_GREEN, "q̃: regulariser on all data")}
_DASHES = {"constant": "-", "1/t": "--", "1/sqrt(t)": "-.", "exponential": ":"}


def _panels(rows: int, columns: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.4 * columns, 3.5 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Figure, path: Path) -> None:
    for kind in ("png", "pdf"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def _dress(axes: Any, title: str, x: str, y: str, *, scales: str) -> None:
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_xscale("log" if scales[0] == "l" else "linear")
    axes.set_yscale("log" if scales[1] == "l" else "linear")
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)


def draw_bounds(path: Path, data: BoundsData) -> None:
    """``path.png`` and ``path.pdf``."""
    figure, axes = _panels(2, 3)
    for panel, schedule in zip(axes[0], ("constant", "exponential"), strict=False):
        for method, (colour, label) in _VARIANT.items():
            runs, bound = data.curves[schedule, method]
            t = np.arange(1, len(bound) + 1)
            rms = np.sqrt((runs.distance[1:] ** 2).mean(axis=1))
            panel.plot(t, rms, color=colour, label=f"{label}, measured")
            panel.plot(t, bound, color=colour, linestyle="--", label="its bound (Thm 4.2, sharp)")
        _dress(panel, f"Thm 4.2, {schedule} steps", "t", "rms ‖z − z*‖", scales="ll")
    _draw_survey(axes[0, 2], data)
    _draw_projection(axes[1, 0], data)
    _draw_forgetting(axes[1, 1], data)
    _draw_interpolation(axes[1, 2], data)
    _save(figure, path)


def _draw_survey(axes: Any, data: BoundsData) -> None:
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
    count = len({c.setting.problem for c in data.comparisons})
    _dress(axes, f"{count} random problems", "", "measured / bound", scales="xl")
    axes.set_xticks(range(len(groups)), list(groups), fontsize=7)


def _draw_projection(axes: Any, data: BoundsData) -> None:
    m = np.array(data.projection.inner_steps)
    axes.plot(m, data.projection.measured, color=_BLUE, label="E ε², half batches")
    axes.plot(m, data.projection.bound, color=_BLUE, linestyle="--", label="Prop. 4.3")
    shown = data.full.inexact > 1e-26
    axes.plot(m[shown], data.full.measured[shown], color=_GREEN, label="E ε², all data")
    axes.plot(m[shown], data.full.bound[shown], color=_GREEN, linestyle="--", label="Prop. 4.3")
    rate = np.exp(-2 * m / data.full.kappa_g) * data.full.inexact[0]
    axes.plot(m[shown], rate[shown], color=_BLACK, linestyle=":", label="∝ exp(−2m/κ_g)")
    _dress(axes, "Projection error against m", "m", "E ε²", scales="xl")


def _draw_forgetting(axes: Any, data: BoundsData) -> None:
    T, total, bound, printed = data.forgetting.T
    axes.plot(T, total, color=_BLUE, marker="o", markersize=3, label="C_T")
    axes.plot(T, bound, color=_BLUE, linestyle="--", label="our bound")
    axes.plot(T, printed, color=_RED, label="Lemma D.8 as printed")
    axes.plot(T, T, color=_BLACK, linestyle=":", label="T")
    _dress(axes, "Errors remembered, exponential steps (κ = 10)", "T", "C_T", scales="ll")


def _draw_interpolation(axes: Any, data: BoundsData) -> None:
    rms, bound, zeta = (data.interpolation[k] for k in ("rms", "bound", "zeta"))
    t = np.arange(1, len(rms) + 1)
    axes.plot(t, rms, color=_BLUE, label="rms ‖z − z*‖, SSO")
    axes.plot(t[1:], bound, color=_BLUE, linestyle="--", label="its bound")
    axes.plot(t, zeta, color=_ORANGE, label="ζ_t² (printed as 0)")
    _dress(axes, "Interpolation: linear convergence", "t", "", scales="xl")


def draw_counterexample(path: Path, data: CounterexampleData) -> None:
    """``path.png`` and ``path.pdf``."""
    figure, axes = _panels(1, 3)
    left, middle, right = axes[0]
    for name, exact in data.exact.items():
        ends = data.biases[name, "sso"]
        T = list(ends)
        reach = [[b.mean - b.low for b in ends.values()], [b.high - b.mean for b in ends.values()]]
        means = [b.mean for b in ends.values()]
        left.errorbar(T, means, reach, fmt="o", markersize=3, color=_BLUE, capsize=2)
        left.plot(
            list(exact), list(exact.values()), color=_BLUE, linestyle=_DASHES[name], label=name
        )
    left.axhline(0.375, color=_RED, linewidth=0.8, label="⅜")
    left.axhline(0, color=_BLACK, linewidth=0.8, label="θ*")
    _dress(left, "Prop. 4.4: E θ_T of SSO, m = ∞", "T", "E(θ_T − θ*)", scales="lx")
    colours = {"sso": _BLUE, "analysis": _GREEN, "independent": _ORANGE}
    labels = {"sso": "SSO", "analysis": "q̃", "independent": "independent batches"}
    for variant, colour in colours.items():
        ends = data.biases["exponential", variant]
        rms = [b.rms for b in ends.values()]
        middle.plot(list(ends), rms, color=colour, marker="o", markersize=3, label=labels[variant])
    _dress(middle, "Exponential steps", "T", "rms (θ_T − θ*)", scales="ll")
    T = [r.steps for r in data.refutations]
    right.plot(T, [r.distance for r in data.refutations], color=_BLUE, label="‖E z − z*‖, exact")
    right.plot(T, [r.printed for r in data.refutations], color=_RED, label="Thm 4.2 (b) as printed")
    right.plot(T, [r.sharp for r in data.refutations], color=_BLUE, linestyle="--", label="ours")
    _dress(right, "Five copies of the two examples", "T", "distance to z*", scales="ll")
    _save(figure, path)
