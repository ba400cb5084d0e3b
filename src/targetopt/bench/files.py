"""Whole files or none: bytes reach the disk under a temporary name and are then renamed."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
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
    """Replace ``path`` by ``data``, so that a reader, or a power cut, sees the old or the new."""
    write_in_order([(path, data)])


def write_in_order(files: Sequence[tuple[Path, bytes]]) -> None:
    """Write files of one directory whole; each appears only after those before it.

    All are on the disk under temporary names before the first is renamed, so a full disk changes
    none of them. The temporary names are fixed (``<name>.tmp``): whoever writes holds the claim on
    the files, and what a killed writer left is overwritten by the next one instead of piling up.
    """
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, data in files:
            temporary = temporary_name(path)
            leftovers.callback(_remove, temporary)
            with explained(path), open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            renames.append((temporary, path))
        for temporary, path in renames:
            with explained(path):
                os.replace(temporary, path)
        leftovers.pop_all()
    with explained(files[-1][0]):
        _sync_directory(files[-1][0].parent)


def temporary_name(path: Path) -> Path:
    """Where a file lies until it is whole; a killed writer may leave it behind."""
    return path.with_name(path.name + ".tmp")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


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
