"""What an expensive oracle was asked and said: one record for every answer, at no further cost."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from targetopt.lab.problems.states import check_keys, checked_count
from targetopt.types import BadArgument, TargetPoint

if TYPE_CHECKING:
    from targetopt.lab.problems.base import Problem
    from targetopt.oracle import Oracle

Record = dict[str, float | int]

_COUNTED = ("oracle_calls", "value_calls")
_MEASURED = ("oracle_time", "method_time", "lowest")


class Trail:
    """Counts the questions of a run and keeps what was answered until it is written down.

    A question for a value alone counts as much as one with a gradient, because a solver has to be
    called for both. ``oracle_time`` is what the oracle took by the clock; making a forward belongs to it, since
    some oracles (an attack) decide there what the model will be asked. ``method_time`` is the processor time
    that the method itself took within steps (`step`): it hardly depends on how busy the machine was.

    Example:
        >>> import torch, targetopt as to
        >>> trail = Trail()
        >>> oracle = trail.around(to.GradientOracle(lambda z: (z**2, 2 * z)))
        >>> _ = oracle.query(torch.tensor([3.0, 1.0])), oracle.query(torch.tensor([0.0, 2.0]))
        >>> [(record["oracle_calls"], record["loss"]) for record in trail.take()]
        [(1, 5.0), (2, 2.0)]
        >>> trail.calls, trail.take()
        (2, [])
    """

    def __init__(self) -> None:
        self.oracle_calls = 0
        self.value_calls = 0
        self.oracle_time = 0.0
        self.method_time = 0.0
        self.lowest = math.inf
        self._pending: list[Record] = []

    @property
    def calls(self) -> int:
        """All questions so far, those for values included."""
        return self.oracle_calls + self.value_calls

    def watch(self, problem: Problem) -> Problem:
        """The same problem; what its oracle is asked from now on is kept here."""
        watched = copy.copy(problem)
        parts: dict[str, Any] = {
            "oracle": lambda index=None: self.around(problem.oracle(index)),
            "forward": lambda model, index=None: self._timed(problem.forward, model, index),
        }
        vars(watched).update(parts)
        return watched

    def around(self, oracle: Oracle) -> Oracle:
        """An oracle with the same answers, each of which is noted."""
        return _Watched(oracle, self)

    def ask(self, oracle: Oracle, z: Tensor) -> TargetPoint:
        point: TargetPoint = self._timed(oracle.query, z)
        self.oracle_calls += 1
        if point.losses is not None:
            self._note(float(point.loss))
        value = point.value
        if value is None:
            return point
        return replace(point, value=lambda other: self._value(value, other))

    def _value(self, value: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        losses: Tensor = self._timed(value, z)
        self.value_calls += 1
        self._note(float(losses.mean()))
        return losses

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        began, busy = time.perf_counter(), time.process_time()
        try:
            return function(*arguments)
        finally:
            self.oracle_time += time.perf_counter() - began
            self.method_time -= time.process_time() - busy  # `step` counts all of it

    def step(self, function: Callable[[], None]) -> None:
        """A step of the method, whose processor time is counted but for that of its questions."""
        busy = time.process_time()
        try:
            function()
        finally:
            self.method_time += time.process_time() - busy

    def _note(self, loss: float) -> None:
        self.lowest = min(self.lowest, loss)
        self._pending.append(
            {
                "oracle_calls": self.oracle_calls,
                "value_calls": self.value_calls,
                "loss": loss,
                "lowest": self.lowest,
            }
        )

    def take(self) -> list[Record]:
        """The answers that were not taken yet: calls so far, the loss, the lowest loss so far."""
        taken, self._pending = self._pending, []
        times = {"oracle_time": self.oracle_time, "method_time": self.method_time}
        return [{**record, **times} for record in taken]

    def state_dict(self) -> dict[str, Any]:
        return {
            "oracle_calls": self.oracle_calls,
            "value_calls": self.value_calls,
            "oracle_time": self.oracle_time,
            "method_time": self.method_time,
            "lowest": self.lowest,
            "pending": [dict(record) for record in self._pending],
        }

    def load_state_dict(self, state: Any) -> None:
        check_keys(state, (*_COUNTED, *_MEASURED, "pending"))
        for name in _COUNTED:
            setattr(self, name, checked_count(name, state[name]))
        for name in _MEASURED:
            if not isinstance(state[name], float) or math.isnan(state[name]):
                raise BadArgument(f"{name} is {state[name]!r}, not a number")
            setattr(self, name, state[name])
        names = {"oracle_calls", "value_calls", "loss", "lowest"}
        pending = state["pending"]
        if not isinstance(pending, list) or any(
            not isinstance(each, dict)
            or each.keys() != names
            or any(type(number) not in (int, float) for number in each.values())
            for each in pending
        ):
            raise BadArgument("pending is not a list of answers")
        self._pending = [dict(record) for record in pending]


class _Watched:
    """An oracle whose answers a trail keeps; what else it declares is what it declared before."""

    def __init__(self, oracle: Oracle, trail: Trail) -> None:
        self._oracle = oracle
        self._trail = trail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def query(self, z: Tensor) -> TargetPoint:
        return self._trail.ask(self._oracle, z)
