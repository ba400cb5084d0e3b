"""What a sequence of ledger events means: requests, what they cost, and which answers there are.

The book is computed from events alone, the same way when they are written and when they are read back. A
request goes *reserved → sent → answered or failed*. An attempt that failed is *refused* if the service
said so (nothing was paid), and *lost* if nobody knows (time-out, broken connection, a process that was
killed): it may have been paid. Where the service honours idempotency keys, all attempts of one request
are paid once; elsewhere each lost attempt may have been paid by itself.
"""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import Decimal

from targetopt.oracle.budget import Cost
from targetopt.oracle.columns import Columns, digest, pack
from targetopt.oracle.ledger.log import Event, Line
from targetopt.oracle.question import Question, as_ranges, from_ranges

NOTHING = Cost()


@dataclass
class Request:
    """Rows of one question that are sent together.

    Attributes:
        number: unique in the ledger.
        question: the question's digest.
        positions: which of its rows.
        key: the idempotency key: the same for the same rows of the same question of the same run.
        keyed: whether the service bills a key once.
        price: what the rows should cost.
        calls: attempts that were sent.
        underway: attempts without an outcome.
        lost: attempts whose outcome nobody knows.
        stated: lost attempts for which the service said what it billed.
        billed: what the service said it billed, for answers and failures.
        answered: rows that were answered.
        settled: how an attempt that an earlier process left underway was settled.
        counted: the cost, and what of it may have been paid, as they are in the book's totals.
    """

    number: int
    question: str
    positions: list[int]
    key: str
    keyed: bool = False
    price: Decimal = Decimal(0)
    calls: int = 0
    underway: set[int] = field(default_factory=set)
    lost: int = 0
    stated: int = 0
    billed: Decimal = Decimal(0)
    answered: int = 0
    settled: str = ""
    counted: tuple[Cost, Cost] = (NOTHING, NOTHING)

    @property
    def unknown(self) -> int:
        """Attempts that may have been paid beside those that were answered."""
        unknown = self.lost + len(self.underway)
        if self.keyed:
            return 0 if self.answered else min(unknown, 1)
        return unknown

    @property
    def maybe(self) -> Cost:
        """What may have been paid without an answer."""
        times = self.unknown
        if not times:
            return NOTHING
        money = (times - self.stated) * self.price
        if self.keyed:
            money = max(Decimal(0), times * self.price - self.billed)
        return Cost(rows=times * len(self.positions), money=money)

    def bill(self, price: Decimal) -> None:
        """The service says it billed this; with a key, all attempts have one bill."""
        self.billed = max(self.billed, price) if self.keyed else self.billed + price

    @property
    def cost(self) -> Cost:
        """All that this request cost, what may have been paid included."""
        certain = Cost(self.calls, self.answered, 0.0, self.billed)
        return certain + self.maybe if self.unknown else certain


