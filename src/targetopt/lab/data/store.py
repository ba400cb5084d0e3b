"""Data sets by name: found, else downloaded, and verified before anybody sees them."""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from targetopt.files import put_in_place
from targetopt.lab.data.cache import read_parsed
from targetopt.lab.data.catalogue import LIBSVM, Dataset
from targetopt.lab.data.errors import (
    DataError,
    DownloadError,
    MismatchError,
    MissingError,
    ParseError,
)
from targetopt.lab.data.files import FileLock, data_directories
from targetopt.lab.data.matrix import LabelledMatrix
from targetopt.lab.data.transfer import Progress, download


@dataclass(frozen=True)
class Loaded:
    """A verified data set and the file it was read from."""

    dataset: Dataset
    path: Path
    data: LabelledMatrix


def locate(dataset: Dataset, data_dir: Path | None = None) -> Path | None:
    """The first file in the look-up order that has the data set's name; None if there is none."""
    for directory in data_directories(data_dir):
        for name in dataset.file_names:
            if (directory / name).is_file():
                return directory / name
    return None


def load(
    dataset: Dataset, *, data_dir: Path | None = None, progress: Progress | None = None
) -> Loaded:
    """Read a data set: from a directory, else from the user cache, else by download.

    Args:
        dataset: which one, see :func:`~targetopt.lab.data.catalogue.find`.
        data_dir: searched first; ``TARGETOPT_DATA`` where it is None.
        progress: told of a download's progress.

    Raises:
        ParseError, MismatchError: the file found is not the data set. It is renamed to
            ``*.rejected`` and never used.
        MissingError: there is no file and it cannot be downloaded.
    """
    path = locate(dataset, data_dir)
    if path is not None:
        return read_verified(dataset, path)
    if dataset.url is None:
        raise _missing(dataset, data_dir, "it cannot be downloaded")
    try:
        return fetch(dataset, data_dir=data_dir, progress=progress)
    except DownloadError as error:
        raise _missing(dataset, data_dir, f"the download failed ({error})") from error


def read_verified(dataset: Dataset, path: Path) -> Loaded:
    """Read one file; one that is not the data set is set aside."""
    try:
        data = read_parsed(path, columns=dataset.columns, limit=dataset.text_limit)
        dataset.verify(data, str(path))
    except (ParseError, MismatchError) as error:
        raise type(error)(f"{error} {_set_aside(path)}") from None
    except OSError as error:  # of the disk or of permissions: the file may well be right
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}). Make it readable, or put a copy of "
            f"{dataset.label} into another directory and name that with --data-dir or TARGETOPT_DATA."
        ) from error
    return Loaded(dataset, path, data)


def fetch(
    dataset: Dataset, *, data_dir: Path | None = None, progress: Progress | None = None
) -> Loaded:
    """Make sure that the data set is on this machine, downloading it where it is not.

    The file goes to the first directory of the look-up order that can be written. It gets its name
    only after it was verified; until then it is ``*.part``, which the next fetch continues, or, if
    it turns out to be something else, ``*.rejected``. Processes that fetch at once wait for each
    other, and the later ones find the file.
    """
    path = locate(dataset, data_dir)
    if path is not None:
        return read_verified(dataset, path)
    if dataset.url is None:
        raise _missing(dataset, data_dir, "it cannot be downloaded")
    directory = _writable_directory(data_dir)
    url = _mirrored(dataset.url)
    path = directory / dataset.url.rsplit("/", 1)[1]
    part = path.with_name(path.name + ".part")
    with contextlib.ExitStack() as held:
        _lock(path.with_name(f".{path.name}.lock"), held)
        if path.is_file():  # another process fetched it while this one waited
            return read_verified(dataset, path)
        download(url, part, limit=dataset.text_limit, progress=progress or (lambda *_: None))
        verified = read_verified(dataset, part)
        put_in_place(part, path)
    return Loaded(dataset, path, verified.data)


def _lock(path: Path, held: contextlib.ExitStack) -> None:
    """Hold the lock at `path` until `held` ends, waiting for whoever holds it now."""
    try:
        held.enter_context(FileLock(path))
    except OSError as error:
        raise DataError(
            f"cannot lock {path} ({error.strerror or error}). Remove what lies there, if it is a link "
            "or no ordinary file, or name another directory with --data-dir or TARGETOPT_DATA."
        ) from error


def _mirrored(url: str) -> str:
    """The same file below ``TARGETOPT_DATA_URL``, where that names a copy of LIBSVM's directory."""
    mirror = os.environ.get("TARGETOPT_DATA_URL")
    return url.replace(LIBSVM, mirror.rstrip("/"), 1) if mirror else url


def _writable_directory(data_dir: Path | None) -> Path:
    refusals = []
    for directory in data_directories(data_dir):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            refusals.append(f"{directory} ({error.strerror})")
        else:
            return directory
    raise DataError(
        f"no directory to download into can be written: {'; '.join(refusals)}. "
        "Name one with --data-dir or TARGETOPT_DATA."
    )


def _set_aside(path: Path) -> str:
    """Rename a file that must not be used; say what became of it."""
    rejected = path.with_name(path.name.removesuffix(".part") + ".rejected")
    try:
        path.replace(rejected)
    except FileNotFoundError:  # another process was first
        pass
    except OSError as error:
        return (
            f"It was not used; it could not be renamed ({error.strerror}), so remove it yourself."
        )
    return f"It was not used and is now {rejected}."


def _missing(dataset: Dataset, data_dir: Path | None, why: str) -> MissingError:
    searched = ", ".join(str(directory) for directory in data_directories(data_dir))
    names = " or ".join(dataset.file_names[:2])
    if dataset.url:
        remedy = (
            f"Run 'targetopt data fetch {dataset.name}' where there is a network, or download "
            f"{dataset.url} and put it"
        )
    else:
        remedy = f"Put the file {names}"
    return MissingError(
        f"data set {dataset.name!r} ({dataset.label}) is not on this machine: no {names} in "
        f"{searched}, and {why}. {remedy} into a directory named by --data-dir or TARGETOPT_DATA. "
        f"The stand-in {dataset.stand_in!r} runs now, without any data."
    )
