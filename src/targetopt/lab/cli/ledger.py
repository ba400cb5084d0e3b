"""``targetopt ledger``: look at, export and verify the ledger of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from targetopt.lab.cli.shared import clear_errors, group

app = group(
    "ledger",
    help="The ledger of a run: what was asked of its oracles, what they answered, and what it cost.",
)

File = Annotated[Path, typer.Argument(help="The ledger, to.Ledger's path.")]


@app.command("show")
def show(file: File) -> None:
    """Say what a run asked and spent, and what may have been paid without an answer.

    A run may be writing to the file meanwhile.

    Examples:

        targetopt ledger show run.ledger
    """
    with clear_errors():
        from targetopt.oracle.ledger import inspection

        found = inspection.overview(file)
    spent = found.spent
    typer.echo(f"{found.path}" + (f", run {found.name!r}" if found.name else ""))
    typer.echo(f"oracles     {', '.join(found.oracles) or 'none yet'}")
    typer.echo(f"sessions    {found.sessions}")
    typer.echo(f"questions   {found.questions}, in {found.requests} requests")
    typer.echo(f"calls       {spent.calls}, {found.refused} of them refused")
    typer.echo(f"rows        {spent.rows}")
    typer.echo(f"seconds     {spent.seconds:.1f} of waiting")
    typer.echo(f"money       {spent.money}")
    if found.maybe.rows:
        typer.echo(
            f"may have been paid: {found.maybe.rows} rows, {found.maybe.money} of money (counted above)"
        )
    for request in found.unsettled:
        typer.echo(
            f"  request {request.number}: {len(request.positions)} rows sent, no outcome; key {request.key}"
        )
    for remark in found.remarks:
        typer.echo(f"remark: {remark}")


@app.command("verify")
def verify(file: File) -> None:
    """Read every byte of a ledger and compare it with its digests.

    Examples:

        targetopt ledger verify run.ledger
    """
    with clear_errors():
        from targetopt.oracle.ledger import inspection

        found = inspection.verified(file)
    typer.echo(
        f"{file}: sound, {found.records} records of {found.questions} questions in {found.sessions} sessions"
    )
    for remark in found.remarks:
        typer.echo(f"remark: {remark}")


@app.command("export")
def export(
    file: File,
    out: Annotated[
        Path | None, typer.Argument(help="A .jsonl or .parquet file. [default: FILE.jsonl]")
    ] = None,
    salvage: Annotated[
        bool, typer.Option("--salvage", help="Read what can be read of a damaged ledger.")
    ] = False,
) -> None:
    """Write every answered row, with what was asked, to a table.

    Examples:

        targetopt ledger export run.ledger answers.parquet

        targetopt ledger export run.ledger --salvage
    """
    target = out if out is not None else file.with_name(file.name + ".jsonl")
    with clear_errors():
        from targetopt.oracle.ledger import inspection

        rows = inspection.export(file, target, salvage=salvage)
    typer.echo(f"{rows} answered rows in {target}")
