"""One question over many requests: chunks, concurrency, retries, ledger, budget, order restored.

The exchange runs in an event loop. What it does with one request is written down before and after: the
ledger's *reserved* and *sent* are on the disk before anything is sent, *answered* before the answer is
used. When a request fails for good, those on their way are waited for (they are paid), no more are sent, and
what came is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from decimal import Decimal

import anyio
import anyio.lowlevel

from targetopt.oracle.budget import Budget, Cost, Held
from targetopt.oracle.columns import Columns, joined, taken
from targetopt.oracle.errors import BudgetExceeded, OracleUnavailable
from targetopt.oracle.forms import Form, finite_rows
from targetopt.oracle.ledger import Book, Event, Request
from targetopt.oracle.progress import Tally
from targetopt.oracle.question import Question
from targetopt.oracle.remote.outcome import Failed, Reply, Transport
from targetopt.oracle.remote.retries import Pace, Retries
from targetopt.types import BadAnswer


class Stopped(Exception):
    """The user stopped the question; what came is kept."""


class NotSent(Failed):
    """The question ended while a request waited for its turn."""

    def __init__(self) -> None:
        super().__init__("not sent", lost=False, again=False)


@dataclass(frozen=True)
class Terms:
    """How requests are made."""

    batch: int
    concurrency: int
    retries: Retries
    timeout: float
    price: Callable[[int], Decimal] | None


@dataclass
class Work:
    """One question on its way."""

    question: Question
    parts: list[tuple[list[int], Columns]]
    waiting: deque[Request] = field(default_factory=deque)
    holds: dict[int, Held] = field(default_factory=dict)
    bases: dict[int, Cost] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    sends: dict[int, int] = field(default_factory=dict)
    announced: dict[int, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    failure: BaseException | None = None
    stopped: bool = False
    doomed: bool = False

    @property
    def ending(self) -> bool:
        """Whether nothing more is to be sent: the user stopped it, or a request failed for good."""
        return self.stopped or self.doomed or self.failure is not None

    def sent(self, request: Request, book: Book) -> int:
        """Count an attempt; its number, unique within the request."""
        number = request.number
        self.sends[number] = self.sends.get(number, 0) + 1
        known = book.requests.get(number)
        last = self.numbers.get(number, 0 if known is None else known.calls)
        self.numbers[number] = last + 1
        return last + 1

    def __post_init__(self) -> None:
        self.have = {position for positions, _ in self.parts for position in positions}

    def keep(self, positions: list[int], columns: Columns) -> None:
        """An answer that came."""
        self.parts.append((positions, columns))
        self.have.update(positions)

    def missing(self) -> list[int]:
        """Rows that nobody has answered."""
        return [row for row in range(self.question.rows) if row not in self.have]

    def waited(self) -> float:
        """Seconds since this was last called: together, the time the question took."""
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        return seconds


class Exchange:
    """Asks questions through a transport, on these terms."""

    def __init__(
        self,
        transport: Transport,
        terms: Terms,
        form: Form,
        book: Book,
        budget: Budget,
        pace: Pace,
        tally: Tally,
    ) -> None:
        self.transport = transport
        self.terms = terms
        self.form = form
        self.book = book
        self.budget = budget
        self.pace = pace
        self.tally = tally
        self._dice = random.Random(0x5EED)
        self._places: anyio.CapacityLimiter | None = None

    # -- a question ---------------------------------------------------------------------------------

    def begun(self, question: Question, parts: list[tuple[list[int], Columns]]) -> Work:
        """The question with what was answered before, its requests planned and their cost held."""
        work = Work(question, parts)
        missing = work.missing()
        if not missing:
            return work
        requests = self._resumed(work, missing)
        taken_up = {position for request in requests for position in request.positions}
        rest = [row for row in missing if row not in taken_up]
        requests += [
            self._request(work, rest[i : i + self.terms.batch])
            for i in range(0, len(rest), self.terms.batch)
        ]
        costs = [self._cost(request) for request in requests]
        paid = sum((request.maybe for request in requests), start=Cost())
        held = self.budget.hold(sum(costs, start=Cost()), paid=paid)  # all of the question, or none
        for request, cost in zip(requests, costs, strict=True):
            work.holds[request.number] = held.part(cost)
            work.bases[request.number] = request.cost - request.maybe
            work.waiting.append(request)
        return work

    def _resumed(self, work: Work, missing: Sequence[int]) -> list[Request]:
        """Requests of before whose answers never came, to be sent again under their keys."""
        if not self.transport.keyed:
            return []
        wanted = set(missing)
        found: list[Request] = []
        for request in self.book.requests_of(work.question):
            unanswered = request.unknown and not request.answered and request.keyed
            if unanswered and wanted.issuperset(request.positions):
                wanted.difference_update(request.positions)
                found.append(request)
        return found

    def _request(self, work: Work, positions: Sequence[int]) -> Request:
        price = Decimal(0) if self.terms.price is None else self.terms.price(len(positions))
        return self.book.new_request(
            work.question, positions, keyed=self.transport.keyed, price=price
        )

    @staticmethod
    def _cost(request: Request) -> Cost:
        return Cost(calls=1, rows=len(request.positions), money=request.price)

    async def finish(self, work: Work) -> Columns:
        """Send what is missing; the whole answer, in the question's order."""
        if work.waiting:
            await _written(self.book.write(self._opening(work)))
            self.tally.reserved(sum(len(r.positions) for r in work.waiting))
            try:
                await self._exchanged(work)
            finally:
                await self._withdrawn(work)
                for number, hold in work.holds.items():
                    hold.settle(self._came_to(number, work))
        if work.failure is not None:
            raise work.failure
        if work.missing():
            raise Stopped
        return joined(work.parts, work.question.rows)

    def _opening(self, work: Work) -> list[Event]:
        """What is written before anything is sent: the question, its requests, and those that go first."""
        events = [] if self.book.knows(work.question) else [self.book.asked(work.question)]
        fresh = [r for r in work.waiting if r.number not in self.book.requests]
        events += map(self.book.reserved, fresh)
        if self._ahead:
            for request in itertools.islice(work.waiting, self._workers):
                work.announced[request.number] = attempt = work.sent(request, self.book)
                events.append(self.book.sent(request, attempt))
        return events

    async def _withdrawn(self, work: Work) -> None:
        """Requests that were announced and never came to their turn."""
        events = [
            self.book.failed(
                self.book.requests[number], attempt, NotSent().reason, lost=False, unsent=True
            )
            for number, attempt in work.announced.items()
        ]
        if events:
            with anyio.CancelScope(shield=True):
                await _written(self.book.write(events))
            work.announced.clear()

    def _came_to(self, number: int, work: Work) -> Cost:
        request = self.book.requests.get(number)
        return Cost() if request is None else request.cost - work.bases[number]

    async def _exchanged(self, work: Work) -> None:
        limit = self.budget.limits.get("seconds")
        left = float("inf") if limit is None else max(0.0, limit - self.budget.spent.seconds)
        with anyio.move_on_after(left) as scope:
            async with anyio.create_task_group() as group:
                for _ in range(min(self._workers, len(work.waiting))):
                    group.start_soon(self._worker, work)
        if scope.cancelled_caught and work.missing():
            work.failure = BudgetExceeded(
                f"the budget of {limit} seconds of waiting ran out while {len(work.missing())} rows were on "
                "their way; they may have been paid. Nothing was changed, and answers that came are kept in "
                "the ledger. Raise Budget(seconds=) and run again."
            )

    async def _worker(self, work: Work) -> None:
        while work.waiting and not work.ending:
            request = work.waiting.popleft()
            try:
                await self._answered(request, work)
            except Exception as error:
                if work.failure is None:
                    work.failure = error

    # -- a request ----------------------------------------------------------------------------------

    async def _answered(self, request: Request, work: Work) -> None:
        """Send a request until it is answered; rows that a partial answer leaves out are asked anew."""
        try:
            async for attempt in self.terms.retries.rounds(self._dice):
                with attempt:
                    if attempt.num > 1:
                        if work.stopped:
                            return
                        self.tally.retries += 1
                    await self._hedged(request, work)
        except NotSent:
            return
        except Failed as error:
            if error.__cause__ is not None and not error.again:
                raise error.__cause__ from None  # the user's own error, as it is
            raise OracleUnavailable(
                f"{work.question.oracle} did not answer {len(request.positions)} rows (the first is row "
                f"{request.positions[0]}) after {work.sends[request.number]} attempts: {error.reason}. "
                "Nothing was changed, and answers that came are kept. Run the step again when this is mended."
            ) from error
        rest = [position for position in request.positions if position not in work.have]
        if rest:
            again = self._request(work, rest)
            work.holds[again.number] = self.budget.hold(self._cost(again))
            work.bases[again.number] = Cost()
            await _written(self.book.write([self.book.reserved(again)]))
            await self._answered(again, work)

    async def _hedged(self, request: Request, work: Work) -> None:
        """An attempt, and a copy of it if it takes long; the first answer counts."""
        after = self.terms.retries.hedge_after
        if after is None:
            await self._attempt(request, work)
            return
        failures: list[Exception] = []
        running, answered = 0, False

        async def run(delay: float) -> None:
            nonlocal running, answered
            await anyio.sleep(delay)
            self.tally.hedges += delay > 0
            running += 1
            try:
                await self._attempt(request, work, copy=delay > 0)
                answered = True
            except (Failed, BudgetExceeded) as error:
                failures.append(error)
            finally:
                running -= 1
            if answered or not running:
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(run, 0.0)
            group.start_soon(run, after)
        if not answered:
            raise failures[0]

    @property
    def _ahead(self) -> bool:
        """Whether *sent* may be written while a request waits for its turn.

        The disk is then busy while others are on their way. After a crash, requests that waited are in
        doubt as well, which costs nothing where a key is billed once, or where nothing is.
        """
        return self.transport.keyed or self.terms.price is None

    @property
    def _workers(self) -> int:
        return self.terms.concurrency * (2 if self._ahead else 1)

    def places(self) -> anyio.CapacityLimiter:
        """As many requests are on their way at once; questions of several threads share them."""
        if self._places is None:
            self._places = anyio.CapacityLimiter(self.terms.concurrency)
        return self._places

    async def _attempt(self, request: Request, work: Work, *, copy: bool = False) -> None:
        """Send once, with everything written down; a copy of a slow request does not wait for a place."""
        announced = work.announced.pop(request.number, None)
        number = work.sent(request, self.book) if announced is None else announced
        if work.sends[request.number] > 1:
            self._hold_more(request, work)
        sent = self.book.sent(request, number)
        columns = work.question.take(request.positions)
        if self._ahead and announced is None:
            await _written(self.book.write([sent]))
        begun, on_its_way = time.monotonic(), False
        try:
            async with contextlib.nullcontext() if copy else self.places():
                await self.pace.turn()
                if work.ending:
                    raise NotSent
                if not self._ahead:
                    await _written(self.book.write([sent]))
                self.tally.sent()
                begun, on_its_way = time.monotonic(), True
                with anyio.fail_after(self.terms.timeout):
                    reply = await self.transport.send(request, work.question, columns)
            await anyio.lowlevel.cancel_shielded_checkpoint()  # who waits for the place sends first
            positions, answer = self._checked(reply, request, columns)
        except BaseException as error:
            failed = _as_failed(error, self.terms.timeout)
            if failed.retry_after is not None:
                self.pace.pause(failed.retry_after)
            if not failed.again and self.terms.retries.hedge_after is None:
                work.doomed = True  # before others, who wait for the place, are sent
            if on_its_way or self._ahead:
                event = self.book.failed(
                    request,
                    number,
                    failed.reason if on_its_way else NotSent().reason,
                    lost=failed.lost and on_its_way,
                    unsent=not on_its_way,
                    price=failed.price,
                    seconds=time.monotonic() - begun,
                    waited=(waited := work.waited()),
                )
                with anyio.CancelScope(shield=True):
                    await _written(self.book.write([event]))
                self.budget.spend(Cost(seconds=waited))
            if isinstance(error, Exception):
                raise failed from failed.__cause__
            raise
        price = request.price if reply.price is None else reply.price
        if reply.price is None and self.terms.price and len(positions) < len(request.positions):
            price = self.terms.price(len(positions))
        event = self.book.answered(
            request,
            number,
            positions,
            answer,
            price=price,
            seconds=time.monotonic() - begun,
            waited=(waited := work.waited()),
        )
        with anyio.CancelScope(shield=True):
            await _written(self.book.write([event]))
        self.budget.spend(Cost(seconds=waited))
        work.keep(positions, answer)
        self.tally.answered(len(positions), price)

    def _hold_more(self, request: Request, work: Work) -> None:
        """A further attempt is a further call; if the service does not go by keys, it may be paid anew."""
        known = self.book.requests[request.number]
        more = Cost(calls=1)
        if not request.keyed and known.unknown:
            more += Cost(rows=len(request.positions), money=request.price)
        work.holds[request.number].more(more)

    def _checked(self, reply: Reply, request: Request, asked: Columns) -> tuple[list[int], Columns]:
        """The rows that were answered, in the question's order, and their columns."""
        columns, places = reply.columns, list(range(len(request.positions)))
        price = reply.price or Decimal(0)
        try:
            if reply.positions is not None:
                places = _places(reply.positions, request.positions)
                asked = taken(asked, places)
            checked = self.form.checked(columns, len(places), asked)
        except BadAnswer as error:
            raise Failed(f"the answer cannot be used: {error}", lost=True, price=price) from None
        good = finite_rows(checked)
        if not good:
            raise Failed("the answer has no row with finite numbers", lost=True, price=price)
        good.sort(key=lambda row: places[row])
        return [request.positions[places[row]] for row in good], taken(checked, good)


def _places(answered: Sequence[int], sent: Sequence[int]) -> list[int]:
    """Where the rows that were answered are among those that were sent."""
    place = {position: i for i, position in enumerate(sent)}
    unknown = [row for row in answered if row not in place]
    if unknown:
        raise BadAnswer(f"it has rows that were not asked: {unknown[:5]}")
    if len(set(answered)) < len(answered):
        raise BadAnswer("it has a row twice")
    return [place[row] for row in answered]


def _as_failed(error: BaseException, timeout: float) -> Failed:
    if isinstance(error, Failed):
        return error
    if isinstance(error, TimeoutError):
        return Failed(f"no answer within timeout={timeout:g} seconds", lost=True)
    if isinstance(error, Exception):
        wrong = Failed(f"{type(error).__name__}: {error}", lost=True, again=False)
        wrong.__cause__ = error
        return wrong
    return Failed("given up", lost=True)


async def _written(done: Future[None]) -> None:
    await asyncio.wrap_future(done)
