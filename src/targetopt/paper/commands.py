"""``targetopt reproduce``: the paper's figures from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from targetopt.bench.commands import (
    ExecutorName,
    Jobs,
    announce,
    app,
    clear_errors,
    conclude,
    console,
    terminated_like_interrupted,
)
from targetopt.bench.progress import display_for
from targetopt.paper import figures
from targetopt.paper.claims import in_order
from targetopt.paper.reproduce import Reproduction
from targetopt.paper.reproduce import reproduce as reproduce_figure
from targetopt.theory.figures import Scale as ScaleName

__all__ = ["app"]


@app.command()
def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="FIGURE...", help="Names of figures, or 'all'.")
    ],
    scale: Annotated[
        ScaleName, typer.Option(help="smoke: seconds; quick: minutes; paper: the paper's own.")
    ] = "quick",
    out: Annotated[
        Path | None,
        typer.Option(help="A directory for the figures. [default: results/SCALE]"),
    ] = None,
    jobs: Jobs = None,
    executor: Annotated[
        ExecutorName, typer.Option(help="This machine, or a Ray cluster (RAY_ADDRESS).")
    ] = ExecutorName.local,
) -> None:
    """Reproduce figures of the paper, with a verdict on each of their claims.

    `targetopt list figures` shows the names. Every figure gets a directory with its runs, report.html,
    figures and verdicts.json. What is finished is never run again: give the same command to go on.

    Examples:

        targetopt reproduce fig2-rcv1

        targetopt reproduce figA-sgd-constant-squared figA-sgd-constant-logistic --jobs 2

        targetopt reproduce all --scale paper --out results/paper
    """
    with clear_errors(), terminated_like_interrupted():
        wanted = figures.names() if "all" in names else tuple(dict.fromkeys(names))
        for name in wanted:
            figures.check(name)
        directory = out or Path("results") / scale
        unwell = False
        for name in in_order(wanted):
            done = reproduce_figure(
                name,
                directory,
                scale=scale,
                jobs=jobs,
                executor=executor.value,
                display=display_for(console),
                tell=announce,
            )
            if done.summary is not None:
                conclude(done.summary)
                unwell |= bool(done.summary.statuses.get("failed"))
            _show(done)
        if unwell:
            raise typer.Exit(1)


def _show(done: Reproduction) -> None:
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
