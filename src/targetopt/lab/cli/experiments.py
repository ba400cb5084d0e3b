"""``targetopt demo``, ``run`` and ``list``: make experiments, and see what they can be made of."""

import os
import shlex
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table

from targetopt.lab.cli.results import report
from targetopt.lab.cli.shared import (
    DryRun,
    Executor,
    ExecutorName,
    Jobs,
    Out,
    announce,
    clear_errors,
    conclude,
    console,
    foresee,
    interruptible,
)
from targetopt.lab.run import origin


class What(StrEnum):
    """What can be listed."""

    problems = "problems"
    methods = "methods"
    figures = "figures"


def demo(
    out: Annotated[Path, typer.Option(help="Result directory.")] = Path("targetopt-demo"),
    jobs: Jobs = None,
    seeds: Annotated[int, typer.Option(min=1, help="Random seeds per method.")] = 3,
) -> None:
    """Compare SSO with its rivals where it wins and where it does not, and write a report.

    Half a minute on two cores; needs no network. Interrupted, it goes on where it was.

    Examples:

        targetopt demo

        targetopt demo --seeds 3 --jobs 4 --out my-demo
    """
    began = time.monotonic()
    announce("Starting the worker processes, which import PyTorch (a few seconds) …")
    with clear_errors(), interruptible(), _nothing_compiled():
        origin.started()  # it imports while we do
        from targetopt.lab.report.lines import gather
        from targetopt.lab.run.plan import Plan
        from targetopt.lab.run.runner import run_all
        from targetopt.lab.store.directory import Store
        from targetopt.lab.studies import demo as demonstration

        for sentence in demonstration.OPENING:
            announce(sentence)
        [summary] = run_all(
            [Plan(demonstration.experiment(seeds), Store(out))],
            jobs=jobs,
            display=demonstration.Drawn(console, out),
            order=demonstration.soonest,
        )
        conclude(summary)
        results = gather(out)
        console.print(demonstration.table(results))
        for sentence in demonstration.closing(results):
            announce(sentence)
        announce("Drawing the report …")
        report(out)
        announce(f"The demo took {time.monotonic() - began:.0f} s.")


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """The problems of the demo are so small that numpy is done before kernels would be compiled."""
    before = os.environ.get("TARGETOPT_KERNELS")
    os.environ.setdefault("TARGETOPT_KERNELS", "numpy")
    try:
        yield
    finally:
        if before is None:
            del os.environ["TARGETOPT_KERNELS"]


def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to compare.")],
    out: Out = None,
    jobs: Jobs = None,
    executor: Executor = ExecutorName.local,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that one run may take, its data loaded."),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Gigabytes that one run may take; a run that wants more fails."
        ),
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
    with clear_errors(), interruptible():
        from targetopt.lab.run.plan import Plan
        from targetopt.lab.run.progress import ShownRuns
        from targetopt.lab.run.runner import run as run_experiment
        from targetopt.lab.spec.experiment import Experiment
        from targetopt.lab.store.directory import Store

        experiment = Experiment.read(spec)
        directory = out or Path("results") / spec.stem
        if dry_run:
            plan = Plan(experiment, Store(directory), tuple(only or ()))
            foresee({experiment.name: plan}, time_limit)
            return
        announce(f"{experiment.name}: results go to {directory}")
        summary = run_experiment(
            experiment,
            directory,
            jobs=jobs,
            executor=executor.value,
            time_limit=time_limit,
            memory_limit=memory_limit,
            checkpoint_seconds=checkpoint_seconds,
            only=tuple(only or ()),
            trackers=tuple(track or ()),
            display=ShownRuns(console),
        )
        conclude(summary)
        announce(f"Next: targetopt report {shlex.quote(str(directory))}")
        if summary.statuses.get("failed") or summary.statuses.get("timeout"):
            raise typer.Exit(1)


def list_(
    what: Annotated[What | None, typer.Argument(help="One kind; all if left out.")] = None,
    oracle: Annotated[
        bool, typer.Option("--oracle", help="Only problems whose oracle is expensive.")
    ] = False,
) -> None:
    """List the problems, methods and figures that specifications and commands can name.

    Examples:

        targetopt list

        targetopt list methods

        targetopt list problems --oracle
    """
    tables: dict[What, Callable[[], RenderableType]] = {
        What.problems: lambda: _problem_table(oracle),
        What.methods: _method_table,
        What.figures: _figures,
    }
    with clear_errors():
        only = What.problems if oracle else what
        for kind in [only] if only else list(What):
            console.print(tables[kind](), soft_wrap=True)


def _problem_table(oracle: bool) -> Table:
    from targetopt.lab import problems

    table = Table("problem", "what it is", "options", box=None)
    for name in problems.names():
        declared = problems.declaration(name)
        if oracle and not declared.expensive:
            continue
        options = ", ".join(f"{key}={item.default!r}" for key, item in declared.options.items())
        table.add_row(name, declared.description, options)
    return table


def _method_table() -> Group:
    from targetopt import registry
    from targetopt.lab.run import imitation as imitation  # its methods are registered
    from targetopt.lab.spec.methods import METHODS, MethodSpec

    def options(method: type[MethodSpec], besides: Container[str] = ()) -> str:
        known = method.options().items()
        return ", ".join(f"{key}={value!r}" for key, value in known if key not in besides)

    table = Table("method", "what it is", "options", box=None)
    for name, method in METHODS.items():
        table.add_row(name, method.about, options(method, besides=MethodSpec.options()))
    choices = {
        "every method": options(MethodSpec),
        "rule": ", ".join(registry.rules),
        "inner": ", ".join(registry.inner),
        "schedule": ", ".join(registry.schedules),
    }
    return Group(table, "", *(f" {what}: {known}" for what, known in choices.items()))


def _figures() -> str:
    from targetopt.lab.studies.paper import figures

    rows = [f"  {name:<30} {figures.title(name)}" for name in figures.names()]
    return "\n".join(["figures: targetopt reproduce NAME", *rows])
