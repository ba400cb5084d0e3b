"""Writing to a result directory: whole files or none, and errors that say what to do."""

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from targetopt import files
from targetopt.errors import TargetoptError

_ADVICE = {
    errno.ENOSPC: "the disk is full. Free some space",
    errno.EDQUOT: "your disk quota is used up. Free some space",
    errno.EFBIG: "the file is larger than this system allows",
    errno.EROFS: "the file system is read-only. Choose a writable --out directory",
    errno.EACCES: "permission denied. Choose a directory you may write to (--out)",
    errno.EPERM: "operation not permitted. Choose a directory you may write to (--out)",
    errno.ENOTDIR: "a part of the path is a file, not a directory. Choose another --out",
    errno.EIO: "the device reported an input/output error. Check the disk",
}


class StoreError(TargetoptError, OSError):
    """The result directory cannot be read or written; what was finished before is still there."""


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn an ``OSError`` on ``path`` into a :class:`StoreError` that says what to do.

    >>> with explained(Path("results")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    targetopt.lab.store.files.StoreError: cannot write results: the disk is full. Free some space
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"cannot write {path}: {advice}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, so that a reader, or a power cut, sees the old or the new."""
    write_in_order([(path, data)])


def write_in_order(contents: Sequence[tuple[Path, bytes]]) -> None:
    """Write files of one directory whole; each appears only after those before it.

    The caller holds the lock on the files. See :func:`targetopt.files.write_in_order`.
    """
    with explained(contents[-1][0]):
        files.write_in_order(contents, files.common_name)
