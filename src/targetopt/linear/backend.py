"""The one place that says which kernels run: compiled (numba) or plain (numpy and scipy).

Both modules have the same functions with the same signatures. numba is imported on first use, never
by ``import targetopt``. The environment variable ``TARGETOPT_KERNELS`` (``numba`` or ``numpy``)
chooses for a process, :func:`use` for a block of code; without either, numba is taken where it is
installed (``pip install 'targetopt[fast]'``).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from targetopt.types import BadArgument

_MODULES = {"numba": "targetopt.linear.compiled", "numpy": "targetopt.linear.plain"}
_chosen: ContextVar[str | None] = ContextVar("targetopt_kernels", default=None)


def available() -> tuple[str, ...]:
    """The backends that can run here, best first."""
    return ("numba", "numpy") if importlib.util.find_spec("numba") else ("numpy",)


def name() -> str:
    """The backend in force.

    Example:
        >>> with use("numpy"):
        ...     name()
        'numpy'
    """
    wanted = _chosen.get() or os.environ.get("TARGETOPT_KERNELS") or available()[0]
    if wanted not in _MODULES:
        raise BadArgument(f"TARGETOPT_KERNELS={wanted!r} is unknown; use one of {sorted(_MODULES)}")
    if wanted not in available():
        raise BadArgument(
            "the numba kernels were asked for but numba is not installed; "
            "pip install 'targetopt[fast]', or use 'numpy'"
        )
    return wanted


def kernels() -> Any:
    """The module of kernels in force."""
    return importlib.import_module(_MODULES[name()])


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Run a block on one backend.

    Example:
        >>> with use("numpy"):
        ...     kernels().__name__
        'targetopt.linear.plain'
    """
    token = _chosen.set(backend)
    try:
        name()
        yield
    finally:
        _chosen.reset(token)
