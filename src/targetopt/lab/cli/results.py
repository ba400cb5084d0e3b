"""``targetopt report`` and ``targetopt status``: what a result directory says."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from targetopt.lab.cli.shared import clear_errors, console

Directory = Annotated[Path, typer.Argument(help="A result directory.")]


class Middle(StrEnum):
    """What curves are over seeds, in the order of :data:`targetopt.lab.report.lines.MIDDLES`."""

    median = "median"
    mean = "mean"


class Axis(StrEnum):
    """What curves are drawn against, in the order of :data:`targetopt.lab.report.lines.X_AXES`."""

    oracle_calls = "oracle_calls"
    inner_steps = "inner_steps"
    epoch = "epoch"
    wall_time = "wall_time"
    cost = "cost"


def report(
    directory: Directory,
    x: Annotated[
        Axis, typer.Option(help="What curves are drawn against; the page can change it.")
    ] = Axis.oracle_calls,
    tau: Annotated[
        float,
        typer.Option(min=1, max=1e4, help="Cost of an oracle call in inner steps, for --x cost."),
    ] = 100.0,
    middle: Annotated[
        Middle,
        typer.Option(
            help="What curves are over seeds (the paper has means); the page can change it."
        ),
    ] = Middle.median,
    figures: Annotated[
        bool, typer.Option(help="Draw the figures for print, which takes most of the time.")
    ] = True,
    all_figures: Annotated[
        bool,
        typer.Option("--all-figures", help="Draw all figures, however many panels that are."),
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Write the tables for LaTeX (booktabs), too.")
    ] = False,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Write words, tables and figures as report.pdf, too.")
    ] = False,
) -> None:
    """Write report.html, figures as png and pdf, and tables as csv.

    Examples:

        targetopt report results/grid

        targetopt report results/grid --no-figures

        targetopt report results/large --all-figures

        targetopt report results/grid --x cost --tau 1000

        targetopt report results/grid --middle mean

        targetopt report results/grid --latex --pdf
    """
    with clear_errors():
        from targetopt.lab.report import page as reporting

        path = reporting.write(
            directory,
            open_x=x.value,
            tau=tau,
            middle=middle.value,
            figures=figures,
            all_figures=all_figures,
            latex=latex,
            pdf=pdf,
        )
        console.print("Report:", Text(str(path.resolve())), soft_wrap=True, highlight=False)


def status(directory: Directory) -> None:
    """Show what is done, running and failed, with the reasons.

    Examples:

        targetopt status results/grid
    """
    with clear_errors():
        from targetopt.lab.store.status import describe

        console.print(describe(directory), soft_wrap=True)
