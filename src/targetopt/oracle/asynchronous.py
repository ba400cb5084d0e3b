"""Several questions out at once: answers come late and out of order, and are used all the same."""

from __future__ import annotations

import itertools
import queue
from _thread import start_new_thread
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from targetopt.optim import SSO
from targetopt.oracle.answer import as_oracle
from targetopt.oracle.late import Books, Late, Pending, fault
from targetopt.types import (
    BadArgument,
    Forward,
    MissingCapability,
    Query,
    State,
    TargetPoint,
    checked_whole,
)


class Asynchronous:
    """Keeps several questions with the oracle, so that nobody waits for one answer at a time.

    `step` asks about a batch at the present parameters and, when ``in_flight`` questions are out, waits for
    whichever answer comes next and takes its step. A late answer g_k was given at the targets z_k; the model
    is at z by then. With ``anchor="present"`` its surrogate is ::

        q_k(z') = ⟨g_k, z' − z⟩ + (1/2η) ‖z' − z‖²

    which keeps what other steps have gained on these examples meanwhile, and treats g_k as if it were given
    at z. With ``anchor="asked"`` z_k stands in place of z: for η ≤ 1/L this bounds the loss of batch k from above
    wherever the model has gone, but its minimiser z_k − ηg_k undoes what was gained since. On logistic
    problems with four questions out, "present" took 11 to 45 steps to the loss of 40 synchronous ones, and "asked"
    65 to 155. On a structure designed for three loads in turn, where all questions are about the same targets,
    "present" took 19 steps to the loss of 18 synchronous ones, and "asked" 71. That is a favourable case. With
    another network, at the largest learning rate at which the synchronous run was still stable, "present" diverged:
    late answers about the same targets add up. If the loss grows, lower the learning rate or ``in_flight``, or use
    "asked".

    The run is determined by the order in which answers are used, which `order` tells, and can be repeated with
    ``replay=``.

    Args:
        opt: the optimiser, any rule and inner solver.
        in_flight: questions that are out at the same time. With as many batches as questions, or more, they are
            about different examples; asking about one batch four times at once gains nothing.
        max_staleness: answers that come after more steps than this are dropped (they are paid all the same);
            None uses all.
        anchor: where the surrogate of a late answer is anchored, ``"present"`` or ``"asked"``; see above.
        replay: numbers of questions in the order in which their answers are to be used.

    Forwards that move buffers (BatchNorm in training mode) are refused: a question's forward runs twice, when
    it is asked and when its answer is used. Dropout is drawn once, when it is asked.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(4, requires_grad=True)
        >>> def simulator(z):
        ...     return 0.5 * (z - 1) ** 2, z - 1
        >>> with to.Asynchronous(to.SSO([w], lr=1.0), in_flight=2) as asynchronous:
        ...     for k in range(4):
        ...         for late in asynchronous.step(
        ...             lambda k=k: w[k : k + 1], to.GradientOracle(simulator)
        ...         ):
        ...             assert late.staleness <= 3  # steps between its question and its answer
        >>> w.detach()
        tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        opt: SSO,
        *,
        in_flight: int = 4,
        max_staleness: int | None = None,
        anchor: Literal["present", "asked"] = "present",
        replay: Sequence[int] | None = None,
    ) -> None:
        self.opt = opt
        self.in_flight = checked_whole("Asynchronous", "in_flight", in_flight, 1)
        if max_staleness is not None:
            max_staleness = checked_whole("Asynchronous", "max_staleness", max_staleness, 0)
        if anchor not in ("present", "asked"):
            raise BadArgument(f"Asynchronous: anchor={anchor!r} must be 'present' or 'asked'")
        self.max_staleness = max_staleness
        self.anchor = anchor
        self._replay = None if replay is None else [int(number) for number in replay]
        self._books = Books()
        self._arrivals = itertools.count()
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def pending(self) -> list[int]:
        """The numbers of the questions that are out."""
        return list(self._books.pending)

    @property
    def order(self) -> list[int]:
        """The numbers of the questions in the order in which their answers were used."""
        return list(self._books.order)

    @property
    def dropped(self) -> int:
        """How many answers were too stale."""
        return self._books.dropped

    @property
    def failed(self) -> int:
        """How many questions the oracle did not answer."""
        return self._books.failed

    # -- asking -------------------------------------------------------------------------------------

    def step(self, forward: Forward, oracle: Any, *, index: Tensor | None = None) -> list[Late]:
        """Ask about a batch; when enough questions are out, use the next answer.

        After an error of the oracle its question is given up, nothing else has changed, and the others are
        still out: go on, or ask again. After an interrupt every question is still out or used, once; what
        became of those that were used is told by the next call.
        """
        answerer = as_oracle(oracle)
        query = self.opt.ask(forward, index=index)
        query.live = None  # its graph belongs to the parameters of now
        if query.buffers:
            raise MissingCapability(
                "Asynchronous: this forward moves buffers, as BatchNorm does in training mode, and would move "
                "them twice for each answer. Put these modules into eval mode, or use LayerNorm."
            )
        pending = Pending(self._books.asked, query, forward, index, answerer)
        self._books = self._books.asking(pending)
        return self._use(self.in_flight - 1)

    def finish(self) -> list[Late]:
        """Wait for all answers and use them."""
        return self._use(0)

    def _send(self) -> None:
        """Send every question that is not on its way; one that was sent is not sent again."""
        for pending in self._books.pending.values():
            if not pending.claim.locked():
                start_new_thread(
                    self._ask, (pending,)
                )  # one call into C, where `Thread.start` is many lines

    def _ask(self, pending: Pending) -> None:
        if not pending.claim.acquire(blocking=False):
            return  # an interrupt hid from the caller that another thread had been started
        try:
            pending.point = pending.oracle.query(pending.query.targets.clone())
        except BaseException as error:
            pending.error = error
        pending.arrival = next(self._arrivals)
        self._arrived.put(None)

    # -- using --------------------------------------------------------------------------------------

    def _use(self, at_most: int) -> list[Late]:
        self._send()
        while len(self._books.pending) > at_most:
            pending = self._next()
            if pending.error is not None:
                self._books = self._books.without(pending, failed=self._books.failed + 1)
                raise pending.error
            late, used = self._used(pending)
            books = self._books
            self._books = books.without(
                pending,
                order=(*books.order, pending.number),
                dropped=books.dropped + (not used),
                told=(*books.told, late),
            )
        told = self._books.told
        self._books = replace(self._books, told=())
        return list(told)

    def _next(self) -> Pending:
        """The question whose answer comes next, or is next in the order to be repeated."""
        books = self._books
        done = len(books.order)
        candidates = list(books.pending.values())
        if self._replay is not None and done < len(self._replay):
            wanted = self._replay[done]
            if wanted not in books.pending:
                raise BadArgument(
                    f"Asynchronous: replay= wants question {wanted} as number {done + 1}, and only "
                    f"{self.pending} are out: it is the order of another run"
                )
            candidates = [books.pending[wanted]]
        while True:
            ready = [each for each in candidates if each.arrival is not None]
            if ready:
                return min(ready, key=lambda each: each.arrival or 0)
            self._arrived.get()  # only to wait: what has arrived is noted with the question

    def _used(self, pending: Pending) -> tuple[Late, bool]:
        """What became of an answer, and whether a step was done with it.

        ``pending.before`` is the number of steps there were before this one: if there are more by now, an
        interrupt struck after the step was done and before it was noted, and it is not done again.
        """
        query, point, steps = pending.query, pending.point, self.opt._progress.steps
        assert point is not None
        if pending.before is not None and steps > pending.before:
            return Late(pending.number, pending.before - query.step, pending.report), True
        staleness = steps - query.step
        if self.max_staleness is not None and staleness > self.max_staleness:
            return Late(pending.number, staleness, None), False
        pending.before = steps
        known = _Known(point) if self.anchor == "present" else _KnownThere(point, query.targets)
        try:
            pending.report = self.opt.step(
                _redrawn(pending.forward, query), known, index=pending.index
            )
        except BaseException as error:
            pending.report = getattr(error, "report", pending.report)
            raise
        return Late(pending.number, staleness, pending.report), True

    # -- state --------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """All a resumed run needs beside the model: the optimiser's state and the questions that are out."""
        books = self._books
        return {
            "opt": self.opt.state_dict(),
            "asked": books.asked,
            "order": list(books.order),
            "dropped": books.dropped,
            "failed": books.failed,
            "pending": [
                {
                    "number": p.number,
                    "step": p.query.step,
                    "targets": p.query.targets,
                    "index": p.query.index,
                    "rng": [[device, state] for device, state in p.query.rng],
                }
                for p in books.pending.values()
            ],
        }

    def load_state_dict(self, state: State, batch: Callable[[int], tuple[Forward, Any]]) -> None:
        """Resume: questions that were out are asked again, at the targets they were about.

        With a ledger, those that were answered meanwhile cost nothing. A state that is refused changes nothing.

        Args:
            state: of `state_dict`.
            batch: from a question's number to its forward and oracle.
        """
        if self._books.asked:
            raise BadArgument("Asynchronous: load the state before the first step")
        wrong = fault(state)
        if wrong:
            raise BadArgument(
                f"Asynchronous: this is no state of an asynchronous run: {wrong}. Load what state_dict() gave."
            )
        pending = {}
        for saved in state["pending"]:
            forward, oracle = batch(saved["number"])
            query = Query(
                targets=saved["targets"],
                step=saved["step"],
                index=saved["index"],
                rng=[(device, tensor) for device, tensor in saved["rng"]],
            )
            pending[saved["number"]] = Pending(
                saved["number"], query, forward, saved["index"], as_oracle(oracle)
            )
        self.opt.load_state_dict(state["opt"])
        self._books = Books(
            state["asked"], tuple(state["order"]), state["dropped"], state["failed"], pending
        )
        self._send()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()


