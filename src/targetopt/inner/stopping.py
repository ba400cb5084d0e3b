"""When an inner solver stops, and what it says then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from targetopt.inner.economy import MOST, Economy
from targetopt.types import BadArgument, as_number, settle_whole

MAX_STEPS = "max-steps"
GRADIENT = "gradient"
DECREASE = "decrease"
LINE_SEARCH = "line-search"
EXACT = "exact"
PRICE = "price"
RELATIVE_ERROR = "relative-error"

AUTO: Literal["auto"] = "auto"
Steps = int | Literal["auto"]
"""m: a whole number, or ``"auto"`` to stop when an oracle call would buy more (see `Economy`)."""


def most(max_steps: Steps) -> int:
    """No more steps than this."""
    return MOST if max_steps == AUTO else max_steps


@dataclass(frozen=True)
class Stopping:
    """Early stopping of an inner solver; every test is off at 0.

    Args:
        gradient_tolerance: stop when ‖∇_θ q‖₂ ≤ this (reason ``"gradient"``; a zero gradient always
            stops).
        relative_decrease: stop when the last step decreased q by at most this share of the whole
            decrease since the inner loop began (reason ``"decrease"``).
        relative_error: stop when q is within this share of its gap of the smallest value it could have,
            that of free targets (reason ``"relative-error"``). A model that cannot reach so low never stops
            by it. This is the α-descent test of D'Orazio et al. 2025.
        price: τ, what an oracle call costs in inner steps, for ``max_steps="auto"`` (reason ``"price"``).
            ``None`` takes what the first steps have measured, at least 100.

    Example:
        >>> Stopping(gradient_tolerance=1e-8).small_gradient(1e-9)
        True

    Reference: D'Orazio et al., *Solving Hidden Monotone Variational Inequalities with Surrogate Losses*,
    ICLR 2025.
    """

    gradient_tolerance: float = 0.0
    relative_decrease: float = 0.0
    relative_error: float = 0.0
    price: float | None = None

    def __post_init__(self) -> None:
        for name in ("gradient_tolerance", "relative_decrease", "relative_error"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise BadArgument(
                    f"Stopping: {name}={value!r} must be ≥ 0 and finite (0 turns it off)"
                )
        if self.price is not None and not 0 < as_number(self.price) < float("inf"):
            raise BadArgument(
                f"Stopping: price={self.price!r} must be positive: it is what an oracle call costs, counted in "
                "inner steps. Pass None to have it measured."
            )

    def small_gradient(self, norm: float) -> bool:
        return norm == 0.0 or norm <= self.gradient_tolerance

    def small_decrease(self, last: float, total: float) -> bool:
        """Whether ``last`` is too small a share of ``total`` (both decreases, positive)."""
        return self.relative_decrease > 0 and last <= self.relative_decrease * abs(total)

    @property
    def watches_decrease(self) -> bool:
        """Whether a test needs to know what each step has brought."""
        return self.relative_decrease > 0 or self.relative_error > 0

    def pace(self, max_steps: Steps, price: float, largest: Callable[[], float]) -> Pace:
        """The judge of one inner loop.

        Args:
            max_steps: m, or ``"auto"``.
            price: τ as it was measured.
            largest: the largest decrease that free targets could bring, asked for if a test needs it.
        """
        return Pace(self, max_steps, self.price or price, largest)


class Pace:
    """How many steps one inner loop takes: told of every step's decrease, it says when to stop.

    Attributes:
        limit: no more steps than this.
        judges: whether the number of steps depends on what they bring.
        at: for prices τ = 1, 10, 100, 1000, after how many steps ``max_steps="auto"`` would have stopped; a
            price is missing if it would have gone on.
    """

    def __init__(
        self, stopping: Stopping, max_steps: Steps, price: float, largest: Callable[[], float]
    ) -> None:
        self.auto = max_steps == AUTO
        self.limit = most(max_steps)
        self.judges = self.auto or stopping.watches_decrease
        self._stopping = stopping
        self._economy = Economy(price)
        self._total = 0.0
        needed = 1.0 - stopping.relative_error
        self._enough = needed * largest() if stopping.relative_error > 0 else float("inf")

    @property
    def at(self) -> dict[int, int]:
        return self._economy.at

    def after(self, decrease: float) -> str | None:
        """Why to stop after a step that brought this decrease; None to go on."""
        self._total += decrease
        paid = self._economy.enough(decrease)
        if self._stopping.small_decrease(decrease, self._total):
            return DECREASE
        if self._total >= self._enough:
            return RELATIVE_ERROR
        return PRICE if self.auto and paid else None


def settle(solver: Any, *whole: str) -> None:
    """What the solvers' ``__post_init__`` share: ``max_steps`` and other whole numbers, the stopping."""
    if isinstance(solver.max_steps, str) and solver.max_steps != AUTO:
        raise BadArgument(
            f'{type(solver).__name__}: max_steps={solver.max_steps!r} must be a whole number ≥ 1, or "auto"'
        )
    settle_whole(solver, *([] if solver.max_steps == AUTO else ["max_steps"]), *whole)
    if not isinstance(solver.stopping, Stopping):
        raise BadArgument(
            f"{type(solver).__name__}: stopping={solver.stopping!r} must be a stopping object such as "
            "to.Stopping(gradient_tolerance=1e-6)"
        )
