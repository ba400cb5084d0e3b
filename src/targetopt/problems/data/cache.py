"""Parsed files kept in binary form, so that text is parsed once per machine.

An entry is named after the SHA-256 of the *source file's bytes*: a changed file is another entry,
and any number of processes may write the same entry, since they all write the same content and each
by rename. A cache that cannot be written (a read-only home, a full disk) only costs time; an entry
that cannot be read, or that does not have the content it was written with, is replaced.
"""

import contextlib
import hashlib
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse as sp

from targetopt.problems.data.files import user_cache, write_atomically
from targetopt.problems.data.matrix import LabelledMatrix
from targetopt.problems.data.parse import parse_text, read_text

_FORMAT = 1  # raise when the layout of an entry changes


def read_parsed(path: Path, *, columns: int, limit: int) -> LabelledMatrix:
    """The content of a LIBSVM file, from the binary cache where it has been read before.

    Args:
        path: the file, plain or compressed.
        columns: number of features.
        limit: the most bytes of text that are accepted.
    """
    with path.open("rb") as file:
        source = hashlib.file_digest(file, "sha256").hexdigest()
    entry = user_cache() / "parsed" / f"{source}-{columns}-v{_FORMAT}.npz"
    cached = _read_entry(entry)
    if cached is not None:
        return cached
    data = parse_text(read_text(path, limit=limit), columns=columns, source=str(path))
    with contextlib.suppress(OSError):  # no cache, no harm: the next reader parses again
        write_atomically(entry, lambda file: _write_entry(file, data))
    return data


def _write_entry(file: BinaryIO, data: LabelledMatrix) -> None:
    np.savez(
        file,
        shape=np.array(data.X.shape),
        indptr=data.X.indptr,
        indices=data.X.indices,
        values=data.X.data,
        labels=data.labels,
        fingerprint=np.array(data.fingerprint),
    )


def _read_entry(entry: Path) -> LabelledMatrix | None:
    try:
        with entry.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            matrix = sp.csr_array(
                (stored["values"], stored["indices"], stored["indptr"]),
                shape=(int(stored["shape"][0]), int(stored["shape"][1])),
            )
            data = LabelledMatrix(matrix, stored["labels"])
            return data if data.fingerprint == str(stored["fingerprint"]) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
