"""How every kernel is compiled.

``cache=True`` keeps the machine code on disk: a process compiles nothing that an earlier one did.
Sums may be reordered (that is what vectorises a dot product), but nan and inf keep their meaning: a
run that diverges must be seen to diverge.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., object])

_options = {"cache": True, "error_model": "numpy", "nogil": True}
_compile = njit(fastmath={"reassoc", "contract", "nsz"}, **_options)
_compile_as_written = njit(**_options)
_dispatchers: list[Any] = []


def jit(function: F) -> F:
    """Compile ``function`` when it is first called; its types are those of the plain function."""
    dispatcher = _compile(function)
    _dispatchers.append(dispatcher)
    return cast(F, dispatcher)


def as_written(function: F) -> F:
    """As `jit`, but nothing is reordered: each operation is rounded as it stands.

    For arithmetic that the compiler takes apart differently from one compilation to the next, so that
    a run would not be the same to the last bit when its kernels come from the cache.
    """
    dispatcher = _compile_as_written(function)
    _dispatchers.append(dispatcher)
    return cast(F, dispatcher)


def discard_stale_cache() -> None:
    """Delete cached machine code that was compiled from other sources than the present ones.

    numba looks only at the file of the cached function, while its code contains its callees, which
    lie in other files. So the digest of all kernel sources is kept beside the cache.
    """
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "spec.py"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    for folder in {Path(dispatcher.stats.cache_path) for dispatcher in _dispatchers}:
        stamp = folder / "targetopt-kernels.sha256"
        if stamp.exists() and stamp.read_text() == digest:
            continue
        for pattern in ("*.nbi", "*.nbc"):
            for cached in folder.glob(pattern):
                cached.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{stamp.name}.{os.getpid()}"
        fresh.write_text(digest)
        fresh.replace(stamp)
