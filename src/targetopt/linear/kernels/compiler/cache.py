"""Machine code on disk that is never trusted blindly.

Every file begins with the digest of what follows. A file that was cut short or damaged (a power cut, a
full disk) does not match its digest and counts as absent, so it is compiled and written again.

numba compares the age of the one file that a function stands in, while a kernel's machine code contains
its callees, which stand in other files. So the stamp that cached code must carry is the digest of all
kernel sources; their age does not matter.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

from targetopt.inner import LBFGS
from targetopt.rules.line_search import ROUNDING

DIGEST = hashlib.sha256().digest_size


@cache
def digest_of_sources() -> str:
    """Of everything that is compiled into kernels, constants of rules and solvers included."""
    linear = Path(__file__).parents[2]
    shared = [linear / "coordinates" / name for name in ("choice.py", "solution.py", "wolfe.py")]
    digest = hashlib.sha256(repr((ROUNDING, LBFGS.SUFFICIENT, LBFGS.CURVATURE)).encode())
    for source in [*sorted((linear / "kernels").rglob("*.py")), *shared]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


UNREADABLE = (OSError, pickle.UnpicklingError, ImportError, AttributeError, TypeError, ValueError)
"""What reading an index may raise: it is damaged, or another version of the package wrote it and names what is gone."""


class CheckedCache(FunctionCache):  # type: ignore[misc]
    """numba's cache of one function, in files that carry their digests."""

    def __init__(self, function: Callable[..., Any], *, with_kernels: bool = False) -> None:
        super().__init__(function)
        own = self._impl.locator.get_source_stamp()
        self._cache_file = _CheckedFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=digest_of_sources() if with_kernels else own,
        )


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    def _load_index(self) -> Any:
        try:
            version, stamp, overloads = pickle.loads(_read(self._index_path))
        except UNREADABLE:
            return {}
        current = version == self._version and stamp == self._source_stamp
        return overloads if current else {}

    def _save_index(self, overloads: Any) -> None:
        self._write(self._index_path, self._dump((self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> Any:
        return pickle.loads(_read(self._data_path(name)))

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), self._dump(data))

    def _write(self, path: str, content: bytes) -> None:
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)


def _read(path: str) -> bytes:
    """What a file holds after its digest; OSError if it cannot be read or is damaged."""
    whole = Path(path).read_bytes()
    content = whole[DIGEST:]
    if hashlib.sha256(content).digest() != whole[:DIGEST]:
        raise OSError(f"{path} is damaged")
    return content
