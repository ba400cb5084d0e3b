"""Refusing a bound outside its assumptions, by name."""

from __future__ import annotations

from collections.abc import Mapping

from targetopt.types import TargetoptError


class OutsideAssumptions(TargetoptError, ValueError):
    """A statement was asked for where the paper (or its correction) does not make it.

    Attributes:
        statement: the statement's name, e.g. ``"Thm 4.2 (a)"``.
        failed: every assumption that fails, in words, with the values.
    """

    def __init__(self, statement: str, failed: tuple[str, ...]) -> None:
        self.statement = statement
        self.failed = failed
        super().__init__(f"{statement} says nothing here: it needs " + "; and ".join(failed))


def require(statement: str, assumptions: Mapping[str, bool]) -> None:
    """Raise :class:`OutsideAssumptions` with every assumption whose value is false.

    Example:
        >>> require("Thm 4.2 (a)", {"μ > 0 (got 0)": False, "L ≥ μ": True})
        Traceback (most recent call last):
        targetopt.theory.conditions.OutsideAssumptions: Thm 4.2 (a) says nothing here: it needs μ > 0 (got 0)
    """
    failed = tuple(name for name, holds in assumptions.items() if not holds)
    if failed:
        raise OutsideAssumptions(statement, failed)
