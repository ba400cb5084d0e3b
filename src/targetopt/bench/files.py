"""Whole files or none: bytes reach the disk under a temporary name and are then renamed."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from targetopt.types import TargetoptError

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
    targetopt.bench.files.StoreError: cannot write results: the disk is full. Free some space
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or str(error))
        raise StoreError(f"cannot write {path}: {advice}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, so that a reader, or a power cut, sees the old or the new.

    The temporary name is fixed (``<name>.tmp``): whoever writes holds the claim on the file, and
    what a killed writer left is overwritten by the next one instead of piling up.
    """
    temporary = path.with_name(path.name + ".tmp")
    with explained(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system lets directories be synced."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
