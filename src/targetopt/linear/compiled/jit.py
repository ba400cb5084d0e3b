"""How every kernel is compiled.

Python calls few of the kernels, the `entry` points; the others are compiled into those. Sums may be
reordered (that is what vectorises a dot product), but nan and inf keep their meaning: a run that
diverges must be seen to diverge.

**No counting in loops.** numba counts the references to every array, atomically, at each call and
each slice: a third of the time of a small batch. So a kernel that allocates nothing is a `loop`, and
those that allocate leave their loops to it.

**The same bits everywhere.** A reordered sum depends on how often the compiler went over it, so a
result is the same to the last bit only if it comes from the same machine code. Two things would
change that code. The process that compiles a kernel links it to callees that were optimised on their
own, while one that loads it from the cache links it to the copies that came along; so a process of its
own compiles each entry point (`targetopt.linear.compiled.build`), and all others load it. And two entry
points that came with callees of the same name would share those of whichever was loaded first; so
their names differ.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock
from numba import njit
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., object])

_options = {"error_model": "numpy", "nogil": True}
_reordering = {"fastmath": {"reassoc", "contract", "nsz"}, **_options}
entries: list[Any] = []

BUILDING = "TARGETOPT_BUILDS_KERNELS"
"""In the environment of the process that compiles."""


def jit(function: F) -> F:
    """A kernel for other kernels; its types are those of the plain function."""
    return cast(F, njit(**_reordering)(function))


def loop(function: F) -> F:
    """As `jit`, for a kernel that neither makes nor returns arrays: it counts no references."""
    return cast(F, njit(_nrt=False, **_reordering)(function))


def as_written(function: F) -> F:
    """As `loop`, but nothing is reordered: each operation is rounded as it stands."""
    return cast(F, njit(_nrt=False, **_options)(function))


def entry(function: F) -> F:
    """A kernel that Python calls: compiled at its first call ever, then loaded from disk."""
    dispatcher = njit(cache=True, **_reordering)(function)
    dispatcher._cache = _BuiltElsewhere(function)
    entries.append(dispatcher)
    return cast(F, dispatcher)


class _BuiltElsewhere(FunctionCache):  # type: ignore[misc]
    """numba's cache on disk, which has what it lacks compiled by another process."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is not None or BUILDING in os.environ:
            return found
        Path(self.cache_path).mkdir(parents=True, exist_ok=True)
        with FileLock(Path(self.cache_path) / "targetopt-kernels.lock"):
            found = super().load_overload(sig, target_context)
            if found is None:
                _build(self._py_func, sig)
                found = super().load_overload(sig, target_context)
        return found


def _build(function: Callable[..., object], sig: Any) -> None:
    """Have an entry point compiled for these types, by a process that does nothing else."""
    home = str(Path(__file__).parents[3])
    environment = {
        **os.environ,
        BUILDING: "1",
        "PYTHONHASHSEED": "0",  # numba goes through sets
        "PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")])),
    }
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "targetopt.linear.compiled.build"],
            input=pickle.dumps((function.__module__, function.__qualname__, sig)),
            env=environment,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace")[-2000:]
        warnings.warn(
            f"{function.__module__}.{function.__qualname__} is compiled in this process, because a process "
            f"of its own failed: {error}. Results may differ in their last bits from those of other "
            f"processes.\n{said}",
            RuntimeWarning,
            stacklevel=2,
        )


def discard_stale_cache() -> None:
    """Delete cached machine code that was compiled from other sources than the present ones.

    numba looks only at the file of the cached function, while its code contains its callees, which
    lie in other files. So the digest of all kernel sources is kept beside the cache.
    """
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "spec.py"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    for folder in {Path(dispatcher.stats.cache_path) for dispatcher in entries}:
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
