"""Progress for whoever waits for an oracle: what was sent, answered, spent, and how long it will take."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, TextIO

from targetopt.oracle.budget import Budget


@dataclass(frozen=True)
class Progress:
    """How far an oracle's work has come, in this process.

    Attributes:
        questions: answered in full.
        calls: requests sent, retries included.
        rows: answered by the oracle.
        rows_waiting: asked and not answered yet.
        replayed: rows that came from the ledger.
        cached: rows that came from the cache.
        retries: requests that were sent again.
        hedges: copies of slow requests.
        money: billed in this process.
        seconds: since the first question.
        rate: rows per second, over the time there were rows to wait for.
        seconds_left: until the rows that wait are answered, at this rate; None if not known yet.
        spent: money spent by the whole run, as the budget counts it.
        limit: of the budget, or None.
        sessions: processes that worked on the ledger, this one included.
    """

    questions: int = 0
    calls: int = 0
    rows: int = 0
    rows_waiting: int = 0
    replayed: int = 0
    cached: int = 0
    retries: int = 0
    hedges: int = 0
    money: Decimal = Decimal(0)
    seconds: float = 0.0
    rate: float = 0.0
    seconds_left: float | None = None
    spent: Decimal = Decimal(0)
    limit: Decimal | None = None
    sessions: int = 1

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for trackers."""
        return {
            name: float(value) if isinstance(value, Decimal) else value
            for name, value in asdict(self).items()
        }

    def __str__(self) -> str:
        """One line for people.

        Example:
            >>> print(Progress(calls=3, rows=128, rows_waiting=64, rate=32.0, seconds_left=2.0))
            128 rows in 3 calls, 32 rows/s, 64 waiting (2 s left)
        """
        text = f"{self.rows} rows in {self.calls} calls, {self.rate:.3g} rows/s"
        if self.rows_waiting:
            left = "" if self.seconds_left is None else f" ({_spoken(self.seconds_left)} left)"
            text += f", {self.rows_waiting} waiting{left}"
        if self.spent or self.limit is not None:
            text += f", spent {_amount(self.spent)}"
            text += "" if self.limit is None else f" of {_amount(self.limit)}"
        for count, word in (
            (self.cached, "from the cache"),
            (self.replayed, "from the ledger"),
            (self.retries, "retries"),
        ):
            text += f", {count} {word}" if count else ""
        return text

    def summary(self) -> str:
        """What it came to, in a sentence.

        Example:
            >>> done = Progress(
            ...     calls=9,
            ...     rows=390,
            ...     cached=610,
            ...     spent=Decimal("1.84"),
            ...     limit=Decimal(5),
            ...     sessions=2,
            ... )
            >>> print(done.summary())
            spent 1.84 of 5.00, 61 % from the cache, resumed once: 1000 rows, 390 of them asked in 9 calls
        """
        rows = self.rows + self.cached + self.replayed
        parts = []
        if self.spent or self.limit is not None:
            limit = "" if self.limit is None else f" of {_amount(self.limit)}"
            parts.append(f"spent {_amount(self.spent)}{limit}")
        for count, word in ((self.cached, "cache"), (self.replayed, "ledger")):
            if count:
                parts.append(f"{100 * count / rows:.0f} % from the {word}")
        if self.sessions > 1:
            times = self.sessions - 1
            parts.append("resumed once" if times == 1 else f"resumed {times} times")
        if self.retries:
            parts.append(f"{self.retries} {'retry' if self.retries == 1 else 'retries'}")
        told = f"{rows} rows, {self.rows} of them asked in {self.calls} calls"
        return f"{', '.join(parts)}: {told}" if parts else told


def _amount(money: Decimal) -> str:
    return f"{money:.2f}" if money == round(money, 2) else f"{money.normalize():f}"


def _spoken(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Tally:
    """Counts as they come in; calls back with a `Progress`, at most every ``every`` seconds."""

    def __init__(
        self,
        budget: Budget,
        callback: Callable[[Progress], object] | None,
        sessions: Callable[[], int],
        every: float = 0.5,
    ) -> None:
        self.questions = self.calls = self.rows = self.waiting = 0
        self.replayed = self.cached = self.retries = self.hedges = 0
        self.money = Decimal(0)
        self._budget = budget
        self._callback = callback
        self._sessions = sessions
        self._every = every
        self._begun: float | None = None
        self._busy = 0.0
        self._busy_since: float | None = None
        self._told = -float("inf")
        self._lock = threading.Lock()

    def began(self) -> None:
        if self._begun is None:
            self._begun = time.monotonic()

    def reserved(self, rows: int) -> None:
        with self._lock:
            if not self.waiting:
                self._busy_since = time.monotonic()
            self.waiting += rows
        self._tell()

    def sent(self) -> None:
        self.calls += 1
        self._tell()

    def answered(self, rows: int, money: Decimal) -> None:
        with self._lock:
            self.rows += rows
            self.money += money
            self._waits_less(rows)
        self._tell()

    def given_up(self, rows: int) -> None:
        with self._lock:
            self._waits_less(rows)
        self._tell()

    def _waits_less(self, rows: int) -> None:
        self.waiting -= rows
        if self.waiting <= 0 and self._busy_since is not None:
            self._busy += time.monotonic() - self._busy_since
            self._busy_since = None

    def finished(self, *, replayed: int, cached: int) -> None:
        self.questions += 1
        self.replayed += replayed
        self.cached += cached
        self._tell(now=True)

    def progress(self) -> Progress:
        """As things stand."""
        now = time.monotonic()
        busy = self._busy + (0.0 if self._busy_since is None else now - self._busy_since)
        rate = self.rows / busy if busy > 0 else 0.0
        return Progress(
            questions=self.questions,
            calls=self.calls,
            rows=self.rows,
            rows_waiting=max(0, self.waiting),
            replayed=self.replayed,
            cached=self.cached,
            retries=self.retries,
            hedges=self.hedges,
            money=self.money,
            seconds=0.0 if self._begun is None else now - self._begun,
            rate=rate,
            seconds_left=self.waiting / rate if rate and self.waiting > 0 else None,
            spent=self._budget.spent.money,
            limit=self._budget.limits.get("money"),
            sessions=self._sessions(),
        )

    def _tell(self, now: bool = False) -> None:
        if self._callback is None:
            return
        moment = time.monotonic()
        if now or moment - self._told >= self._every:
            self._told = moment
            self._callback(self.progress())


def show_progress(stream: TextIO | None = None) -> Callable[[Progress], None]:
    """A callback that keeps one line up to date in a terminal, and prints whole lines elsewhere.

    Example:
        >>> show = show_progress(sys.stdout)
        >>> show(Progress(calls=1, rows=64, rate=32.0))
        64 rows in 1 calls, 32 rows/s
    """
    out = sys.stderr if stream is None else stream
    terminal = out.isatty()

    def show(progress: Progress) -> None:
        out.write(f"\r\x1b[K{progress}" if terminal else f"{progress}\n")
        out.flush()

    return show
