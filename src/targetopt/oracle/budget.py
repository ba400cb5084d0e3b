"""Budgets: costs are held before a request is sent, so that concurrent requests cannot overrun them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

from targetopt.oracle.errors import BudgetExceeded
from targetopt.types import BadArgument


def exact(name: str, amount: Any) -> Decimal:
    """Money as it is written: 0.1 is a tenth, and sums are exact."""
    if isinstance(amount, Decimal):
        value = amount
    elif isinstance(amount, Real) and not isinstance(amount, bool):
        value = Decimal(repr(float(amount)) if not isinstance(amount, int) else int(amount))
    else:
        raise BadArgument(f"{name}={amount!r} must be a number")
    if not value.is_finite() or value < 0:
        raise BadArgument(f"{name}={amount!r} must be ≥ 0 and finite")
    return value


@dataclass(frozen=True, slots=True)
class Cost:
    """What requests cost: calls sent, rows, seconds waited, money."""

    calls: int = 0
    rows: int = 0
    seconds: float = 0.0
    money: Decimal = Decimal(0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.calls + other.calls,
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.money + other.money,
        )

    def __sub__(self, other: Cost) -> Cost:
        return Cost(
            self.calls - other.calls,
            self.rows - other.rows,
            self.seconds - other.seconds,
            self.money - other.money,
        )


class Budget:
    """Limits for what a run may ask of its oracles.

    Every request holds its cost before it is sent; one that does not fit is refused with
    `BudgetExceeded`, and nothing is sent. With a ledger, what earlier processes of the run spent counts, and
    requests that may have been paid count as paid until an answer settles them.

    Args:
        calls: requests sent, retries included.
        rows: rows answered, and rows of requests that may have been paid.
        seconds: time spent waiting for answers, summed over questions. A request still on its way when
            the time is up is given up, and may have been paid.
        money: the sum of prices; needs ``price=`` at the oracle, so that it can be held in advance.

    Example:
        >>> budget = Budget(rows=100)
        >>> held = budget.hold(Cost(rows=64))
        >>> budget.hold(Cost(rows=64))
        Traceback (most recent call last):
        ...
        targetopt.oracle.errors.BudgetExceeded: 64 rows more would exceed the budget of 100 rows: ...
        >>> held.settle(Cost(rows=60))
        >>> budget.left().rows
        40
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        rows: int | None = None,
        seconds: float | None = None,
        money: float | Decimal | None = None,
    ) -> None:
        self.limits: dict[str, Any] = {}
        for name, limit in (("calls", calls), ("rows", rows), ("seconds", seconds)):
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, Real) or not 0 <= limit < 2**63:
                raise BadArgument(f"Budget: {name}={limit!r} must be a number ≥ 0, or None")
            self.limits[name] = limit
        if money is not None:
            self.limits["money"] = exact("Budget: money", money)
        self._lock = threading.Lock()
        self._spent = Cost()
        self._held = Cost()
        self._ledgers: set[str] = set()

    def __repr__(self) -> str:
        return f"Budget({', '.join(f'{name}={limit}' for name, limit in self.limits.items())})"

    @property
    def spent(self) -> Cost:
        """What was spent, by earlier processes of the run too."""
        return self._spent

    @property
    def held(self) -> Cost:
        """What is on its way."""
        return self._held

    def left(self) -> Cost:
        """What is neither spent nor held, in those kinds that have a limit (0 in the others)."""
        with self._lock:
            used = self._spent + self._held
            return Cost(**{n: limit - getattr(used, n) for n, limit in self.limits.items()})

    def carry_over(self, run: str, spent: Cost) -> None:
        """Count what a run's ledger says was spent before; once per run, however many oracles share it."""
        with self._lock:
            if run not in self._ledgers:
                self._ledgers.add(run)
                self._spent += spent

    def hold(self, cost: Cost, *, paid: Cost | None = None) -> Held:
        """Set ``cost`` aside, or raise `BudgetExceeded`. ``paid`` is spent already and is part of it."""
        with self._lock:
            spent = self._spent if paid is None else self._spent - paid
            for name, limit in self.limits.items():
                used, held = getattr(spent, name), getattr(self._held, name)
                more = getattr(cost, name)
                over = used + held >= limit if name == "seconds" else used + held + more > limit
                if over:
                    raise BudgetExceeded(_refusal(name, limit, used, held, more))
            self._spent = spent
            self._held += cost
        return Held(self, cost)

    def spend(self, cost: Cost) -> None:
        """Count what cannot be held in advance, such as time."""
        with self._lock:
            self._spent += cost

    def _exchange(self, held: Cost, spent: Cost) -> None:
        with self._lock:
            self._held -= held
            self._spent += spent


class Held:
    """A cost that was set aside; settle it once, with what it came to."""

    def __init__(self, budget: Budget, cost: Cost) -> None:
        self._budget = budget
        self.cost = cost

    def settle(self, spent: Cost) -> None:
        """The cost came to this; what was held beyond it is free again."""
        self._budget._exchange(self.cost, spent)
        self.cost = Cost()

    def part(self, cost: Cost) -> Held:
        """A part of what is held, to be settled by itself."""
        self.cost -= cost
        return Held(self._budget, cost)

    def more(self, cost: Cost) -> None:
        """Hold this as well, or raise `BudgetExceeded`."""
        self._budget.hold(cost)
        self.cost += cost


def _refusal(name: str, limit: object, used: object, held: object, more: object) -> str:
    unit = "of money" if name == "money" else name
    if name == "seconds":
        return (
            f"the budget of {limit} seconds of waiting is used up: {used:.1f} seconds were spent. Nothing "
            "was sent or changed. Raise Budget(seconds=) and run again; with a ledger, answers that were "
            "paid for are not asked again."
        )
    return (
        f"{more} {unit} more would exceed the budget of {limit} {unit}: {used} are spent and {held} are on "
        f"their way. Nothing was sent or changed. Raise Budget({name}=) and run again; with a ledger, "
        "answers that were paid for are not asked again."
    )
