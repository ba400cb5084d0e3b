"""The commands of ``targetopt``: each reads its arguments, calls the library, shows what came."""

import shlex
import signal
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, get_args

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from targetopt import problems
from targetopt.bench import demo as demonstration
from targetopt.bench import status as progress_report
from targetopt.bench.campaign import Assignment, Summary
from targetopt.bench.document import SpecError
from targetopt.bench.economy import economy, total
from targetopt.bench.methods import METHODS, InnerName, Method, ScheduleName
from targetopt.bench.named_rules import RULES
from targetopt.bench.progress import display_for, named, spoken
from targetopt.bench.runner import run as run_experiment
from targetopt.bench.spec import Experiment
from targetopt.bench.store import Store
from targetopt.problems import data_cli
from targetopt.problems.imitation import commands as imitation
from targetopt.types import TargetoptError

app = typer.Typer(
    name="targetopt",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train models whose gradients are expensive; compare, plot and reproduce.\n\n"
    "Begin with: targetopt demo",
)
app.add_typer(data_cli.app, name="data")
app.add_typer(imitation.app, name="expert")

console = Console()
errors = Console(stderr=True)

Out = Annotated[Path | None, typer.Option(help="Result directory; made if it is not there.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. [default: all cores]")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say how many runs there are and what they will take.")
]


class Axis(StrEnum):
    """What curves are drawn against, in the order of :data:`targetopt.bench.lines.X_AXES`."""

    oracle_calls = "oracle_calls"
    inner_steps = "inner_steps"
    epoch = "epoch"
    wall_time = "wall_time"
    cost = "cost"


class ExecutorName(StrEnum):
    """Where runs happen."""

    local = "local"
    ray = "ray"


class What(StrEnum):
    """What can be listed."""

    problems = "problems"
    methods = "methods"
    figures = "figures"


@contextmanager
def clear_errors() -> Iterator[None]:
    """Errors that are meant for people end the command with their text, not with a traceback."""
    try:
        yield
    except SpecError as error:
        errors.print(Text(str(error)), soft_wrap=True)
        raise typer.Exit(2) from None
    except (TargetoptError, FileNotFoundError, ModuleNotFoundError) as error:
        errors.print(Text(f"Error: {error}"), soft_wrap=True)
        raise typer.Exit(1) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Result directory.")] = Path("targetopt-demo"),
    jobs: Jobs = None,
    seeds: Annotated[int, typer.Option(min=1, help="Random seeds per method.")] = 2,
) -> None:
    """Compare SSO with its rivals on embedded data, and write a report.

    About a minute on two cores; needs no network. Interrupted, it goes on where it was.

    Examples:

        targetopt demo

        targetopt demo --seeds 3 --jobs 4 --out my-demo
    """
    with clear_errors(), terminated_like_interrupted():
        experiment = demonstration.experiment(seeds)
        announce(f"{experiment.name}: results go to {out}")
        summary = run_experiment(experiment, out, jobs=jobs, display=display_for(console))
        conclude(summary)
        for table in demonstration.tables(out):
            console.print(table)
        announce(
            "Medians over seeds at the end of each run. Columns: oracle calls (the same for all), "
            "value calls (losses\nwithout gradients), inner steps (updates of the parameters), seconds."
        )
        report(out)


