"""How one attempt at a request can end, as transports tell it to the exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from targetopt.oracle.columns import Columns
from targetopt.oracle.ledger import Request
from targetopt.oracle.question import Question


@dataclass(frozen=True)
class Reply:
    """An answer: its columns, which of the question's rows they are (None: all that were sent, in order),
    and what was billed (None: the service does not say)."""

    columns: Columns
    positions: Sequence[int] | None = None
    price: Decimal | None = None


class Failed(Exception):
    """The attempt gave no usable answer.

    Args:
        reason: for people.
        lost: whether it may have been paid: nobody knows what became of it.
        again: whether trying again may help.
        retry_after: seconds the service asked us to wait.
        price: what the service said it billed all the same.
    """

    def __init__(
        self,
        reason: str,
        *,
        lost: bool,
        again: bool = True,
        retry_after: float | None = None,
        price: Decimal = Decimal(0),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost = lost
        self.again = again
        self.retry_after = retry_after
        self.price = price


class Busy(Failed):
    """Raise it in a function of yours to say: not now, nothing was paid, try again.

    Args:
        reason: for people.
        retry_after: seconds to wait, if known.
    """

    def __init__(self, reason: str = "busy", retry_after: float | None = None) -> None:
        super().__init__(reason, lost=False, retry_after=retry_after)


class Transport(Protocol):
    """Carries requests to where they are answered.

    Attributes:
        keyed: whether a request that is sent twice with one key is paid once.
    """

    keyed: bool

    async def send(self, request: Request, question: Question, columns: Columns) -> Reply:
        """Send these rows and wait for the answer. Raises `Failed`; other errors are the user's own."""
        ...

    async def close(self) -> None:
        """Let go of connections and workers."""
        ...
