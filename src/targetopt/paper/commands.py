"""``targetopt reproduce``: the paper's figures from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from targetopt.bench.commands import (
    DryRun,
    ExecutorName,
    Jobs,
    announce,
    app,
    clear_errors,
    conclude,
    console,
    foresee,
    stopped,
    terminated_like_interrupted,
)
from targetopt.bench.progress import display_for
from targetopt.paper import figures, oil_claims
from targetopt.paper.claims import CLAIMS
from targetopt.paper.publish import publish
from targetopt.paper.reproduce import Reproduction, assign
from targetopt.paper.reproduce import reproduce as reproduce_figures
from targetopt.theory.figures import FIGURES as THEORY
from targetopt.theory.figures import Scale as ScaleName

__all__ = ["app"]


GROUPS = {
    "all": figures.names(),
    "supervised": tuple(CLAIMS),
    "imitation": tuple(oil_claims.CLAIMS),
    "theory": tuple(THEORY),
}
"""Words that stand for several figures."""


@app.command()
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
        typer.Option(help="A directory for the figures. [default: runs/SCALE]"),
    ] = None,
    jobs: Jobs = None,
    executor: Annotated[
        ExecutorName, typer.Option(help="This machine, or a Ray cluster (RAY_ADDRESS).")
    ] = ExecutorName.local,
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
    """
    with clear_errors(), terminated_like_interrupted():
        wanted = tuple(dict.fromkeys(name for word in names for name in GROUPS.get(word, [word])))
        for name in wanted:
            figures.check(name)
        directory = out or Path("runs") / scale
        if dry_run:
            assignments = assign(wanted, directory, scale)
            for assignment in assignments.values():
                assignment.store.home = directory
            foresee(assignments)
            announce(
                "A run that several figures show is counted, and timed, for the first of them."
            )
            return
        found = reproduce_figures(
            wanted,
            directory,
            scale=scale,
            jobs=jobs,
            executor=executor.value,
            display=display_for(console),
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
            announce(f"Published: {publish(found, published, scale=scale).resolve()}")
        if unwell:
            raise typer.Exit(1)


def _finished(found: Sequence[Reproduction]) -> str:
    """How far each figure is; a run that several show counts for all of them."""
    parts = [
        f"{done.figure}: {done.summary.total - done.summary.left} of {done.summary.total}"
        for done in found
        if done.summary is not None
    ]
    return f"Runs ({'; '.join(parts)})"


def _show(done: Reproduction) -> None:
    announce(f"{done.figure}: {figures.title(done.figure)}")
    if done.verdicts:
        table = Table("verdict", "claim", "share", "n", box=None)
        for verdict in done.verdicts:
            share = verdict.numbers.get("share")
            shown = f"{share:.2f}" if isinstance(share, float) else ""
            table.add_row(verdict.verdict, Text(verdict.claim), shown, str(verdict.n))
        console.print(table)
    for claim, reason in done.left_open:
        announce(f"  not judged: {claim}: {reason}")
    announce(f"Report: {(done.directory / 'report.html').resolve()}")
