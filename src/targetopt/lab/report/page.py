"""The report of a result directory: one page that opens from disk, figures and tables beside it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from targetopt.lab.report import (
    answer,
    document,
    lines,
    multiples,
    payload,
    plots,
    sensitivity,
)
from targetopt.lab.report import latex as to_latex
from targetopt.lab.report.lines import ReportError, Results
from targetopt.lab.report.plots import Picture
from targetopt.lab.run import tuning
from targetopt.lab.statistics import pairwise, summary, verdicts
from targetopt.lab.store.files import write_whole

_ASSETS = Path(__file__).with_name("assets")
COLUMNS = 5
"""Panels side by side in a table of the PDF."""


@lru_cache
def _template() -> jinja2.Template:
    """Compiled once, however many reports are written."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration)
    return environment.get_template("report.html.j2")


def write(
    directory: str | Path,
    *,
    open_x: str = "oracle_calls",
    tau: float = 100.0,
    middle: lines.Middle = "median",
    further: Sequence[Picture] = (),
    figures: bool = True,
    all_figures: bool = False,
    latex: bool = False,
    pdf: bool = False,
) -> Path:
    """Write ``report.html``, ``figures/*.png|pdf`` and ``tables/*.csv`` into a result directory.

    The page holds everything it shows: it needs no network, no server and none of the other files.
    Runs that have not ended are counted, not drawn; write the report again as they come in.

    Args:
        directory: what ``targetopt run`` wrote to.
        open_x: the x-axis of the figures, and of the page when it opens: ``oracle_calls``,
            ``inner_steps``, ``epoch``, ``wall_time`` or ``cost``, which is
            (oracle_calls + ½ value_calls) · τ + inner_steps.
        tau: τ, the cost of one oracle call in inner steps, from 1 to 10 000.
        middle: what curves are over seeds, in the figures and in the page when it opens: ``median``, or ``mean``
            as in the paper.
        further: pictures that lie in ``figures`` already, to be listed before the others.
        figures: whether to draw the figures for print, which takes most of the time.
        all_figures: whether to draw all of them, however many panels that are.
        latex: whether to write the tables for LaTeX, too: ``tables/*.tex``.
        pdf: whether to write the whole as ``report.pdf``, too: words, tables and figures.

    Returns:
        The path of the page.
    """
    if open_x not in lines.X_AXES:
        raise ReportError(f"open_x={open_x!r} must be one of {', '.join(lines.X_AXES)}.")
    if not 1 <= tau <= 1e4:
        raise ReportError(f"tau={tau!r} must lie between 1 and 10000, as the page's slider does.")
    if middle not in lines.MIDDLES:
        raise ReportError(f"middle={middle!r} must be one of {', '.join(lines.MIDDLES)}.")
    results = replace(lines.gather(directory), middle=middle)
    spec = _spec(results.directory)
    judged = verdicts.read(results.directory)
    finals = {
        metric: [summary.panel_finals(panel, metric) for panel in results.panels]
        for metric in results.metrics
    }
    standings = summary.standings(results, next(iter(finals.values()), []))
    first = results.metrics[0] if results.metrics else None
    compared = sorted(row.method for row in standings[: pairwise.MOST])
    pairs = [] if first is None else pairwise.compare(results, compared, first)
    tables = summary.write_tables(results, finals, pairs, axis=open_x, tau=tau)
    if latex:
        tables += to_latex.write(results, finals, standings, pairs)
    choices = tuning.read(results.directory)
    tried = sensitivity.lines(results, choices)
    title, words = _title(results, spec), answer.sentences(results)
    drawn = plots.Drawn([], [])
    with contextlib.ExitStack() as stack:
        also = None
        if pdf:
            pages = stack.enter_context(document.written(results.directory / "report.pdf"))
            _write_words(pages, results, title, words, standings, finals)
            also = pages.add
        if figures:
            most = math.inf if all_figures else plots.MOST_PANELS
            drawn = plots.draw_all(results, axis=open_x, tau=tau, most=most, tried=tried, also=also)
    pictures = [*further, *drawn.pictures]
    script = "\n".join((_ASSETS / name).read_text("utf-8") for name in ("chart.js", "report.js"))
    page = _template().render(
        results=results,
        title=title,
        answer=words,
        statuses=Counter(manifest["status"] for manifest in _distinct_runs(results)),
        standings=standings,
        pairs={(each.row, each.column): each for each in pairs},
        compared=[index for index in compared if any(each.row == index for each in pairs)],
        pdf=pdf,
        finals=finals,
        facts=_facts(results),
        spec=spec,
        failures=_failures(results),
        judged=judged,
        pictures=pictures,
        left_out=drawn.left_out,
        redraw=f"targetopt report {shlex.quote(str(directory))} --all-figures",
        choices=choices,
        tried=tried,
        tables=tables,
        style=(_ASSETS / "report.css").read_text("utf-8"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        payload=payload.embed(results, axis=open_x, tau=tau, tried=tried),
    )
    path = results.directory / "report.html"
    write_whole(path, page.encode())
    return path


def number(value: float | None, digits: int = 3) -> str:
    """A number as tables show it.

    >>> number(0.052341), number(1.5e-7), number(float("inf")), number(12345.0)
    ('0.0523', '1.5·10⁻⁷', '∞', '12300')
    """
    if value is None or np.isnan(value):
        return "–"
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        shown = f"{value:.{digits}g}"
        text = f"{float(shown):.0f}" if "e" in shown else shown
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{float(mantissa):g}·10{multiples.superscript(int(exponent))}"
    return text.replace("-", "−")


def duration(seconds: float) -> str:
    """Seconds in the unit people would say them in.

    >>> duration(0.25), duration(75), duration(7300)
    ('0.25 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"


def _write_words(
    pages: document.Pages,
    results: Results,
    title: str,
    words: Sequence[str],
    standings: Sequence[summary.Standing],
    finals: Mapping[str, Sequence[Mapping[int, summary.Final]]],
) -> None:
    """What the PDF begins with: the answer, what was run, ranks and final values."""
    facts = [f"{name}: {'; '.join(values)}" for name, values in _facts(results)]
    pages.text(title, [*words, "", *facts])
    labels = [method.label for method in results.methods]
    rows = [
        [labels[row.method], number(row.rank), f"{row.wins} of {row.panels}"] for row in standings
    ]
    pages.table("Methods by their mean rank", ["method", "mean rank", "best on"], rows)
    for metric, per_panel in finals.items():
        for begin in range(0, len(per_panel), COLUMNS):
            part = per_panel[begin : begin + COLUMNS]
            head = ["method", *(panel.title for panel in results.panels[begin : begin + COLUMNS])]
            rows = [
                [label, *(number(table[i].iqm) if i in table else "–" for table in part)]
                for i, label in enumerate(labels)
            ]
            pages.table(f"Final {plots.words(metric)}, interquartile mean over seeds", head, rows)


def _title(results: Results, spec: str | None) -> str:
    """The specification's name, or the directory's."""
    name = None
    if spec is not None:
        with contextlib.suppress(tomllib.TOMLDecodeError):
            name = tomllib.loads(spec).get("name")
    return str(name or results.directory.resolve().name)


def _failures(results: Results) -> list[tuple[str, str, str, dict[str, list[int]]]]:
    """Runs that did not end well: status, method, panel, and reasons with the seeds they struck."""
    found: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for panel, line in results.drawn():
        for run in line.ended:
            status = run.manifest["status"]
            if status != "done":
                key = (status, results.methods[line.method].label, panel.title)
                reason = str(run.manifest.get("reason") or "no reason given")
                found.setdefault(key, {}).setdefault(reason, []).append(run.manifest["seed"])
    return [(*key, reasons) for key, reasons in found.items()]


def _facts(results: Results) -> list[tuple[str, list[str]]]:
    """What was run and on what; a fact that differs between runs is listed once per value."""
    manifests = _distinct_runs(results)
    total = sum(float(m.get("duration") or 0.0) for m in manifests)
    counted = ("oracle_calls", "inner_steps")
    spent = {c: sum(int(m.get("counts", {}).get(c) or 0) for m in manifests) for c in counted}
    started = sorted(str(m["started"]) for m in manifests if m.get("started"))
    facts = [
        ("Problems", results.problems),
        ("Batch sizes", results.batches),
        ("Seeds", [", ".join(str(s) for s in sorted({m["seed"] for m in manifests}))]),
        ("Epochs", _distinct(m.get("epochs") for m in manifests)),
        ("Compute", [f"{duration(total)} over {len(manifests)} runs"]),
        ("Oracle calls", [f"{spent['oracle_calls']:,} in all"]),
        ("Inner steps", [f"{spent['inner_steps']:,} in all"]),
        ("Started", [" … ".join(dict.fromkeys((started[0], started[-1])))] if started else []),
        ("Versions", _distinct(_pairs(m.get("versions")) for m in manifests)),
        ("Commit", _distinct(m.get("commit") for m in manifests)),
        ("Machine", _distinct(_pairs(m.get("machine")) for m in manifests)),
    ]
    return [(name, values) for name, values in facts if values]


def _distinct_runs(results: Results) -> list[Mapping[str, Any]]:
    """Manifests, each run once: one may be shown as several methods, by itself and as the tuned one."""
    return list({run.manifest["id"]: run.manifest for run in results.runs}.values())


def _distinct(values: Iterable[object]) -> list[str]:
    counts = Counter(str(value) for value in values if value not in (None, ""))
    if len(counts) < 2:
        return list(counts)
    return [f"{value} ({n} runs)" for value, n in counts.most_common()]


def _pairs(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return str(entry or "")
    return ", ".join(f"{key} {value}" for key, value in entry.items())


def _spec(directory: Path) -> str | None:
    path = directory / "spec.toml"
    return path.read_text("utf-8", errors="replace") if path.exists() else None
