"""What is known of questions that are out: the books of `targetopt.oracle.asynchronous`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from targetopt.oracle.base import Oracle
from targetopt.types import Forward, Query, StepReport, TargetPoint


@dataclass(frozen=True)
class Late:
    """What became of one question.

    Attributes:
        number: of the question, in the order of asking, from 0.
        staleness: steps that were taken between asking and answer.
        report: of the step that the answer was used for; None if it was dropped as too stale (or if an
            interrupt struck between the step and the keeping of its report).
    """

    number: int
    staleness: int
    report: StepReport | None


@dataclass
class Pending:
    """A question that is out; what its thread finds, and how far its step has come, is noted here."""

    number: int
    query: Query
    forward: Forward
    index: Tensor | None
    oracle: Oracle
    claim: threading.Lock = field(default_factory=threading.Lock)
    arrival: int | None = None
    point: TargetPoint | None = None
    error: BaseException | None = None
    before: int | None = None
    report: StepReport | None = None


@dataclass(frozen=True)
class Books:
    """All that is known of the questions. A change is a new object in the old one's place: whole, or not at all.

    Attributes:
        asked: how many there were.
        order: those whose answers were used or dropped.
        dropped: how many were dropped.
        failed: how many the oracle did not answer.
        pending: those that are out.
        told: what became of some, before the caller was told.
    """

    asked: int = 0
    order: tuple[int, ...] = ()
    dropped: int = 0
    failed: int = 0
    pending: Mapping[int, Pending] = field(default_factory=dict)
    told: tuple[Late, ...] = ()

    def asking(self, pending: Pending) -> Books:
        out = {**self.pending, pending.number: pending}
        return replace(self, asked=self.asked + 1, pending=out)

    def without(self, pending: Pending, **changes: Any) -> Books:
        out = {number: each for number, each in self.pending.items() if each is not pending}
        return replace(self, pending=out, **changes)


def fault(state: Any) -> str:
    """What is wrong with a saved state; nothing if it can be taken up."""
    parts = ("opt", "asked", "order", "dropped", "failed", "pending")
    if not isinstance(state, Mapping) or not state.keys() >= set(parts):
        return f"it must have {', '.join(parts)}"
    counts = [state["asked"], state["dropped"], state["failed"]]
    if not isinstance(state["order"], list) or not isinstance(state["pending"], list):
        return "order and pending must be lists"
    if not all(type(count) is int and count >= 0 for count in (*counts, *state["order"])):
        return "asked, dropped, failed and the numbers in order must be whole numbers from 0 on"
    for saved in state["pending"]:
        if not isinstance(saved, Mapping) or not saved.keys() >= {
            "number",
            "step",
            "targets",
            "index",
            "rng",
        }:
            return "a question that was out must have number, step, targets, index and rng"
        if not all(type(saved[key]) is int and saved[key] >= 0 for key in ("number", "step")):
            return "number and step of a question must be whole numbers from 0 on"
        index = saved["index"]
        if not isinstance(saved["targets"], Tensor) or not isinstance(index, Tensor | None):
            return f"targets and index of question {saved['number']} must be tensors"
        if not isinstance(saved["rng"], list) or not all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], Tensor)
            for pair in saved["rng"]
        ):
            return f"rng of question {saved['number']} must be pairs of a device and its state"
    out = [saved["number"] for saved in state["pending"]]
    numbers = [*state["order"], *out]
    if len(set(numbers)) < len(numbers) or len(numbers) + state["failed"] != state["asked"]:
        return "its numbers do not add up: every question is used, failed or out, once"
    return ""
