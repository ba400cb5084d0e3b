"""``targetopt data``: list, fetch, verify and find the data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from targetopt.display import Progress
from targetopt.lab.cli.shared import clear_errors, group
from targetopt.lab.data import CATALOGUE, DataError, Dataset, MissingError, fetch, find, locate
from targetopt.lab.data.files import data_directories
from targetopt.lab.data.store import read_verified

app = group("data", help="The data sets: what there is, where it lies, and how to get it.")

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
    with clear_errors():
        places = {name: locate(dataset, data_dir) for name, dataset in CATALOGUE.items()}
    for dataset in CATALOGUE.values():
        path = places[dataset.name]
        absent = "not here; fetch it" if dataset.url else "not here; no download"
        table.add_row(
            dataset.name,
            dataset.label,
            f"{dataset.rows} × {dataset.columns}",
            str(dataset.nonzeros),
            dataset.stand_in,
            Text(str(path)) if path else absent,  # brackets in a path are no markup
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
    with clear_errors():
        for dataset in _chosen(names, lambda dataset: dataset.url is not None):
            with Progress(dataset.name, "bytes") as shown:
                loaded = fetch(dataset, data_dir=data_dir, progress=shown.show)
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
    with clear_errors():
        chosen = _chosen(names, lambda dataset: locate(dataset, data_dir) is not None)
        for dataset, path in [(dataset, locate(dataset, data_dir)) for dataset in chosen]:
            try:
                if path is None:
                    raise MissingError("not on this machine")
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
    with clear_errors():
        if name is None:
            for directory in data_directories(data_dir):
                typer.echo(str(directory))
            return
        dataset = find(name)
        path = locate(dataset, data_dir)
        if path is None:
            raise MissingError(
                f"{name} is not on this machine; the stand-in {dataset.stand_in!r} runs without data."
            )
        typer.echo(str(path))


def _chosen(names: list[str] | None, otherwise: Callable[[Dataset], bool]) -> list[Dataset]:
    if names:
        return [find(name) for name in names]
    return [dataset for dataset in CATALOGUE.values() if otherwise(dataset)]


def _verdict(dataset: Dataset) -> str:
    if dataset.fingerprint is None:
        return "verified: shape, non-zeros, label counts; no content fingerprint is recorded"
    return "verified: shape, non-zeros, label counts, content fingerprint"
