"""How files are written: nobody ever reads half of one, and a power cut leaves the old or the new."""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

Content = bytes | Callable[[BinaryIO], object]
"""What a file is to hold: its bytes, or a function that writes them to an open file."""


UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""What systems answer that do not let directories be opened or synced."""


def write_atomically(path: Path, content: Content) -> None:
    """Replace ``path``, whose directory is made if need be, by ``content``, all at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_in_order([(path, content)], own_name)


def write_in_order(
    files: Sequence[tuple[Path, Content]], temporary: Callable[[Path], Path]
) -> None:
    """Replace files of one directory; each appears only after those before it.

    All of them are on the disk under temporary names before the first is renamed, so a full disk
    changes none of them.

    Args:
        files: paths and what they are to hold.
        temporary: where a file lies until it is whole. :func:`own_name` lets any number of writers
            try at once; :func:`common_name` is for writers that hold a lock.
    """
    with contextlib.ExitStack() as leftovers:
        renames = []
        for path, content in files:
            name = temporary(path)
            leftovers.callback(_remove, name)
            # Whoever may write to the directory could have put a link to another file there.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
            with os.fdopen(os.open(name, flags, 0o666), "wb") as file:
                if isinstance(content, bytes):
                    file.write(content)
                else:
                    content(file)
                file.flush()
                os.fsync(file.fileno())
            renames.append((name, path))
        for name, path in renames:
            os.replace(name, path)
        leftovers.pop_all()
    _sync_directory(files[-1][0].parent)


def put_in_place(whole: Path, path: Path) -> None:
    """Give a file of the same directory, which is on the disk as a whole, the name that it is read by."""
    os.replace(whole, path)
    _sync_directory(path.parent)


def own_name(path: Path) -> Path:
    """A temporary name that no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def common_name(path: Path) -> Path:
    """The temporary name of writers of which only one writes at a time.

    What a killed writer left under it is overwritten by the next one instead of piling up.
    """
    return path.with_name(path.name + ".tmp")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system lets directories be synced."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
