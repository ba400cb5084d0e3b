"""A limit on the memory that one run may take, kept by the system and told as the reason of its failure."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from targetopt.errors import BadArgument

GIGABYTE = 10**9


def check_limit(limit: float | None) -> None:
    """Refuse a limit that is no amount of memory, or that this system cannot keep."""
    if limit is None:
        return
    if not 0 < limit < float("inf"):
        raise BadArgument(f"memory_limit={limit!r} must be a number of gigabytes above 0.")
    if sys.platform != "linux":
        raise BadArgument(
            f"memory_limit={limit!r} is kept by Linux alone, and this is {sys.platform}. Leave it out."
        )


@contextlib.contextmanager
def limited(limit: float | None) -> Iterator[None]:
    """Let this process take ``limit`` gigabytes more than it has, and no more, while in here.

    What is refused is private memory (``RLIMIT_DATA``): arrays, models and the heap, but neither the
    code of libraries nor files that are mapped to be read.
    """
    if limit is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = _private_memory() + int(limit * GIGABYTE)
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory could not be had, in the words of Python, numpy or torch.

    >>> ran_out(MemoryError()), ran_out(ValueError("wrong shape"))
    (True, False)
    """
    words = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def explained(limit: float) -> str:
    """The reason of a run that wanted more than the limit."""
    return (
        f"it needed more memory than the limit of {limit:g} GB. A larger --memory-limit lets it try "
        "again"
    )


def _private_memory() -> int:
    """The bytes that the limit is on, as they are now."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None  # Linux has always said it
    return int(found[1]) * 1024
