"""Step-size schedules: η_t = lr · schedule(t), t = 1, 2, … (paper, Thm 4.2 and App. E.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from targetopt.types import BadArgument, as_number


class Schedule(Protocol):
    """Called once per outer step with t = 1, 2, …; gives the multiplier of ``lr``."""

    def __call__(self, t: int) -> float: ...


def factor(schedule: Schedule, t: int) -> float:
    """What the schedule gives at step t, refused unless it is a finite number ≥ 0.

    >>> factor(constant(), 3)
    1.0
    """
    given = schedule(t)
    number = as_number(given)
    if not 0.0 <= number < math.inf:
        raise BadArgument(
            f"schedule={schedule!r} gave {given!r} at t = {t}; it multiplies lr and must be ≥ 0 and "
            "finite, a number"
        )
    return number


@dataclass(frozen=True)
class Constant:
    """η_t = η.

    Example:
        >>> constant()(7)
        1.0
    """

    def __call__(self, t: int) -> float:
        return 1.0


@dataclass(frozen=True)
class InverseSqrt:
    """η_t = η / √t.

    Example:
        >>> inverse_sqrt()(4)
        0.5
    """

    def __call__(self, t: int) -> float:
        return 1.0 / math.sqrt(t)


@dataclass(frozen=True)
class Exponential:
    """η_t = η · α^t with α = (β/T)^{1/T}: from η down to η·β/T over T steps.

    Example:
        >>> exponential(100)(100)
        0.01

    Reference: Li et al. 2021; paper Thm 4.2 (b).
    """

    total_steps: int
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise BadArgument(
                f"total_steps={self.total_steps!r} must be at least 1: it is T, the number of outer "
                "steps over which the step decays. Pass epochs × batches per epoch."
            )
        if not 0.0 < self.beta <= self.total_steps:
            raise BadArgument(
                f"beta={self.beta!r} must lie in (0, total_steps={self.total_steps}], else the step "
                "would grow. The paper uses 1."
            )

    def __call__(self, t: int) -> float:
        return float((self.beta / self.total_steps) ** (t / self.total_steps))


constant = Constant
inverse_sqrt = InverseSqrt
exponential = Exponential
