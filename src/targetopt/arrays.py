"""How arrays are read back from files that may have been damaged, or made to do harm, since."""

import errno
import math
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.errors import TargetoptError


class DamagedFile(TargetoptError, ValueError):
    """A file of arrays is cut short, altered, or was never written by this package."""


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The named arrays of a file that ``numpy.savez`` wrote, however the file has fared since.

    Reading never runs code (no pickle) and never takes more memory than the file has bytes.

    Args:
        path: the file.
        names: the arrays to read; all of them must be in it.

    Raises:
        OSError: the file cannot be opened or read.
        DamagedFile: it can, but it is not a whole file of these arrays.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     path = Path(directory, "pair.npz")
        ...     np.savez(path, a=[1.0, 2.0], b=3)
        ...     read_arrays(path, ["a"])["a"].tolist()
        [1.0, 2.0]
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            return {name: _read_array(archive, f"{name}.npy") for name in names}
    except Exception as error:  # a damaged archive fails in a dozen ways, and all mean the same
        # a directory that points before the file's beginning is no fault of the disk
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise DamagedFile(f"{path} is damaged ({type(error).__name__}: {error})") from error


def _read_array(archive: zipfile.ZipFile, member: str) -> NDArray[Any]:
    about = archive.getinfo(member)
    if about.compress_type != zipfile.ZIP_STORED:  # which could unfold into gigabytes
        raise ValueError(f"{member} is compressed")
    with archive.open(about) as stream:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"{member} is of the array format {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        content = bytearray(stream.read())  # writable, as arrays should be
    if dtype.hasobject or len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{member} holds {len(content)} bytes, not {dtype} of the shape {shape}")
    return np.ndarray(shape, dtype, buffer=content, order="F" if by_columns else "C")
