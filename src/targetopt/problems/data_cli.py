"""``targetopt data``: list, fetch, verify and find the data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from targetopt.problems.data import CATALOGUE, DataError, Dataset, fetch, find, locate
from targetopt.problems.data.files import data_directories
from targetopt.problems.data.progress import ShownProgress
from targetopt.problems.data.store import read_verified

app = typer.Typer(
    name="data",
    no_args_is_help=True,
    help="The data sets: what there is, where it lies, and how to get it.",
)

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="TARGETOPT_DATA",
        help="Directory searched before the user cache, and downloaded into if it can be written.",
    ),
]
Names = Annotated[list[str] | None, typer.Argument(help="Data sets; all of them if none is named.")]


@app.command("list")
def list_data(data_dir: DataDir = None) -> None:
    """Show every data set and whether it is on this machine.

    Examples:

        targetopt data list

        targetopt data list --data-dir ~/libsvm
    """
    table = Table("name", "data", "rows × columns", "non-zeros", "stand-in", "where", box=None)
    for dataset in CATALOGUE.values():
        path = locate(dataset, data_dir)
        absent = "not here; fetch it" if dataset.url else "not here; no download"
        table.add_row(
            dataset.name,
            dataset.label,
            f"{dataset.rows} × {dataset.columns}",
            str(dataset.nonzeros),
            dataset.stand_in,
            str(path or absent),
        )
    # paths are for copying: never cut them, whatever the width of the terminal
    console = Console(soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console.width = 1000
    console.print(table)


@app.command("fetch")
def fetch_data(names: Names = None, data_dir: DataDir = None) -> None:
    """Download data sets that are not here yet, and verify them.

    An interrupted download continues where it stopped. TARGETOPT_DATA_URL names a mirror of
    LIBSVM's directory of binary data sets.

    Examples:

        targetopt data fetch mushrooms

        targetopt data fetch                      (all that can be downloaded)

        targetopt data fetch rcv1 --data-dir ~/libsvm
    """
    for dataset in _chosen(names, lambda dataset: dataset.url is not None):
        try:
            with ShownProgress(dataset.name) as progress:
                loaded = fetch(dataset, data_dir=data_dir, progress=progress)
        except DataError as error:
            _fail(str(error))
        typer.echo(f"{dataset.name}: {loaded.path} ({_verdict(dataset)})")


@app.command("verify")
def verify_data(names: Names = None, data_dir: DataDir = None) -> None:
    """Read data sets that are here and check that they are what they are named after.

    A file that is something else is renamed to *.rejected and never used.

    Examples:

        targetopt data verify

        targetopt data verify mushrooms ijcnn1
    """
    failures = 0
    for dataset in _chosen(names, lambda dataset: locate(dataset, data_dir) is not None):
        path = locate(dataset, data_dir)
        if path is None:
            typer.echo(f"{dataset.name}: not on this machine", err=True)
            failures += 1
            continue
        try:
            read_verified(dataset, path)
        except DataError as error:
            typer.echo(f"{dataset.name}: {error}", err=True)
            failures += 1
        else:
            typer.echo(f"{dataset.name}: {path} ({_verdict(dataset)})")
    if failures:
        raise typer.Exit(1)


@app.command("where")
def where_data(
    name: Annotated[str | None, typer.Argument(help="A data set; none: the directories.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Print the path of a data set's file, or the directories that are searched, in order.

    Examples:

        targetopt data where

        targetopt data where mushrooms
    """
    if name is None:
        for directory in data_directories(data_dir):
            typer.echo(str(directory))
        return
    (dataset,) = _chosen([name], lambda _: True)
    path = locate(dataset, data_dir)
    if path is None:
        _fail(
            f"{name} is not on this machine; the stand-in {dataset.stand_in!r} runs without data."
        )
    typer.echo(str(path))


def _chosen(names: list[str] | None, otherwise: Callable[[Dataset], bool]) -> list[Dataset]:
    if not names:
        return [dataset for dataset in CATALOGUE.values() if otherwise(dataset)]
    try:
        return [find(name) for name in names]
    except ValueError as error:
        _fail(str(error))


def _verdict(dataset: Dataset) -> str:
    if dataset.fingerprint is None:
        return "verified: shape, non-zeros, label counts; no content fingerprint is recorded"
    return "verified: shape, non-zeros, label counts, content fingerprint"


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
