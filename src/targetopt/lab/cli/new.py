"""``targetopt new``: a working skeleton of a problem, a rule or an oracle, with its test."""

import keyword
import re
from enum import StrEnum
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from targetopt.lab.cli.shared import announce, clear_errors, fail

_SKELETONS = Path(__file__).with_name("skeletons")


class Kind(StrEnum):
    """What can be begun."""

    problem = "problem"
    rule = "rule"
    oracle = "oracle"


_NEXT = {
    Kind.problem: "targetopt run {stem}.toml   compares methods on it",
    Kind.rule: "targetopt run {stem}.toml   compares it with other rules",
    Kind.oracle: "python {stem}.py            trains a small model against it",
}


def new(
    kind: Annotated[Kind, typer.Argument(help="What to begin.")],
    name: Annotated[str, typer.Argument(help="Its name, such as my-problem.")],
    out: Annotated[
        Path, typer.Option(help="Where the files go; made if it is not there.")
    ] = Path(),
) -> None:
    """Write a working skeleton of a problem, a rule or an oracle, with its test.

    The files run as they are. Change what they compute, and keep the test. Nothing that exists is overwritten.

    Examples:

        targetopt new oracle my-simulator

        targetopt new problem my-problem --out experiments

        targetopt new rule my-rule
    """
    with clear_errors():
        stem = name.replace("-", "_")
        if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) or keyword.iskeyword(stem):
            fail(
                f"NAME={name!r} must be a word of small letters, digits and hyphens that Python can import, such as "
                "'my-problem'."
            )
        words = re.split("[-_]", name)
        names = {"name": name, "stem": stem, "title": "".join(word.capitalize() for word in words)}
        texts = {
            out / path.name.removesuffix(".txt").replace("NAME", stem): Template(
                path.read_text("utf-8")
            ).substitute(names)
            for path in sorted((_SKELETONS / kind.value).glob("*.txt"))
        }
        taken = [str(path) for path in texts if path.exists()]
        if taken:
            fail(f"{', '.join(taken)} exists already. Choose another NAME, or another --out.")
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            announce(f"Wrote {path}")
        announce(f"Next, in {out.resolve()}:")
        announce(f"    python -m pytest test_{stem}.py")
        announce(f"    {_NEXT[kind].format(stem=stem)}")
