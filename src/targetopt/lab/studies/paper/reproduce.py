"""Run figures, judge their claims, write their reports."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from targetopt.lab import Store
from targetopt.lab.report import page as report
from targetopt.lab.run.plan import Plan, Summary
from targetopt.lab.run.runner import Display, run_all
from targetopt.lab.statistics import verdicts
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.store import provenance
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.imitation import claims as oil_claims
from targetopt.lab.studies.imitation import pictures as oil_pictures
from targetopt.lab.studies.paper import claims, figures, page
from targetopt.lab.studies.scales import ScaleName
from targetopt.lab.studies.theory.figures import FIGURES as THEORY

GROUPS = {
    "all": figures.names(),
    "supervised": tuple(claims.CLAIMS),
    "imitation": tuple(oil_claims.CLAIMS),
    "theory": tuple(THEORY),
}
"""Words that stand for several figures."""


@dataclass(frozen=True)
class Reproduction:
    """What came of one figure.

    Attributes:
        figure: its name.
        directory: its report, its verdicts and its figures; its runs are beside it, for all figures.
        summary: how its runs ended; None for figures without runs.
        verdicts: on its claims, those included that could not be judged.
    """

    figure: str
    directory: Path
    summary: Summary | None
    verdicts: list[Verdict] = field(default_factory=list)


def reproduce(
    wanted: Sequence[str],
    out: Path,
    *,
    scale: ScaleName = "quick",
    jobs: int | None = None,
    executor: str = "local",
    twins: bool = False,
    display: Display | None = None,
    draw: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Reproduction]:
    """Do what is missing of the figures in ``out``, then judge them and write their reports.

    A run that several figures have in common is done once: all runs lie in ``out/runs``. Cheap data
    sets come first. After an interruption nothing is judged.

    Args:
        wanted: some of :func:`targetopt.lab.studies.paper.figures.names`.
        out: the directory of all figures.
        scale: ``"smoke"``, ``"quick"`` or ``"paper"``.
        twins: whether to take the synthetic twin of every data set, as whoever has no data does.
        jobs, executor, display: as in :func:`targetopt.lab.run`.
        draw: whether reports come with all their figures for print, which take most of the time once runs are
            done; without them, imitation has those that the paper shows.
        tell: told in sentences what is going on.
    """
    plans = assign(wanted, out, scale, tell, twins=twins)
    for plan in plans.values():
        plan.store.share(out)
    summaries = run_all(
        list(plans.values()),
        jobs=jobs,
        executor=executor,
        display=display,
        order=lambda run: figures.rank(run.problem["name"]),
    )
    found = []
    for name, summary in zip(plans, summaries, strict=True):
        directory = out / name
        if summary.interrupted:
            found.append(Reproduction(name, directory, summary))
            continue
        tell(f"{name}: judging its claims, drawing, writing its report …")
        judged = claims.judge_figure(out, name)
        verdicts.write(directory, judged)
        own = name in oil_claims.CLAIMS
        pictures = oil_pictures.draw(directory, name, tell, further=draw) if own else []
        report.write(directory, further=pictures, figures=draw)
        found.append(Reproduction(name, directory, summary, judged))
    if not any(summary.interrupted for summary in summaries):
        found += [_theory(name, out, scale, tell) for name in wanted if name in THEORY]
    return found


def assign(
    wanted: Sequence[str],
    out: Path,
    scale: str,
    tell: Callable[[str], None] = lambda text: None,
    *,
    twins: bool = False,
) -> dict[str, Plan]:
    """The grids of those figures that have runs, compared ones first, with their directories."""
    for name in wanted:
        figures.check(name)
    plans = {}
    for name in claims.in_order([name for name in wanted if name not in THEORY]):
        loaded = figures.load(name, scale, twins=twins)
        tell(f"{loaded.experiment.name}: results go to {out / name}")
        for missing, taken in loaded.stand_ins.items():
            why = (
                "Twins are asked for"
                if twins
                else f"{missing} is not on this machine and cannot be downloaded"
            )
            tell(f"  {why}: {taken} stands in for {missing}, and is named so wherever it is shown.")
        plans[name] = Plan(loaded.experiment, Store(out / name))
    return plans


def _theory(figure: str, out: Path, scale: ScaleName, tell: Callable[[str], None]) -> Reproduction:
    """Theory figures have no runs to resume: they are done as a whole, once for each scale."""
    directory = out / figure
    done = directory / "done.json"
    title = f"{figure} · {figures.title(figure)} ({scale} scale)"
    tell(f"{title}: results go to {directory}")
    if not done.exists() or json.loads(done.read_text(encoding="utf-8"))["scale"] != scale:
        directory.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        stamp: dict[str, Any] = {
            "scale": scale,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": provenance.commit(),
            "machine": provenance.machine(),
            "versions": provenance.versions(),
        }
        before = time.process_time()
        found = THEORY[figure](directory, scale)
        verdicts.write(directory, found)
        page.write(directory, title)
        stamp["cpu_time"] = time.process_time() - before
        write_whole(done, json.dumps(stamp, indent=1).encode())
    return Reproduction(figure, directory, None, verdicts.read(directory))
