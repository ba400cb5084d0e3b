"""The figures ``theory-bounds`` and ``theory-counterexample``: data, pictures and verdicts.

Each is a function of an output directory and a scale; it writes ``tables/<name>-*.csv``, ``figures/<name>.png`` and
``.pdf``, and ``inequalities.parquet`` with both sides of what every claim says, and returns the verdicts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.scales import ScaleName
from targetopt.lab.studies.theory.appendix import INEQUALITIES
from targetopt.lab.studies.theory.figure_data import bounds_data, counterexample_data
from targetopt.lab.studies.theory.figure_verdicts import (
    FILE,
    Judged,
    judge_bounds,
    judge_counterexample,
    written,
)
from targetopt.theory.exact_problem import Array, Runs
from targetopt.types import BadArgument


@dataclass(frozen=True)
class _Sizes:
    problems: int
    seeds: int
    steps: int
    runs: int
    longest: int
    instances: int | None = None


_SIZES: dict[str, _Sizes] = {
    "smoke": _Sizes(problems=4, seeds=50, steps=60, runs=5_000, longest=10_000, instances=30),
    "quick": _Sizes(problems=20, seeds=200, steps=150, runs=50_000, longest=100_000),
    "paper": _Sizes(problems=90, seeds=200, steps=200, runs=100_000, longest=1_000_000),
}


def theory_bounds(out: Path, scale: ScaleName) -> list[Verdict]:
    """Measured distances, projection errors and sums beside the bounds of §4, printed and corrected.

    Args:
        out: the directory to write to; made if it does not exist.
        scale: ``"smoke"`` (seconds), ``"quick"`` or ``"paper"`` (90 problems, 200 seeds each).
    """
    from targetopt.lab.studies.theory.figure_panels import draw_bounds

    sizes = _sizes(scale)
    data = bounds_data(sizes.problems, sizes.seeds, sizes.steps, sizes.longest, sizes.instances)
    _write_table(out, "theory-bounds-survey", [c.row() for c in data.comparisons])
    _write_table(
        out,
        "theory-bounds-curves",
        (
            {"schedule": schedule, "method": method, "t": t + 2, "rms": r, "mean": m, "bound": b}
            for (schedule, method), (runs, bound) in data.curves.items()
            for t, (r, m, b) in enumerate(zip(_rms(runs), _mean(runs), bound, strict=True))
        ),
    )
    _write_table(
        out,
        "theory-bounds-projection",
        (
            {"batch": name, "m": m, "measured": e, "inexact": i, "bound": b}
            for name, curve in (("half", data.projection), ("all", data.full))
            for m, e, i, b in zip(
                curve.inner_steps, curve.measured, curve.inexact, curve.bound, strict=True
            )
        ),
    )
    _write_table(
        out,
        "theory-bounds-stationarity",
        (
            {
                "problem": run.problem,
                "m": run.inner_steps,
                "largest_ratio": float((run.measured / run.bound).max()),
                "last_measured": float(run.measured[-1]),
                "last_bound": float(run.bound[-1]),
                "rises": run.rises,
                "least_curvature": run.least_curvature,
            }
            for run in data.stationarity
        ),
    )
    _write_table(
        out,
        "theory-bounds-forgetting",
        (dict(zip(("T", "sum", "bound", "printed"), row, strict=True)) for row in data.forgetting),
    )
    _write_table(
        out,
        "theory-bounds-inequalities",
        (
            {
                "name": o.name,
                "label": INEQUALITIES[o.name].label,
                "says": INEQUALITIES[o.name].says,
                "instances": o.instances,
                "printed_failures": o.printed_failures,
                "corrected_failures": o.corrected_failures,
                "worst_left": o.worst.left,
                "worst_printed": o.worst.printed,
            }
            for o in data.outcomes
        ),
    )
    draw_bounds(_figures(out) / "theory-bounds", data)
    return _decided(out, judge_bounds(data, sizes.seeds))


def theory_counterexample(out: Path, scale: ScaleName) -> list[Verdict]:
    """Prop. 4.4: the bias for four step sizes, its cure, and Thm 4.2 (b) refuted by it.

    Args:
        out: the directory to write to; made if it does not exist.
        scale: ``"smoke"``, ``"quick"`` or ``"paper"`` (10⁵ runs).
    """
    from targetopt.lab.studies.theory.figure_panels import draw_counterexample

    sizes = _sizes(scale)
    data = counterexample_data(sizes.runs, sizes.longest)
    _write_table(
        out,
        "theory-counterexample-bias",
        (
            {"schedule": schedule, "variant": variant, "T": T, **asdict(bias)}
            for (schedule, variant), ends in data.biases.items()
            for T, bias in ends.items()
        ),
    )
    _write_table(out, "theory-counterexample-refutation", [asdict(r) for r in data.refutations])
    draw_counterexample(_figures(out) / "theory-counterexample", data)
    return _decided(out, judge_counterexample(data))


FIGURES: dict[str, Callable[[Path, ScaleName], list[Verdict]]] = {
    "theory-bounds": theory_bounds,
    "theory-counterexample": theory_counterexample,
}


def _sizes(scale: str) -> _Sizes:
    if scale not in _SIZES:
        raise BadArgument(f"scale={scale!r} must be one of {', '.join(_SIZES)}")
    return _SIZES[scale]


def _rms(runs: Runs) -> Array:
    return np.asarray(np.sqrt((runs.distance[1:] ** 2).mean(axis=1)))


def _mean(runs: Runs) -> Array:
    return np.asarray(runs.distance[1:].mean(axis=1))


def _decided(out: Path, judged: Sequence[Judged]) -> list[Verdict]:
    """The verdicts; what they were decided by is written beside them."""
    write_whole(out / FILE, written(judged))
    return [each.verdict for each in judged]


def _figures(out: Path) -> Path:
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_table(out: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    folder = out / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    listed = list(rows)
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(listed[0]))
        writer.writeheader()
        writer.writerows(listed)
