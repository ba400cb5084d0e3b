"""The one place that says what runs: compiled kernels (numba), or numpy and scipy.

Both modules have the functions of `Kernels`; whole runs are compiled where numba is in force (see
`fit`). numba is imported on first use, never by ``import targetopt``. The environment variable
``TARGETOPT_KERNELS`` (``numba`` or ``numpy``) chooses for a process, :func:`use` for a block of code;
without either, numba is taken where it is installed (``pip install 'targetopt[fast]'``).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadArgument

if TYPE_CHECKING:
    from targetopt.inner import Inner
    from targetopt.linear.coordinates import Solution
    from targetopt.linear.design import Design

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]

_MODULES = {"numba": "targetopt.linear.kernels", "numpy": "targetopt.linear.coordinates"}
_chosen: ContextVar[str | None] = ContextVar("targetopt_kernels", default=None)


class Kernels(Protocol):
    """What a backend must have; ``targetopt.linear.coordinates`` says what each function does."""

    def csr_matvec(
        self, indptr: Index, indices: Columns, data: Array, theta: Array, /
    ) -> Array: ...

    def csr_rmatvec(
        self, indptr: Index, indices: Columns, data: Array, u: Array, columns: int, /
    ) -> Array: ...

    def csr_gram_dual(
        self, indptr: Index, indices: Columns, data: Array, columns: int, /
    ) -> Array: ...

    def csr_gram_primal(
        self, indptr: Index, indices: Columns, data: Array, weights: Array, columns: int, /
    ) -> Array: ...

    def csr_take(
        self, indptr: Index, indices: Columns, data: Array, index: Index, /
    ) -> tuple[Index, Columns, Array]: ...

    def solve_inner(
        self,
        X: Design,
        theta: Array,
        targets: Array,
        slope: Array,
        metric: Array,
        decay: float,
        inner: Inner,
        step: float,
        form: int,
        /,
    ) -> Solution: ...


@cache
def available() -> tuple[str, ...]:
    """The backends that can run here, best first. They are looked for once: a fit asks dozens of times."""
    return ("numba", "numpy") if importlib.util.find_spec("numba") else ("numpy",)


def name() -> str:
    """The backend in force."""
    wanted = _chosen.get() or os.environ.get("TARGETOPT_KERNELS") or available()[0]
    if wanted not in _MODULES:
        raise BadArgument(f"TARGETOPT_KERNELS={wanted!r} is unknown; use one of {sorted(_MODULES)}")
    if wanted not in available():
        raise BadArgument(
            "the numba kernels were asked for but numba is not installed; "
            "pip install 'targetopt[fast]', or use 'numpy'"
        )
    return wanted


def kernels() -> Kernels:
    """The module of kernels in force."""
    return cast(Kernels, importlib.import_module(_MODULES[name()]))


@contextmanager
def use(backend: str) -> Iterator[None]:
    """Run a block on one backend.

    Example:
        >>> with use("numpy"):
        ...     name()
        'numpy'
    """
    token = _chosen.set(backend)
    try:
        name()
        yield
    finally:
        _chosen.reset(token)