class Book:
    """Requests and answers of a run, in memory; `Ledger` writes them down as well."""

    def __init__(self) -> None:
        self.run = secrets.token_hex(8)
        self._guard = threading.RLock()
        self.sessions = 0
        self.oracles: list[str] = []
        self.requests: dict[int, Request] = {}
        self.maybe = Cost()
        self._requested = Cost()
        self._waited = 0.0
        self.refused = 0
        self.questions: dict[str, int] = {}
        self._answers: dict[str, list[Line]] = defaultdict(list)
        self._requests_of: dict[str, list[int]] = defaultdict(list)
        self._next = 1

    # -- events -------------------------------------------------------------------------------------

    def new_request(
        self, question: Question, positions: Sequence[int], *, keyed: bool, price: Decimal
    ) -> Request:
        """A request with a number and a key of its own, not yet written."""
        ranges = as_ranges(positions)
        key = digest(self.run.encode(), question.digest.encode(), repr(ranges).encode())
        with self._guard:
            number = self._next
            self._next += 1
        return Request(number, question.digest, list(positions), key, keyed, price)

    def asked(self, question: Question) -> Event:
        body = {"kind": "question", "question": question.digest, "oracle": question.oracle}
        return Event({**body, "rows": question.rows, "draw": question.draw}, question.packed)

    @staticmethod
    def reserved(request: Request) -> Event:
        return Event(
            {
                "kind": "reserved",
                "request": request.number,
                "question": request.question,
                "positions": as_ranges(request.positions),
                "key": request.key,
                "keyed": request.keyed,
                "price": str(request.price),
            }
        )

    @staticmethod
    def sent(request: Request, attempt: int) -> Event:
        return Event({"kind": "sent", "request": request.number, "attempt": attempt})

    @staticmethod
    def answered(
        request: Request,
        attempt: int,
        positions: Sequence[int],
        columns: Columns,
        *,
        price: Decimal,
        seconds: float,
        waited: float,
    ) -> Event:
        body = {"kind": "answered", "request": request.number, "attempt": attempt}
        body |= {"question": request.question, "positions": as_ranges(positions)}
        body |= {"price": str(price), "seconds": round(seconds, 6), "waited": round(waited, 6)}
        return Event(body, pack(columns))

    @staticmethod
    def failed(
        request: Request,
        attempt: int,
        reason: str,
        *,
        lost: bool,
        price: Decimal = Decimal(0),
        seconds: float = 0.0,
        waited: float = 0.0,
        unsent: bool = False,
    ) -> Event:
        body = {"kind": "failed", "request": request.number, "attempt": attempt, "lost": lost}
        body |= {"unsent": True} if unsent else {}
        body |= {"reason": reason[:300], "price": str(price)}
        return Event({**body, "seconds": round(seconds, 6), "waited": round(waited, 6)})

    @staticmethod
    def settled(request: Request, how: str) -> Event:
        return Event({"kind": "settled", "request": request.number, "how": how})

    def write(self, events: Sequence[Event]) -> Future[None]:
        """Believe these events; done when they are as safe as this book can make them."""
        for event in events:
            self.apply(Line(0, event.body))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def apply(self, line: Line) -> None:
        """Take an event in."""
        with self._guard:
            self._take_in(line)
            number = line.body.get("request")
            if number is not None:
                self._count(self.requests[number])

    def load(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Take in many events, as `apply` would one by one, and pass them on; totals are summed at the end."""
        with self._guard:
            for line in lines:
                self._take_in(line)
                yield line
            for request in self.requests.values():
                self._count(request)

    def _take_in(self, line: Line) -> None:
        getattr(self, f"_on_{line.body['kind']}")(line)

    def _count(self, request: Request) -> None:
        """Bring the totals up to date with what a request costs by now."""
        cost, maybe = request.cost, request.maybe
        counted, maybe_counted = request.counted
        request.counted = (cost, maybe)
        self._requested += cost - counted
        if maybe is not maybe_counted:
            self.maybe += maybe - maybe_counted

    @property
    def spent(self) -> Cost:
        """What all requests cost, what may have been paid and the time that was waited included."""
        with self._guard:
            return self._requested + Cost(seconds=self._waited)

    def _on_run(self, line: Line) -> None:
        self.run = line.body["run"]

    def _on_session(self, line: Line) -> None:
        self.sessions += 1

    def _on_oracle(self, line: Line) -> None:
        self.oracles.append(line.body["oracle"])

    def _on_question(self, line: Line) -> None:
        self.questions[line.body["question"]] = line.seq

    def _on_reserved(self, line: Line) -> None:
        body = line.body
        number = body["request"]
        self.requests[number] = Request(
            number,
            body["question"],
            from_ranges(body["positions"]),
            body["key"],
            body["keyed"],
            Decimal(body["price"]),
        )
        self._requests_of[body["question"]].append(number)
        self._next = max(self._next, number + 1)

    def _on_sent(self, line: Line) -> None:
        request = self.requests[line.body["request"]]
        request.calls += 1
        request.underway.add(line.body["attempt"])

    def _on_answered(self, line: Line) -> None:
        body = line.body
        request = self.requests[body["request"]]
        request.underway.discard(body["attempt"])
        request.answered += sum(stop - start for start, stop in body["positions"])
        request.bill(Decimal(body["price"]))
        self._waited += body["waited"]
        self._keep_answer(line)

    def _on_failed(self, line: Line) -> None:
        body = line.body
        request = self.requests[body["request"]]
        request.underway.discard(body["attempt"])
        request.calls -= "unsent" in body  # it was still waiting for its turn
        price = Decimal(body["price"])
        request.lost += bool(body["lost"])
        request.stated += bool(body["lost"] and price)
        request.bill(price)
        self.refused += not body["lost"] and "unsent" not in body
        self._waited += body["waited"]

    def _on_settled(self, line: Line) -> None:
        request = self.requests[line.body["request"]]
        request.settled = line.body["how"]
        request.lost += len(request.underway)
        request.underway.clear()

    def _keep_answer(self, line: Line) -> None:
        """Without a file, answers are the asker's to keep."""

    # -- looking up -----------------------------------------------------------------------------------

    def knows(self, question: Question) -> bool:
        return question.digest in self.questions

    def requests_of(self, question: Question) -> list[Request]:
        """The requests that were made for this question, oldest first."""
        with self._guard:
            return [self.requests[n] for n in self._requests_of.get(question.digest, ())]

    def replay(self, question: Question) -> list[tuple[list[int], Columns]]:
        """The parts of this question's answer that were written before."""
        return []

    def unsettled(self) -> list[Request]:
        """Requests that were sent and have no outcome: they may have been paid."""
        with self._guard:
            return [request for request in self.requests.values() if request.underway]

    def forget(self, question: Question) -> None:
        """A book without a file need not remember the requests of a question that is answered."""
        with self._guard:
            for number in self._requests_of.pop(question.digest, ()):
                del self.requests[number]
            self.questions.pop(question.digest, None)
