"""When a failed request is sent again, and how fast requests may follow each other."""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import stamina

from targetopt.oracle.remote.outcome import Failed
from targetopt.types import BadArgument, checked_whole


@dataclass(frozen=True)
class Retries:
    """How often and how long a request is tried.

    The wait after the k-th failure is ``first_wait · 2^(k−1)``, at most ``longest_wait``, times a random
    number from ½ to 1; a service that says how long to wait (Retry-After) is obeyed instead. Retries are
    logged as warnings of the logger ``stamina``.

    Args:
        attempts: in all, the first included.
        seconds: from the first attempt to the beginning of the last.
        first_wait: seconds.
        longest_wait: seconds.
        hedge_after: send a copy of a request that has no answer after so many seconds, and take whichever
            answer comes first. Where the service does not bill a key once, both may be paid.
    """

    attempts: int = 6
    seconds: float = 600.0
    first_wait: float = 0.2
    longest_wait: float = 30.0
    hedge_after: float | None = None

    def __post_init__(self) -> None:
        checked_whole("Retries", "attempts", self.attempts, 1)
        for name in ("seconds", "first_wait", "longest_wait"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadArgument(f"Retries: {name}={getattr(self, name)!r} must be ≥ 0 and finite")
        if self.hedge_after is not None and not 0 < self.hedge_after < math.inf:
            raise BadArgument(f"Retries: hedge_after={self.hedge_after!r} must be positive")

    def rounds(self, dice: random.Random) -> AsyncIterator[stamina.Attempt]:
        """Attempts, with waits between those that fail."""
        begun = time.monotonic()
        failures = 0

        def wait(error: Exception) -> bool | float:
            nonlocal failures
            if not isinstance(error, Failed) or not error.again:
                return False
            failures += 1
            seconds = min(self.longest_wait, self.first_wait * 2.0 ** (failures - 1))
            seconds *= dice.uniform(0.5, 1.0)
            if error.retry_after is not None:
                seconds = error.retry_after
            if time.monotonic() - begun + seconds > self.seconds:
                return False
            return float(seconds)

        return stamina.retry_context(on=wait, attempts=self.attempts, timeout=None).__aiter__()


@dataclass
class Pace:
    """At most ``rate`` requests per second, evenly spaced, and none before a service wants to be asked."""

    rate: float | None
    _next: float = field(default=-math.inf)

    def pause(self, seconds: float) -> None:
        """Nobody asks for so long."""
        self._next = max(self._next, time.monotonic() + seconds)

    async def turn(self) -> None:
        """Wait for the next free moment."""
        while (ahead := self._next - time.monotonic()) > 0 and self.rate is None:
            await anyio.sleep(ahead)
        if self.rate is not None:
            slot = max(self._next, time.monotonic())
            self._next = slot + 1.0 / self.rate
            await anyio.sleep(max(0.0, slot - time.monotonic()))
