"""Where data files lie, and how files are written so that nobody ever reads half of one."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import platformdirs
    from filelock import FileLock
except ImportError as error:
    raise ImportError(
        f"targetopt.problems needs {error.name}. Install the extra: pip install 'targetopt[bench]'"
    ) from error

__all__ = ["FileLock", "data_directories", "user_cache", "write_atomically"]


def user_cache() -> Path:
    """The directory for downloads and derived files: ``TARGETOPT_CACHE``, else the user's cache."""
    given = os.environ.get("TARGETOPT_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("targetopt")


def data_directories(data_dir: Path | None) -> Iterator[Path]:
    """The directories that are searched, in order.

    First `data_dir`, or ``TARGETOPT_DATA`` where it is None; then ``data`` in the user cache.
    """
    given = data_dir or os.environ.get("TARGETOPT_DATA")
    if given:
        yield Path(given)
    yield user_cache() / "data"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name and rename it: readers see all of it or none of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
