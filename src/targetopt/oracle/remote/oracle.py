"""`RemoteOracle`: any function or service as an oracle, asked in chunks, concurrently, and accounted for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self

import numpy as np
from torch import Tensor

from targetopt.oracle.budget import Budget, exact
from targetopt.oracle.cache import Cache
from targetopt.oracle.columns import Column, Columns, as_column, joined, row_digests, taken
from targetopt.oracle.errors import UnsettledRequests
from targetopt.oracle.forms import Form, Gradients
from targetopt.oracle.ledger import Book, Ledger
from targetopt.oracle.progress import Progress, Tally
from targetopt.oracle.question import Question
from targetopt.oracle.remote.background import Background
from targetopt.oracle.remote.exchange import Exchange, Stopped, Terms, Work
from targetopt.oracle.remote.function import Function
from targetopt.oracle.remote.http import Http, Service
from targetopt.oracle.remote.outcome import Transport
from targetopt.oracle.remote.retries import Pace, Retries
from targetopt.types import BadArgument, TargetPoint, checked_whole

Price = float | Decimal | Callable[[int], float | Decimal]


class RemoteOracle:
    """An oracle that is slow, paid for or elsewhere.

    The rows of a question are sent in requests of ``batch`` rows, ``concurrency`` at a time. Requests
    that fail are sent again; of a partial answer, only the missing rows are. The answer is in the order of
    the question, whatever the order of arrival, so training gives the same bits as with a local oracle.

    Args:
        function_or_url: a function ``targets -> (losses, gradients)`` of tensors, synchronous (it is called
            in threads) or asynchronous; or the URL of a service that speaks the protocol of
            `targetopt.oracle.remote.protocol`, or a `Service`. With `about`, functions get
            ``(targets, inputs)``; with an ``answers=`` that does not need the targets, ``(inputs)``.
        batch: rows in one request.
        concurrency: requests on their way at the same time.
        retries: how often a failed request is sent again, or a `Retries` with waits and hedging.
        timeout: seconds for one request.
        rate: requests per second, at most.
        price: of one row, or a function from the number of rows to the price of a request. What the service
            says it billed goes before it.
        answers: the form of the answers; by default losses and gradients. See `targetopt.oracle.teachers`.
        ledger: a `Ledger`; without one, nothing outlives the process. Whoever opened it closes it, after this
            oracle; several oracles may share one.
        budget: a `Budget`.
        cache: a `Cache`, for answers that do not depend on the targets.
        name: of the oracle, in the ledger and the cache; by default the function's name or the URL.
        version: change it when the oracle would answer differently.
        progress: called with a `Progress` while requests are on their way; `to.show_progress()` prints.

    Example:
        >>> import torch, targetopt as to
        >>> def simulator(z):
        ...     return 0.5 * (z - 3) ** 2, z - 3
        >>> with to.RemoteOracle(
        ...     simulator, batch=2, price=0.01, budget=to.Budget(money=1)
        ... ) as oracle:
        ...     point = oracle.query(torch.tensor([1.0, 3.0, 5.0]))
        >>> point.gradients
        tensor([-2.,  0.,  2.])
        >>> oracle.progress().calls, oracle.progress().money
        (2, Decimal('0.03'))
    """

    def __init__(
        self,
        function_or_url: Callable[..., Any] | str | Service,
        *,
        batch: int = 64,
        concurrency: int = 8,
        retries: int | Retries = 5,
        timeout: float = 120.0,
        rate: float | None = None,
        price: Price | None = None,
        answers: Form | None = None,
        ledger: Ledger | None = None,
        budget: Budget | None = None,
        cache: Cache | None = None,
        name: str | None = None,
        version: str = "",
        progress: Callable[[Progress], object] | None = None,
    ) -> None:
        own = type(self).__name__
        batch = checked_whole(own, "batch", batch, 1)
        concurrency = checked_whole(own, "concurrency", concurrency, 1)
        if not isinstance(retries, Retries):
            retries = Retries(attempts=1 + checked_whole(own, "retries", retries, 0))
        for label, value in (("timeout", timeout), ("rate", 1.0 if rate is None else rate)):
            if not 0 < value < float("inf"):
                raise BadArgument(f"{own}: {label}={value!r} must be positive and finite")
        self.form = Gradients() if answers is None else answers
        if cache is not None and self.form.needs_targets:
            raise BadArgument(
                f"{own}: cache= keeps answers by example, and these depend on the targets, which change in "
                "every step. Leave the cache out (the ledger replays questions that were answered), or use an "
                "oracle that returns labels or probabilities: answers=to.teachers.from_labels(loss)."
            )
        if budget is not None and "money" in budget.limits and price is None:
            raise BadArgument(
                f"{own}: Budget(money=) needs price=, so that a request's cost can be held before it is sent"
            )
        self.transport = self._transport(function_or_url, concurrency)
        self.identity = (name or _named(function_or_url)) + (f"@{version}" if version else "")
        self.ledger, self.cache = ledger, cache
        self.budget = Budget() if budget is None else budget
        self._book: Book = Book() if ledger is None else ledger
        if ledger is not None:
            ledger.admit(self.identity)
            self.budget.carry_over(ledger.run, ledger.spent)
        self._tally = Tally(self.budget, progress, lambda: max(1, self._book.sessions))
        terms = Terms(batch, concurrency, retries, float(timeout), _priced(price))
        self._exchange = Exchange(
            self.transport, terms, self.form, self._book, self.budget, Pace(rate), self._tally
        )
        self._unfinished: dict[str, list[tuple[list[int], Columns]]] = {}
        self._background = Background()
        self._closing = weakref.finalize(self, self._background.close)

    def _transport(self, target: Any, concurrency: int) -> Transport:
        if isinstance(target, str):
            target = Service(target)
        if isinstance(target, Service):
            return Http(target, self.form, concurrency)
        if not callable(target):
            raise BadArgument(
                f"RemoteOracle: function_or_url={target!r} must be a function, a URL or a Service"
            )
        return Function(target, self.form, concurrency)

    # -- asking -------------------------------------------------------------------------------------

    def about(self, inputs: object, *, draw: object = "") -> About:
        """An oracle about these examples: their inputs are sent along with the targets.

        Args:
            inputs: one row per example: a tensor, an array, or a list of texts or other JSON values.
            draw: for oracles that answer with noise. Questions with the same rows are answered once and
                then replayed, unless their ``draw`` differs; the number of the step will do.
        """
        return About(self, as_column("inputs", inputs), str(draw))

    def query(self, z: Tensor) -> TargetPoint:
        """Ask about the targets alone."""
        return About(self, None, "").query(z)

    def labels(self, inputs: object, *, draw: object = "") -> Column:
        """The teacher's answers about these examples as they are, for whoever makes their own loss of them.

        The expert of imitation learning is such a teacher: ``to.imitation.train(env, oracle.labels)`` asks it
        with ledger, budget, retries and, as a `RayOracle`, on many workers.

        Args:
            inputs: one row per example, as for `about`.
            draw: as for `about`.

        Example:
            >>> import numpy as np, targetopt as to
            >>> answers = to.teachers.from_labels(to.losses.Squared)
            >>> with to.RemoteOracle(lambda x: -x[:, :1], answers=answers, batch=2) as expert:
            ...     expert.labels(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
            array([[-1.],
                   [-2.],
                   [-3.]])
        """
        if self.form.needs_targets or len(self.form.columns) != 1:
            raise BadArgument(
                "labels(inputs) needs an oracle that returns one label per example, whatever the targets are: "
                "answers=to.teachers.from_labels(loss)"
            )
        question = Question(self.identity, {"inputs": as_column("inputs", inputs)}, str(draw))
        return self._ask(question)[self.form.columns[0]]

    def _ask(self, question: Question) -> Columns:
        """The whole answer: from the cache, the ledger, and the oracle."""
        self._tally.began()
        keys: list[bytes] = []
        cached: dict[int, Columns] = {}
        if self.cache is not None:
            keys = row_digests(question.oracle, question.columns)
            cached = self.cache.get(keys)
        replayed = self._book.replay(question)
        parts = [([row], columns) for row, columns in cached.items()]
        parts += replayed + self._unfinished.pop(question.digest, [])
        before = len(parts)
        self._settle(question)
        work = self._exchange.begun(question, parts)
        waiting = len(work.missing())
        try:
            columns = self._finished(work)
        except BaseException:
            if self.ledger is None:
                self._unfinished[question.digest] = work.parts
            self._tally.given_up(len(work.missing()) if waiting else 0)
            raise
        finally:
            self._remember(work, keys, before)
        self._book.forget(question)
        self._tally.finished(
            replayed=sum(len(rows) for rows, _ in replayed if not set(rows) <= set(cached)),
            cached=len(cached),
        )
        return columns

    def _finished(self, work: Work) -> Columns:
        if not work.waiting:
            return joined(work.parts, work.question.rows)
        answer = self._background.start(self._exchange.finish, work)
        try:
            return answer.result()
        except Stopped:
            raise KeyboardInterrupt from None
        except KeyboardInterrupt:
            work.stopped = True  # no more are sent; those on their way are paid, and waited for
            try:
                answer.exception()
            except KeyboardInterrupt:
                answer.cancel()
            raise

    def _remember(self, work: Work, keys: list[bytes], before: int) -> None:
        """Put new answers into the cache, of questions that failed too."""
        if self.cache is not None and len(work.parts) > before:
            self.cache.put(
                {
                    keys[position]: taken(columns, [i])
                    for positions, columns in work.parts[before:]
                    for i, position in enumerate(positions)
                }
            )

    def _settle(self, question: Question) -> None:
        """What becomes of requests that an earlier process sent and whose outcome nobody knows."""
        if self.ledger is None:
            return
        underway = [r for r in self._book.requests_of(question) if r.underway]
        if not underway:
            return
        keyed = self.transport.keyed and all(r.keyed for r in underway)
        free = all(not r.price for r in underway)
        policy = self.ledger.policy or ("key" if keyed else "again" if free else "stop")
        if policy == "key" and not keyed:
            raise BadArgument(
                f"Ledger: unsettled='key' needs a service that bills an idempotency key once; {self.identity} "
                "is none. Use unsettled='again' or 'stop'."
            )
        if policy == "stop":
            rows = sum(len(r.positions) for r in underway)
            raise UnsettledRequests([r.number for r in underway], rows, self.ledger.path)
        self._book.write([self._book.settled(request, policy) for request in underway]).result()

    # -- looking and closing ----------------------------------------------------------------------

    def progress(self) -> Progress:
        """How far the work has come; ``progress().summary()`` says it in a sentence."""
        return self._tally.progress()

    def close(self) -> None:
        """Let go of connections and threads. The ledger and the cache belong to who opened them, and stay open."""
        if self._background.running:
            self._background.start(self.transport.close).result()
        self._closing()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class About:
    """A `RemoteOracle` about certain examples; what ``oracle.about(inputs)`` returns."""

    def __init__(self, oracle: RemoteOracle, inputs: Any, draw: str) -> None:
        self.oracle = oracle
        self.inputs = inputs
        self.draw = draw

    def query(self, z: Tensor) -> TargetPoint:
        form = self.oracle.form
        columns: Columns = {"targets": as_column("targets", z)} if form.needs_targets else {}
        if self.inputs is not None:
            if len(self.inputs) != z.shape[0]:
                raise BadArgument(
                    f"about(inputs) has {len(self.inputs)} rows and the targets have {z.shape[0]}; give one "
                    "input per example of the batch"
                )
            columns["inputs"] = self.inputs
        if not columns:
            raise BadArgument(
                "this oracle answers about inputs: opt.step(forward, oracle.about(x)), with one row of x per "
                "example"
            )
        columns = {n: np.array(c) if isinstance(c, np.ndarray) else c for n, c in columns.items()}
        question = Question(self.oracle.identity, columns, self.draw)
        return form.point(self.oracle._ask(question), z)


def _named(target: Any) -> str:
    if isinstance(target, Service):
        return target.url
    if isinstance(target, str):
        return target
    return str(getattr(target, "__qualname__", type(target).__qualname__))


def _priced(price: Price | None) -> Callable[[int], Decimal] | None:
    if price is None:
        return None
    if callable(price):
        of_request = price
        return lambda rows: exact("price(rows)", of_request(rows))
    per_row = exact("price", price)
    return lambda rows: rows * per_row
