"""What this room needs beyond the core, asked for with the way to get it."""

from __future__ import annotations

import importlib
from types import ModuleType

from targetopt.types import MissingCapability


class MissingPackage(MissingCapability, ImportError):
    """A package that an extra of this project brings is not installed."""


def package(name: str, purpose: str, extra: str = "rl") -> ModuleType:
    """The imported package, or an error that names the extra which brings it.

    >>> package("no_such_simulator", "Stepping the moon")
    Traceback (most recent call last):
    targetopt.imitation.needs.MissingPackage: Stepping the moon needs the package 'no_such_simulator', \
which is not installed: pip install 'targetopt[rl]'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"{purpose} needs the package {error.name!r}, which is not installed: "
            f"pip install 'targetopt[{extra}]'"
        ) from error
