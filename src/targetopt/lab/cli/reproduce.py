"""``targetopt reproduce``: the paper's figures from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from targetopt.errors import BadArgument
from targetopt.lab.cli.shared import (
    DryRun,
    Executor,
    ExecutorName,
    Jobs,
    announce,
    clear_errors,
    conclude,
    console,
    foresee,
    interruptible,
    stopped,
)
from targetopt.lab.studies.scales import ScaleName

if TYPE_CHECKING:
    from targetopt.lab.studies.paper.reproduce import Reproduction


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE...", help="Names of figures; all, supervised, imitation, theory."
        ),
    ],
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: seconds; quick: minutes; paper: the paper's own.")
    ] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(
            help="A directory for the figures. [default: runs/SCALE, or runs/SCALE-twins]"
        ),
    ] = None,
    twins: Annotated[
        bool,
        typer.Option(
            "--twins",
            help="Take synthetic twins of all data sets: the same everywhere, with nothing to download.",
        ),
    ] = False,
    jobs: Jobs = None,
    executor: Executor = ExecutorName.local,
    dry_run: DryRun = False,
    published: Annotated[
        Path | None,
        typer.Option(
            "--publish", help="Also write curves, figures and a README.md to this folder."
        ),
    ] = None,
) -> None:
    """Reproduce figures of the paper, with a verdict on each of their claims.

    `targetopt list figures` shows the names. Every figure gets a directory with report.html, figures and
    verdicts.json; their runs lie together, and one that several figures show is done once. What is
    finished is never run again: give the same command to go on.

    Examples:

        targetopt reproduce fig2-rcv1

        targetopt reproduce figA-sgd-constant-squared figA-sgd-constant-logistic --jobs 2

        targetopt reproduce supervised --scale paper --dry-run

        targetopt reproduce supervised --scale paper --out runs/paper --publish results

        targetopt reproduce fig2-rcv1 --twins
    """
    with clear_errors(), interruptible():
        from targetopt.lab.run.progress import ShownRuns
        from targetopt.lab.studies.paper import figures
        from targetopt.lab.studies.paper.publish import publish
        from targetopt.lab.studies.paper.reproduce import GROUPS, assign
        from targetopt.lab.studies.paper.reproduce import reproduce as reproduce_figures

        wanted = tuple(dict.fromkeys(name for word in names for name in GROUPS.get(word, [word])))
        for name in wanted:
            figures.check(name)
        directory = out or Path("runs") / (f"{scale}-twins" if twins else scale)
        if dry_run:
            plans = assign(wanted, directory, scale, twins=twins)
            for plan in plans.values():
                plan.store.home = directory
            foresee(plans)
            announce(
                "A run that several figures show is counted, and timed, for the first of them."
            )
            return
        found = reproduce_figures(
            wanted,
            directory,
            scale=scale,
            twins=twins,
            jobs=jobs,
            executor=executor.value,
            display=ShownRuns(console),
            tell=announce,
        )
        unwell = False
        if any(done.summary is not None and done.summary.interrupted for done in found):
            stopped(_finished(found))
        for done in found:
            if done.summary is not None:
                conclude(done.summary)
                unwell |= bool(done.summary.statuses.get("failed"))
            _show(done)
        if published is not None:
            announce(f"Published: {publish(found, published, scale=scale, few=twins).resolve()}")
        if unwell:
            raise typer.Exit(1)


def judge(
    folder: Annotated[Path, typer.Argument(help="A folder that --publish has written.")],
) -> None:
    """Judge the paper's claims anew, from published curves alone.

    Reads FOLDER/FIGURE/curves.parquet and facts.json, and writes verdicts.json and README.md of every figure and the
    README.md of all. It needs neither data sets nor simulators, and takes seconds.

    Examples:

        targetopt judge results
    """
    with clear_errors():
        from targetopt.lab.studies.paper.publish import judge_anew

        if not folder.is_dir():
            raise BadArgument(
                f"folder={str(folder)!r} is no directory: give one that --publish has written."
            )
        announce(f"Judged: {judge_anew(folder).resolve()}")


def _finished(found: Sequence[Reproduction]) -> str:
    """How far each figure is; a run that several show counts for all of them."""
    parts = [
        f"{done.figure}: {done.summary.total - done.summary.left} of {done.summary.total}"
        for done in found
        if done.summary is not None
    ]
    return f"Finished runs are kept ({'; '.join(parts)}); unfinished ones go on from their checkpoints."


def _show(done: Reproduction) -> None:
    from targetopt.lab.studies.paper import figures

    announce(f"{done.figure}: {figures.title(done.figure)}")
    judged = [verdict for verdict in done.verdicts if verdict.verdict != "not judged"]
    if judged:
        table = Table("verdict", "claim", "share", "n", box=None)
        for verdict in judged:
            share = verdict.numbers.get("share")
            shown = f"{share:.2f}" if isinstance(share, float) else ""
            table.add_row(verdict.verdict, Text(verdict.claim), shown, str(verdict.n))
        console.print(table)
    for verdict in done.verdicts:
        if verdict not in judged:
            announce(f"  not judged: {verdict.claim}: {verdict.test}")
    announce(f"Report: {(done.directory / 'report.html').resolve()}")
