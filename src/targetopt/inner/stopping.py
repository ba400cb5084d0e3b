"""When an inner solver stops, and what it says then."""

from __future__ import annotations

from dataclasses import dataclass

from targetopt.types import BadArgument

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


def checked_max_steps(solver: str, max_steps: int) -> None:
    """Refuse a number of inner steps that is not a positive whole number."""
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise BadArgument(
            f"{solver}: max_steps={max_steps!r} must be a whole number ≥ 1 (the paper's m)"
        )
