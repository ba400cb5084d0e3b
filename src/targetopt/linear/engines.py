"""Which engine does a run: compiled loops, or one step after another."""

from __future__ import annotations

import importlib

from targetopt.inner import Inner
from targetopt.linear import backend, stepwise
from targetopt.linear.engine import Engine, Setup
from targetopt.rules import Rule


def engine_of(setup: Setup) -> Engine:
    """Compiled loops where numba is in force and every part of the method has a kernel of its own."""
    if backend.name() == "numba":
        kernels = importlib.import_module("targetopt.linear.kernels")
        compiled: Engine | None = kernels.engine(setup)
        if compiled is not None:
            return compiled
    return stepwise.engine(setup)


def has_kernels(rule: Rule, inner: Inner) -> bool:
    """Whether `fit` runs this rule and inner solver in compiled loops (for a loss with scalar functions).

    Each must be of a class that is registered itself, and numba must be in force.

    Example:
        >>> import targetopt as to
        >>> has_kernels(to.MirrorDescent(), to.Exact())
        False
    """
    if backend.name() != "numba":
        return False
    kernels = importlib.import_module("targetopt.linear.kernels")
    return bool(kernels.has(rule, inner))
