"""``max_steps="auto"``: go on while a cheap step buys more than a new question to the oracle would."""

from __future__ import annotations

import math
from collections import deque

from targetopt.types import State

PRICES = (1, 10, 100, 1000)
"""The prices τ for which reports say how many inner steps would have been taken."""

WINDOW = 5
MOST = 200
"""No more inner steps than this, whatever the oracle costs: the surrogate is not the loss."""

LEAST_PRICE, LARGEST_PRICE = 100.0, 10_000.0
UNKNOWN_PRICE = LEAST_PRICE
"""Of answers that were not waited for in this process."""

MEASURED = 3
"""The first so many steps are timed; from then on the price stays as it is."""


class Economy:
    """When to stop m cheap steps, from what they have brought and what an oracle call costs.

    After k steps that lowered the surrogate by D_k in all, a further one is worth about the mean of the
    last few decreases, d. To stop now and ask again has brought D_k for the price of τ + k inner steps. So
    the loop ends at the first k with ::

        d ≤ D_k / (τ + k)

    which maximises the decrease per price if decreases shrink from step to step (the marginal value
    theorem). The larger the price τ, the smaller is the share of the remaining gap at which it stops.

    Args:
        price: τ, the price of an oracle call in inner steps.

    Example:
        >>> economy, steps = Economy(price=10.0), 0
        >>> while not economy.enough(0.5**steps):
        ...     steps += 1
        >>> economy.steps, economy.at
        (5, {1: 2, 10: 5})

    Reference: Charnov, *Optimal foraging, the marginal value theorem*, 1976.
    """

    def __init__(self, price: float) -> None:
        self.price = price
        self.steps = 0
        self.at: dict[int, int] = {}
        self._total = 0.0
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def enough(self, decrease: float) -> bool:
        """Whether to stop after a step that lowered the surrogate by ``decrease``."""
        self.steps += 1
        self._total += decrease
        self._recent.append(decrease)
        last = list(self._recent)[-max(1, min(WINDOW, self.steps // 2)) :]
        mean = sum(last) / len(last)
        for price in PRICES:
            if price not in self.at and mean * (price + self.steps) <= self._total:
                self.at[price] = self.steps
        return self.steps > 1 and mean * (self.price + self.steps) <= self._total


def price_of(oracle: float, forward: float) -> float:
    """τ from measured seconds, by powers of ten, and at least 100.

    Oracles for which this library is made cost more than that, in time or in money. By powers of ten, so that two
    runs on one machine take the same steps unless the price lies at the edge.

    >>> price_of(oracle=2.0, forward=1e-4), price_of(oracle=1e-4, forward=1e-4)
    (1000.0, 100.0)
    """
    steps = oracle / max(3.0 * forward, 1e-9)  # a step is a forward and a backward
    decade = 10.0 ** math.floor(math.log10(max(steps, LEAST_PRICE)))
    return min(decade, LARGEST_PRICE)


def timed(seen: State, oracle: float, forward: float) -> State:
    """What is known of the price after one more step; only the first few are looked at.

    Args:
        seen: what was known before, ``{}`` at first.
        oracle: seconds that the oracle's answer took.
        forward: seconds that the forward took.
    """
    looks = int(seen.get("looks", 0))
    if looks >= MEASURED:
        return seen
    cheapest = min(price_of(oracle, forward), seen.get("price", math.inf))
    return {"looks": looks + 1, "price": cheapest}