class _Known:
    """An oracle that has been asked."""

    def __init__(self, point: TargetPoint) -> None:
        self.point = point

    def query(self, z: Tensor) -> TargetPoint:
        return replace(self.point, targets=z)


class _KnownThere(_Known):
    """An oracle that has been asked about other targets: the rule of this one step begins where it was asked."""

    def __init__(self, point: TargetPoint, asked: Tensor) -> None:
        super().__init__(point)
        self.asked = asked

    def anchored(self, rule: Any) -> Any:
        return _Anchored(rule, self.asked)


class _Anchored:
    """A rule whose surrogates are anchored where the question was asked, not where the model is now."""

    def __init__(self, rule: Any, asked: Tensor) -> None:
        self.rule = rule
        self.asked = asked

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Any:
        return self.rule.propose(replace(point, targets=self.asked), lr, decay, state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


def _redrawn(forward: Forward, query: Query) -> Forward:
    """The forward with the random numbers it drew when it was asked; the generators stay where they are."""
    if not query.rng:
        return forward

    def again() -> Tensor:
        devices = [device for device, _ in query.rng if device != "cpu"]
        with torch.random.fork_rng(devices=devices):
            for device, state in query.rng:
                if device == "cpu":
                    torch.set_rng_state(state)
                else:
                    torch.get_device_module(device).set_rng_state(state, device)
            return forward()

    return again
