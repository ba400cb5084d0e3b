"""What all commands share: where they write, how they end on errors and on Ctrl-C, their common options."""

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from targetopt.errors import TargetoptError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from targetopt.lab.run.plan import Plan, Summary

console = Console()
errors = Console(stderr=True)

Out = Annotated[Path | None, typer.Option(help="Result directory; made if it is not there.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. [default: all cores]")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say how many runs there are and what they will take.")
]


class ExecutorName(StrEnum):
    """Where runs happen."""

    local = "local"
    ray = "ray"


Executor = Annotated[
    ExecutorName, typer.Option(help="This machine, or a Ray cluster (RAY_ADDRESS).")
]


def group(name: str | None = None, **options: Any) -> typer.Typer:
    """A group of commands that looks like all others: plain text, and tracebacks as Python prints them."""
    return typer.Typer(
        name=name,
        **{
            "no_args_is_help": name is not None,
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "add_completion": False,
            **options,
        },
    )


@contextmanager
def clear_errors() -> Iterator[None]:
    """Errors that are meant for people end the command with their text, not with a traceback."""
    try:
        yield
    except (TargetoptError, OSError, ModuleNotFoundError) as error:
        from targetopt.lab.spec.document import SpecError

        if isinstance(error, SpecError):
            errors.print(Text(str(error)), soft_wrap=True)
            raise typer.Exit(2) from None
        fail(str(error))


def fail(message: str) -> NoReturn:
    """End the command with a message on standard error."""
    errors.print(Text(f"Error: {message}"), soft_wrap=True)
    raise typer.Exit(1) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, and SIGTERM as batch systems send it, end a command with the way to go on."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        stopped("What has finished is kept.")
    finally:
        signal.signal(signal.SIGTERM, before)


def stopped(kept: str) -> NoReturn:
    """End an interrupted command: what is kept, and how to go on."""
    command = shlex.join(["targetopt", *sys.argv[1:]])
    errors.print(Text(f"Stopped. {kept} Go on with:\n    {command}"), soft_wrap=True)
    raise typer.Exit(130) from None


def announce(text: str) -> None:
    """A sentence on standard output, as it is."""
    console.print(Text(text), soft_wrap=True)


def foresee(
    plans: "Mapping[str, Plan]",
    time_limit: float | None = None,
    row: "Callable[[str], str]" = str,
) -> None:
    """How many runs there are, how many are done, and what the others will take.

    Args:
        plans: by their names.
        time_limit: seconds that a run may take.
        row: which row of the table a plan is counted in, by its name; each has its own if left out.
    """
    from targetopt.display import Progress
    from targetopt.lab.run.economy import economy, total
    from targetopt.lab.run.progress import spoken

    announce("Counting the runs, and making a few steps of each kind …")
    with Progress("timing", "kinds of runs", transient=True) as shown:
        single = economy(plans, time_limit, shown.show)
    costs = {
        name: total({key: cost for key, cost in single.items() if row(key) == name})
        for name in dict.fromkeys(map(row, single))
    }
    several = len(costs) > 1  # which may have runs in common
    table = Table("experiment", "runs", *["of its own"] * several, "done", "core time", box=None)
    for name, cost in ({**costs, "all": total(costs)} if several else costs).items():
        counts = (cost.runs, *[cost.own] * several, cost.done)
        table.add_row(name, *map(str, counts), spoken(cost.seconds))
    console.print(table)
    announce(
        "Core time is that of the runs that are not done yet, each by itself on one core that has nothing else to "
        "do. Runs that share their batches take less."
    )


def conclude(summary: "Summary") -> None:
    """What came of the runs; after Ctrl-C, how to go on."""
    from targetopt.lab.run.progress import named

    counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.statuses.items()))
    announce(f"{summary.total} runs: {counts or 'none ended'}")
    for config, status, reason in summary.troubles:
        announce(f"  {status}: {named(config)} ({config.id}): {reason}")
    for config in summary.undecided:
        why = "a trial of its values did not end well, so none was chosen"
        announce(f"  not run: {named(config)}, and its other seeds: {why}")
    if summary.interrupted:
        finished = summary.total - summary.left
        stopped(
            f"{finished} of {summary.total} runs are finished and kept; unfinished ones go on from their checkpoints."
        )
