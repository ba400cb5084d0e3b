"""Run figures, judge their claims, write their reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from targetopt.bench import Store, expand, report, verdicts
from targetopt.bench.files import write_in_order, write_whole
from targetopt.bench.runner import Display, Summary
from targetopt.bench.runner import run as run_experiment
from targetopt.bench.spec import Experiment
from targetopt.bench.verdicts import Verdict
from targetopt.bench.work import settled
from targetopt.paper import claims, figures, page
from targetopt.theory.figures import FIGURES as THEORY
from targetopt.theory.figures import Scale as ScaleName


@dataclass(frozen=True)
class Reproduction:
    """What came of one figure.

    Attributes:
        figure: its name.
        directory: its results: ``report.html``, ``verdicts.json``, ``figures``, ``tables``, ``runs``.
        summary: how its runs ended; None for figures without runs, and where nothing had to be done.
        verdicts: on its claims.
        left_open: claims that could not be judged, with the reason.
    """

    figure: str
    directory: Path
    summary: Summary | None
    verdicts: list[Verdict] = field(default_factory=list)
    left_open: list[tuple[str, str]] = field(default_factory=list)


def reproduce(
    figure: str,
    out: Path,
    *,
    scale: ScaleName = "quick",
    jobs: int | None = None,
    executor: str = "local",
    display: Display | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Do what is missing of one figure in ``out/figure``, then judge it and write its report.

    Runs that other figures in ``out`` have done already are taken from them.

    Args:
        figure: one of :func:`targetopt.paper.figures.names`.
        out: the directory of all figures.
        scale: ``"smoke"``, ``"quick"`` or ``"paper"``.
        jobs, executor, display: as in :func:`targetopt.bench.run`.
        tell: told in sentences what is going on.
    """
    figures.check(figure)
    if figure in THEORY:
        return _theory(figure, out, scale, tell)
    directory = out / figure
    loaded = figures.load(figure, scale)
    tell(f"{loaded.experiment.name}: results go to {directory}")
    for wanted, taken in loaded.stand_ins.items():
        tell(
            f"  {wanted} is not on this machine and cannot be downloaded: {taken} stands in for it, "
            "and is named so wherever it is shown."
        )
    adopted = _adopt(loaded.experiment, out, directory)
    if adopted:
        tell(f"  {adopted} runs were done for other figures and are taken from there.")
    summary = run_experiment(
        loaded.experiment, directory, jobs=jobs, executor=executor, display=display
    )
    if summary.interrupted:
        return Reproduction(figure, directory, summary)
    judged = claims.judge_figure(out, figure)
    verdicts.write(directory, judged.verdicts)
    report.write(directory)
    return Reproduction(figure, directory, summary, judged.verdicts, judged.left_open)


def _adopt(experiment: Experiment, out: Path, directory: Path) -> int:
    """Copy runs of the experiment that figures beside this one have finished; say how many."""
    here = Store(directory)
    here.prepare()
    beside = [Store(out / name) for name in figures.names() if out / name != directory]
    adopted = 0
    for config in expand(experiment):
        if here.manifest(config.id) is not None or not here.claims.take(config.id):
            continue
        try:
            for other in beside:
                if settled(other.manifest(config.id), None):
                    pair = [
                        (here.metrics_path(config.id), other.metrics_path(config.id).read_bytes()),
                        (
                            here.manifest_path(config.id),
                            other.manifest_path(config.id).read_bytes(),
                        ),
                    ]
                    write_in_order(pair)
                    adopted += 1
                    break
        finally:
            here.claims.release(config.id)
    return adopted


def _theory(figure: str, out: Path, scale: ScaleName, tell: Callable[[str], None]) -> Reproduction:
    """Theory figures have no runs to resume: they are done as a whole, once for each scale."""
    directory = out / figure
    done = directory / "done.json"
    title = f"{figure} · {figures.title(figure)} ({scale} scale)"
    tell(f"{title}: results go to {directory}")
    if not done.exists() or json.loads(done.read_text(encoding="utf-8"))["scale"] != scale:
        directory.mkdir(parents=True, exist_ok=True)
        done.unlink(missing_ok=True)
        found = THEORY[figure](directory, scale)
        verdicts.write(directory, [Verdict(**verdict) for verdict in found])
        page.write(directory, title)
        write_whole(done, json.dumps({"scale": scale}).encode())
    return Reproduction(figure, directory, None, verdicts.read(directory))
