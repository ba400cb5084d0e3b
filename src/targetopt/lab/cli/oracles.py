"""``targetopt oracles``: the study of expensive oracles."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

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
    group,
    interruptible,
)

app = group()


class ScaleName(StrEnum):
    """How much of the study is run."""

    smoke = "smoke"
    quick = "quick"
    full = "full"


Out = Annotated[Path | None, typer.Option(help="A directory. [default: runs/oracles-SCALE]")]
Publish = Annotated[
    Path | None, typer.Option("--publish", help="Write the page and its pictures to this folder.")
]
Scale = Annotated[
    ScaleName,
    typer.Option(help="smoke: a rehearsal; quick: half an hour; full: every arm, in sittings."),
]


@app.callback()
def oracles() -> None:
    """Which method needs the fewest calls of an expensive oracle, and at which price it pays."""


@app.command()
def run(
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="TASK...", help="Names of tasks; all if left out.")
    ] = None,
    scale: Scale = ScaleName.quick,
    out: Out = None,
    jobs: Jobs = None,
    executor: Executor = ExecutorName.local,
    time_limit: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds that one run may take.")
    ] = None,
    parts: Annotated[
        bool,
        typer.Option(
            help="Also run what is shown with fewer seeds, such as ablations; it can be added later."
        ),
    ] = True,
    dry_run: DryRun = False,
) -> None:
    """Run the study: trials until every setting is chosen, then what is shown.

    What is finished is never run again: give the same command to go on.

    Examples:

        targetopt oracles run --scale smoke

        targetopt oracles run mbb-beam conductivity --jobs 2

        targetopt oracles run --scale full --dry-run

        targetopt oracles run --scale full --out runs/oracles
    """
    with clear_errors(), interruptible():
        from targetopt.lab.run.progress import ShownRuns
        from targetopt.lab.studies.oracles import page, study

        directory = out or Path("runs") / f"oracles-{scale.value}"
        if dry_run:
            plans = study.foreseen(
                directory,
                scale=scale.value,
                wanted=tuple(tasks or ()),
                parts=parts,
                tell=announce,
            )
            named = {"/".join(place): plan for place, plan in plans.items()}
            foresee(named, time_limit, row=lambda name: name.split("/")[0])
            announce("Lists of settings grow until the best value lies inside, which adds trials.")
            return
        summaries = study.run(
            directory,
            scale=scale.value,
            wanted=tuple(tasks or ()),
            jobs=jobs,
            executor=executor.value,
            time_limit=time_limit,
            parts=parts,
            display=ShownRuns(console),
            tell=announce,
        )
        for summary in summaries:
            conclude(summary)
        if not summaries:
            raise KeyboardInterrupt
        announce(f"Report: {page.write(directory).resolve()}")


@app.command()
def report(
    directory: Annotated[
        Path | None, typer.Argument(help="The study's directory. [default: runs/oracles-SCALE]")
    ] = None,
    scale: Scale = ScaleName.quick,
    publish: Publish = None,
) -> None:
    """Judge the runs of a study again and redraw everything from them.

    Problems that were published in the folder before, at the same scale, and are not in this directory stay on its
    page: a long study can be run in sittings on several machines, a few problems in each.

    Examples:

        targetopt oracles report runs/oracles-quick

        targetopt oracles report runs/oracles-full --publish results/oracles-full
    """
    with clear_errors():
        from targetopt.lab.studies.oracles import page

        found = directory or Path("runs") / f"oracles-{scale.value}"
        announce(f"Report: {page.write(found, publish).resolve()}")


@app.command(name="list")
def list_() -> None:
    """List the tasks of the study.

    Examples:

        targetopt oracles list
    """
    with clear_errors():
        from rich.table import Table

        from targetopt.lab.studies.oracles.suite import tasks

        table = Table("task", "what it is", "a call is", box=None)
        for task in tasks():
            table.add_row(task.name, task.title, task.oracle)
        console.print(table, soft_wrap=True)