@app.command()
def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to compare.")],
    out: Out = None,
    jobs: Jobs = None,
    executor: Annotated[
        ExecutorName, typer.Option(help="This machine, or a Ray cluster (RAY_ADDRESS).")
    ] = ExecutorName.local,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that one run may take, its data loaded."),
    ] = None,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0.0, help="How often a long run keeps a checkpoint.")
    ] = 30.0,
    only: Annotated[
        list[str] | None, typer.Option(help="Id of a run to do, or its beginning; may be repeated.")
    ] = None,
    track: Annotated[
        list[str] | None, typer.Option(help="Log to a tracker too, e.g. tensorboard.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Run every problem × method × seed of SPEC.toml.

    What is finished is never run again: give the same command to go on after an interruption or
    to try failed runs once more. Several runners may share one directory.

    Examples:

        targetopt run examples/quickstart.toml

        targetopt run grid.toml --dry-run

        targetopt run grid.toml --jobs 8 --out results/grid --time-limit 600

        targetopt run grid.toml --executor ray --out /shared/grid

        targetopt run results/grid/spec.toml --only 3f2a9c --out redo
    """
    with clear_errors(), terminated_like_interrupted():
        experiment = Experiment.read(spec)
        directory = out or Path("results") / spec.stem
        if dry_run:
            assignment = Assignment(experiment, Store(directory), tuple(only or ()))
            foresee({experiment.name: assignment}, time_limit)
            return
        announce(f"{experiment.name}: results go to {directory}")
        summary = run_experiment(
            experiment,
            directory,
            jobs=jobs,
            executor=executor.value,
            time_limit=time_limit,
            checkpoint_seconds=checkpoint_seconds,
            only=tuple(only or ()),
            trackers=tuple(track or ()),
            display=display_for(console),
        )
        conclude(summary)
        announce(f"Next: targetopt report {shlex.quote(str(directory))}")
        if summary.statuses.get("failed") or summary.statuses.get("timeout"):
            raise typer.Exit(1)


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="A result directory.")],
    x: Annotated[
        Axis, typer.Option(help="What curves are drawn against; the page can change it.")
    ] = Axis.oracle_calls,
    tau: Annotated[
        float,
        typer.Option(min=1, max=1e4, help="Cost of an oracle call in inner steps, for --x cost."),
    ] = 100.0,
) -> None:
    """Write report.html, figures as png and pdf, and tables as csv.

    Examples:

        targetopt report results/grid

        targetopt report results/grid --x cost --tau 1000
    """
    from targetopt.bench import report as reporting

    with clear_errors():
        path = reporting.write(directory, open_x=x.value, tau=tau)
        console.print("Report:", Text(str(path.resolve())), soft_wrap=True, highlight=False)


@app.command()
def status(directory: Annotated[Path, typer.Argument(help="A result directory.")]) -> None:
    """Show what is done, running and failed, with the reasons.

    Examples:

        targetopt status results/grid
    """
    with clear_errors():
        console.print(progress_report.describe(directory), soft_wrap=True)


@app.command("list")
def list_(
    what: Annotated[What | None, typer.Argument(help="One kind; all if left out.")] = None,
) -> None:
    """List the problems, methods and figures that specifications and commands can name.

    Examples:

        targetopt list

        targetopt list methods
    """
    tables: dict[What, Callable[[], RenderableType]] = {
        What.problems: _problem_table,
        What.methods: _method_table,
        What.figures: _figures,
    }
    with clear_errors():
        for kind in [what] if what else list(What):
            console.print(tables[kind](), soft_wrap=True)


app.command()(imitation.film)


def _problem_table() -> Table:
    table = Table("problem", "what it is", "options", box=None)
    for name in problems.names():
        declared = problems.declaration(name)
        options = ", ".join(f"{key}={item.default!r}" for key, item in declared.options.items())
        table.add_row(name, declared.description, options)
    return table


def _method_table() -> Group:
    def options(method: type[Method], besides: Container[str] = ()) -> str:
        fields = method.model_fields.items()
        return ", ".join(f"{key}={item.default!r}" for key, item in fields if key not in besides)

    table = Table("method", "what it is", "options", box=None)
    for name, method in METHODS.items():
        table.add_row(name, method.about, options(method, besides=Method.model_fields))
    choices = {
        "every method": options(Method),
        "rule": ", ".join(RULES),
        "inner": ", ".join(get_args(InnerName)),
        "schedule": ", ".join(get_args(ScheduleName)),
    }
    return Group(table, "", *(f" {what}: {known}" for what, known in choices.items()))


def _figures() -> str:
    from targetopt.paper import figures  # it builds on this module, so not above

    rows = [f"  {name:<30} {figures.title(name)}" for name in figures.names()]
    return "\n".join(["figures: targetopt reproduce NAME", *rows])


def announce(text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def foresee(assignments: Mapping[str, Assignment], time_limit: float | None = None) -> None:
    """How many runs there are, how many are done, and what the others will take."""
    announce("Counting the runs, and making a few steps of each kind …")
    costs = economy(assignments, time_limit)
    several = len(costs) > 1  # which may have runs in common
    table = Table("experiment", "runs", *["of its own"] * several, "done", "core time", box=None)
    for name, cost in ({**costs, "all": total(costs)} if several else costs).items():
        counts = (cost.runs, *[cost.own] * several, cost.done)
        table.add_row(name, *map(str, counts), spoken(cost.seconds))
    console.print(table)
    announce(
        "Core time is of what is not done yet, on one core that has nothing else to do, each run by itself; those "
        "that share their batches take less."
    )


def conclude(summary: Summary) -> None:
    """What came of it; after Ctrl-C, how to go on."""
    counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.statuses.items()))
    announce(f"{summary.total} runs: {counts or 'none ended'}")
    for config, status_, reason in summary.troubles:
        announce(f"  {status_}: {named(config)} ({config.id}): {reason}")
    for config in summary.undecided:
        why = "a trial of its values did not end well, so none was chosen"
        announce(f"  not run: {named(config)}, and its other seeds: {why}")
    if summary.interrupted:
        stopped(f"{summary.total - summary.left} of {summary.total} runs")


def stopped(finished: str) -> NoReturn:
    """What is kept after Ctrl-C, and how to go on."""
    command = shlex.join(["targetopt", *sys.argv[1:]])
    announce(
        f"Stopped. {finished} are finished and kept; unfinished ones go on from their checkpoints. "
        f"Go on with:\n    {command}"
    )
    raise typer.Exit(130)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM, as batch systems send it, ends a command the way Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        errors.print("Stopped. What has finished is kept; the same command goes on from there.")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
