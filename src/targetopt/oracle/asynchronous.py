"""Several questions out at once: answers come late and out of order, and are used all the same."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from targetopt.optim import SSO
from targetopt.oracle.answer import as_oracle
from targetopt.oracle.base import Oracle
from targetopt.types import (
    BadArgument,
    Forward,
    MissingCapability,
    Query,
    State,
    StepReport,
    TargetPoint,
    checked_whole,
)


@dataclass(frozen=True)
class Late:
    """What became of one question.

    Attributes:
        number: of the question, in the order of asking, from 0.
        staleness: steps that were taken between asking and answer.
        report: of the step that the answer was used for; None if it was dropped as too stale.
    """

    number: int
    staleness: int
    report: StepReport | None


@dataclass
class _Pending:
    number: int
    query: Query
    forward: Forward
    index: Tensor | None
    point: TargetPoint | None = None
    error: BaseException | None = None


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
        ...             assert late.staleness <= 1
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
        self.order: list[int] = []
        self.dropped = 0
        self.failed = 0
        self._replay = None if replay is None else [int(number) for number in replay]
        self._asked = 0
        self._pending: dict[int, _Pending] = {}
        self._arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ready: list[int] = []

    @property
    def pending(self) -> list[int]:
        """The numbers of the questions that are out."""
        return list(self._pending)

    # -- asking -------------------------------------------------------------------------------------

    def step(self, forward: Forward, oracle: Any, *, index: Tensor | None = None) -> list[Late]:
        """Ask about a batch; when enough questions are out, use the next answer.

        After an error of the oracle its question is given up, nothing else has changed, and the others are
        still out: go on, or ask again.
        """
        answerer = as_oracle(oracle)
        query = self.opt.ask(forward, index=index)
        query.live = None  # its graph belongs to the parameters of now
        if query.buffers:
            raise MissingCapability(
                "Asynchronous: this forward moves buffers, as BatchNorm does in training mode, and would move "
                "them twice for each answer. Put these modules into eval mode, or use LayerNorm."
            )
        self._send(_Pending(self._asked, query, forward, index), answerer)
        self._asked += 1
        return self._use(self.in_flight - 1)

    def finish(self) -> list[Late]:
        """Wait for all answers and use them."""
        return self._use(0)

    def _send(self, pending: _Pending, oracle: Oracle) -> None:
        self._pending[pending.number] = pending

        def ask() -> None:
            try:
                pending.point = oracle.query(pending.query.targets.clone())
            except BaseException as error:
                pending.error = error
            self._arrived.put(pending.number)

        threading.Thread(target=ask, name=f"question {pending.number}", daemon=True).start()

    # -- using --------------------------------------------------------------------------------------

    def _use(self, at_most: int) -> list[Late]:
        results = []
        while len(self._pending) > at_most:
            pending = self._pending[self._next()]
            if pending.error is not None:
                self._forget(pending)
                self.failed += 1
                raise pending.error
            results.append(self._used(pending))
            self._forget(pending)  # after the step: an interrupt in it loses no answer
            self.order.append(pending.number)
            self.dropped += results[-1].report is None
        return results

    def _next(self) -> int:
        """The question whose answer comes next, or is next in the order to be repeated."""
        done = len(self.order)
        wanted = None
        if self._replay is not None and done < len(self._replay):
            wanted = self._replay[done]
            if wanted not in self._pending:
                raise BadArgument(
                    f"Asynchronous: replay= wants question {wanted} as number {done + 1}, and only "
                    f"{self.pending} are out: it is the order of another run"
                )
        while (wanted not in self._ready) if wanted is not None else not self._ready:
            self._ready.append(self._arrived.get())
        return self._ready[0] if wanted is None else wanted

    def _forget(self, pending: _Pending) -> None:
        self._ready.remove(pending.number)
        del self._pending[pending.number]

    def _used(self, pending: _Pending) -> Late:
        query, point = pending.query, pending.point
        assert point is not None
        staleness = int(self.opt.state_dict()["sso"]["steps"]) - query.step
        if self.max_staleness is not None and staleness > self.max_staleness:
            return Late(pending.number, staleness, None)
        with self._anchored_at(query.targets):
            report = self.opt.step(
                _redrawn(pending.forward, query), _Known(point), index=pending.index
            )
        return Late(pending.number, staleness, report)

    @contextmanager
    def _anchored_at(self, asked: Tensor) -> Iterator[None]:
        if self.anchor == "present":
            yield
            return
        rule = self.opt.rule
        self.opt.rule = _Anchored(rule, asked)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.opt.rule = rule

    # -- state --------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """All a resumed run needs beside the model: the optimiser's state and the questions that are out."""
        return {
            "opt": self.opt.state_dict(),
            "asked": self._asked,
            "order": list(self.order),
            "dropped": self.dropped,
            "failed": self.failed,
            "pending": [
                {
                    "number": p.number,
                    "step": p.query.step,
                    "targets": p.query.targets,
                    "index": p.query.index,
                    "rng": [[device, state] for device, state in p.query.rng],
                }
                for p in self._pending.values()
            ],
        }

    def load_state_dict(self, state: State, batch: Callable[[int], tuple[Forward, Any]]) -> None:
        """Resume: questions that were out are asked again, at the targets they were about.

        With a ledger, those that were answered meanwhile cost nothing.

        Args:
            state: of `state_dict`.
            batch: from a question's number to its forward and oracle.
        """
        if self._asked:
            raise BadArgument("Asynchronous: load the state before the first step")
        self.opt.load_state_dict(state["opt"])
        self._asked, self.order = int(state["asked"]), list(state["order"])
        self.dropped, self.failed = int(state["dropped"]), int(state["failed"])
        for saved in state["pending"]:
            forward, oracle = batch(saved["number"])
            query = Query(
                targets=saved["targets"],
                step=saved["step"],
                index=saved["index"],
                rng=[(device, tensor) for device, tensor in saved["rng"]],
            )
            pending = _Pending(saved["number"], query, forward, saved["index"])
            self._send(pending, as_oracle(oracle))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()


class _Known:
    """An oracle that has been asked."""

    def __init__(self, point: TargetPoint) -> None:
        self.point = point

    def query(self, z: Tensor) -> TargetPoint:
        return replace(self.point, targets=z)


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
