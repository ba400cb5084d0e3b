"""Parsed files kept in binary form, so that text is parsed once per machine.

An entry is named after the SHA-256 of the *source file's bytes*: a changed file is another entry,
and any number of processes may write the same entry, since they all write the same content and each
by rename. A cache that cannot be written (a read-only home, a full disk) only costs time; an entry
that cannot be read, or that is not what was written, is replaced: the text is parsed anew.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import scipy.sparse as sp

from targetopt.arrays import DamagedFile, read_arrays
from targetopt.files import write_atomically
from targetopt.lab.data.files import user_cache
from targetopt.lab.data.matrix import LabelledMatrix
from targetopt.lab.data.parse import parse_text, read_text

_FORMAT = 1  # raise when the layout of an entry changes
_ARRAYS = ("shape", "indptr", "indices", "values", "labels", "fingerprint")


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
    cached = _read_entry(entry, columns)
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


def _read_entry(entry: Path, columns: int) -> LabelledMatrix | None:
    """What the entry holds; None where there is none, or one that was not written as it is now."""
    try:
        stored = read_arrays(entry, _ARRAYS)
        rows, width = stored["shape"].tolist()
        parts = (stored["values"], stored["indices"], stored["indptr"])
        data = LabelledMatrix(sp.csr_array(parts, shape=(rows, width)), stored["labels"])
        # in this order: a fingerprint says nothing of an entry that somebody made to do harm
        sound = width == columns and data.is_canonical()
        return data if sound and data.fingerprint == str(stored["fingerprint"]) else None
    except (OSError, DamagedFile, ValueError, TypeError, OverflowError):
        return None
