"""The curves inside the page: every run, thinned to recorded points, as compact JSON.

The page aligns seeds and takes quantiles and means itself, by the rules of
:func:`targetopt.lab.statistics.alignment.align`,
because where seeds meet depends on the x-axis, and that on the reader's τ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.report import plots
from targetopt.lab.report.answer import shown_first
from targetopt.lab.report.lines import (
    X_AXES,
    Panel,
    Results,
    better,
    level,
    readings,
    spent_until,
)
from targetopt.lab.report.sensitivity import Tried
from targetopt.lab.store.directory import AXES, COUNTS, Run, priced_calls

NUMBERS = 360_000
"""About how many numbers a page may hold: 3 MB of JSON."""


def embed(results: Results, *, axis: str, tau: float, tried: Sequence[Tried] = ()) -> str:
    """The page's data as JSON that may stand inside a ``<script>`` element."""
    pool: dict[str, int] = {}
    drawn = [run for _, line in results.drawn() for run in line.runs]
    share = max(len(drawn), 1) * (len(results.metrics) + 2)
    points = int(np.clip(NUMBERS // share, 20, 400))
    metric = results.metrics[0] if results.metrics else None
    first = shown_first(results)
    hidden = [i for i in range(len(results.methods)) if i not in first]  # one click away
    content = {
        "metrics": results.metrics,
        "axes": list(X_AXES),
        "better": {name: better(name) for name in results.metrics},
        "log": {name: results.log_by_default(name) for name in results.metrics},
        "methods": [{"label": m.label, "style": asdict(m.style)} for m in results.methods],
        "problems": results.problems,
        "batches": results.batches,
        "rules": [{"title": title, "methods": members} for title, members in plots.rules(results)],
        "panels": [
            _panel(panel, metric, results.metrics, points, pool) for panel in results.panels
        ],
        "tried": [_trials(each) for each in tried],
        "open": {
            "panel": 0,
            "metric": metric,
            "axis": axis,
            "tau": tau,
            "middle": results.middle,
            "hidden": hidden,
        },
    }
    # The pool's keys are the columns' JSON already; they are joined, not encoded twice.
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return script_safe(f'{text[:-1]},"pool":[{",".join(pool)}]}}')


def _trials(tried: Tried) -> dict[str, Any]:
    known = [None if np.isnan(final) else float(f"{final:.6g}") for final in tried.finals]
    return {**asdict(tried), "finals": known}


def thinned(steps: NDArray[Any], points: int) -> NDArray[np.intp]:
    """At most ``points`` records of a run: half evenly in log step, half evenly in step, both ends kept.

    Depends on the steps alone, so the seeds of a line keep the same records.
    """
    if len(steps) <= points:
        return np.arange(len(steps))
    return _thinned(np.asarray(steps, dtype=np.int64).tobytes(), points)


@lru_cache(maxsize=256)  # most runs of a directory were recorded at the same steps
def _thinned(recorded: bytes, points: int) -> NDArray[np.intp]:
    steps = np.frombuffer(recorded, dtype=np.int64)
    half = points // 2
    last = float(steps[-1])
    wanted = np.concatenate(
        [
            np.geomspace(max(float(steps[1]), 1.0), last, half),
            np.linspace(float(steps[0]), last, points - half),
        ]
    )
    return np.unique(np.searchsorted(steps, wanted).clip(0, len(steps) - 1))


def _panel(
    panel: Panel, goal_metric: str | None, metrics: list[str], points: int, pool: dict[str, int]
) -> dict[str, Any]:
    goal = level(panel, goal_metric) if goal_metric is not None else None
    lines = []
    for line in panel.lines:
        entry: dict[str, Any] = {
            "method": line.method,
            "runs": [_run(run, metrics, points, pool) for run in line.runs],
        }
        if goal is not None and goal_metric is not None:
            spent = spent_until(line, goal_metric, goal).tolist()
            entry["reach"] = [None if np.isinf(calls) else [calls, inner] for calls, inner in spent]
        lines.append(entry)
    return {
        "problem": panel.problem,
        "batch": panel.batch,
        "title": panel.title,
        "goal": goal,
        "lines": lines,
    }


def _run(run: Run, metrics: list[str], points: int, pool: dict[str, int]) -> dict[str, Any]:
    kept = thinned(run.columns["step"], points)
    columns = {}
    for name in ("oracle_calls", "inner_steps", "epoch", "wall_time", *metrics):
        if name in run.columns:
            values = run.columns[name] if name in AXES else readings(run, name)
            text = _numbers(values[kept], exact=name in COUNTS)
            columns[name] = pool.setdefault(text, len(pool))
    calls = priced_calls(run.columns)[kept]
    whole = calls.astype(int) if (calls == calls.astype(int)).all() else calls
    columns["calls"] = pool.setdefault(_numbers(whole, exact=True), len(pool))
    return {
        "seed": run.manifest["seed"],
        "diverged": run.manifest["status"] == "diverged",
        "columns": columns,
    }


def _numbers(values: NDArray[Any], *, exact: bool) -> str:
    """Counts in full, measurements to six digits; null where nothing finite was recorded."""
    if exact:
        return json.dumps(values.tolist(), separators=(",", ":"))
    text = ",".join(["%.6g"] * values.size) % tuple(values.tolist())
    if not np.isfinite(values).all():
        text = re.sub("-?(nan|inf)", "null", text)
    return f"[{text}]"


def script_safe(text: str) -> str:
    """No ``</script>``, ``<!--`` or line separator of JavaScript can appear in the page's source."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
