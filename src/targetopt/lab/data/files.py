"""Where data files lie on this machine, and where derived files are kept."""

import os
from collections.abc import Iterator
from pathlib import Path

from targetopt.lab.data.errors import DataError

try:
    import platformdirs
    from filelock import FileLock
except ImportError as error:
    raise ImportError(
        f"targetopt.lab.problems needs {error.name}. Install the extra: pip install 'targetopt[lab]'"
    ) from error

__all__ = ["FileLock", "data_directories", "user_cache"]


def user_cache() -> Path:
    """The directory for downloads and derived files: ``TARGETOPT_CACHE``, else the user's cache."""
    given = os.environ.get("TARGETOPT_CACHE")
    if given:
        return _at_home(Path(given), "TARGETOPT_CACHE")
    return platformdirs.user_cache_path("targetopt")


def data_directories(data_dir: Path | None) -> Iterator[Path]:
    """The directories that are searched, in order.

    First `data_dir`, or ``TARGETOPT_DATA`` where it is None; then ``data`` in the user cache.
    """
    given = data_dir or os.environ.get("TARGETOPT_DATA")
    if given:
        yield _at_home(Path(given), "--data-dir or TARGETOPT_DATA")
    yield user_cache() / "data"


def _at_home(path: Path, given_by: str) -> Path:
    """The path with ``~`` spelled out, as a shell does for words but not for quoted ones."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise DataError(
            f"{given_by} names {str(path)!r}, but there is no home directory for {path.parts[0]!r}. "
            "Write the path out in full."
        ) from None
