"""The command ``targetopt``: which commands there are, and in which module each is found.

A module is imported when one of its commands is called, and the list of commands is printed from the table below. So
``targetopt --help`` loads neither torch nor anything else that takes longer to import than to print a page of help.
What the command line needs beyond the core comes with ``targetopt[lab]``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import typer


class Entry(NamedTuple):
    """A command or a group of commands: the module that has it, its name there, its line in the list."""

    module: str
    name: str
    help: str


COMMANDS: dict[str, Entry] = {
    "demo": Entry(
        "experiments", "demo", "Compare SSO with its rivals on embedded data, and write a report."
    ),
    "list": Entry(
        "experiments", "list_", "List the problems, methods and figures that can be named."
    ),
    "run": Entry("experiments", "run", "Run every problem × method × seed of SPEC.toml."),
    "reproduce": Entry(
        "reproduce", "reproduce", "Reproduce figures of the paper, and judge their claims."
    ),
    "judge": Entry(
        "reproduce", "judge", "Judge the paper's claims anew, from published curves alone."
    ),
    "oracles": Entry(
        "oracles", "app", "Study which method needs the fewest calls of an expensive oracle."
    ),
    "report": Entry(
        "results", "report", "Write report.html, figures as png and pdf, and tables as csv."
    ),
    "status": Entry(
        "results", "status", "Show what is done, running and failed, with the reasons."
    ),
    "data": Entry("data", "app", "List, download and check the data sets."),
    "expert": Entry("imitation", "app", "List, train and evaluate the experts that are imitated."),
    "ledger": Entry("ledger", "app", "Show, export and verify the ledger of paid oracle calls."),
    "new": Entry("new", "new", "Begin a problem, a rule or an oracle of your own, with its test."),
    "film": Entry("imitation", "film", "Film an expert and its learners side by side."),
}
"""Every command of ``targetopt`` in the order in which they are listed. A new command is a new line here."""


def make() -> typer.Typer:
    """The command line as a Typer application, whose commands are loaded when they are called."""
    import typer
    from typer.core import TyperGroup
    from typer.main import get_command

    from targetopt.lab.cli.shared import group

    class Lazy(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in COMMANDS:
                return None
            module, name, _ = COMMANDS[cmd_name]
            found = getattr(import_module(f"targetopt.lab.cli.{module}"), name)
            if not isinstance(found, typer.Typer):  # a command, which Typer wants in an application
                command, found = found, group()
                found.command(cmd_name)(command)
            made = get_command(found)
            made.name = cmd_name
            return made

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    application = group("targetopt", cls=Lazy, add_completion=True)

    @application.callback()
    def targetopt() -> None:
        """Train models whose gradients are expensive; compare, plot and reproduce.

        Begin with: targetopt demo
        """

    return application


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a missing extra is named with the way to get it."""
    _print_whatever_the_locale()
    try:
        application = make()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "targetopt":
            raise
        print(
            f"The command line needs the package {error.name!r}, which is not installed:\n"
            "    pip install 'targetopt[lab]'",
            file=sys.stderr,
        )
        sys.exit(1)
    application(arguments)


def _print_whatever_the_locale() -> None:
    """Letters that the terminal's encoding lacks (η, ×, …) become question marks instead of errors."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    main()
