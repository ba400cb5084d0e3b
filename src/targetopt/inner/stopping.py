"""When an inner solver stops, and what it says then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from targetopt.types import BadArgument, settle_whole

MAX_STEPS = "max-steps"
GRADIENT = "gradient"
DECREASE = "decrease"
LINE_SEARCH = "line-search"
EXACT = "exact"


@dataclass(frozen=True)
class Stopping:
    """Early stopping of an inner solver; both tests are off at 0.

    Args:
        gradient_tolerance: stop when ‖∇_θ q‖₂ ≤ this (reason ``"gradient"``; a zero gradient always
            stops).
        relative_decrease: stop when the last step decreased q by at most this share of the whole
            decrease since the inner loop began (reason ``"decrease"``).

    Example:
        >>> Stopping(gradient_tolerance=1e-8).small_gradient(1e-9)
        True
    """

    gradient_tolerance: float = 0.0
    relative_decrease: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gradient_tolerance", "relative_decrease"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise BadArgument(
                    f"Stopping: {name}={value!r} must be ≥ 0 and finite (0 turns it off)"
                )

    def small_gradient(self, norm: float) -> bool:
        return norm == 0.0 or norm <= self.gradient_tolerance

    def small_decrease(self, last: float, total: float) -> bool:
        """Whether ``last`` is too small a share of ``total`` (both decreases, positive)."""
        return self.relative_decrease > 0 and last <= self.relative_decrease * abs(total)


def settle(solver: Any, *whole: str) -> None:
    """What the solvers' ``__post_init__`` share: ``max_steps`` and other whole numbers, the stopping."""
    settle_whole(solver, "max_steps", *whole)
    if not isinstance(solver.stopping, Stopping):
        raise BadArgument(
            f"{type(solver).__name__}: stopping={solver.stopping!r} must be a stopping object such as "
            "to.Stopping(gradient_tolerance=1e-6)"
        )
