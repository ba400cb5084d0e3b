"""Functions of the user's as transports: synchronous ones run in threads, asynchronous ones in the loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import numpy as np
import torch
from anyio import CapacityLimiter, to_thread

from targetopt.oracle.columns import Column, Columns
from targetopt.oracle.forms import Form
from targetopt.oracle.ledger import Request
from targetopt.oracle.question import Question
from targetopt.oracle.remote.outcome import Failed, Reply
from targetopt.types import BadAnswer, BadArgument

MISTAKES = (
    TypeError,
    NameError,
    AttributeError,
    ImportError,
    NotImplementedError,
    AssertionError,
    BadArgument,
)
"""Errors of a function that are not tried again: they would come again."""


class Function:
    """Calls ``function(targets)``, ``function(targets, inputs)`` or ``function(inputs)``."""

    keyed = False

    def __init__(self, function: Callable[..., Any], form: Form, concurrency: int) -> None:
        self.function = function
        self.form = form
        self._limit = concurrency
        self._limiter: CapacityLimiter | None = None
        called = function if inspect.isroutine(function) else type(function).__call__
        self._asynchronous = inspect.iscoroutinefunction(called)

    async def send(self, request: Request, question: Question, columns: Columns) -> Reply:
        arguments = [_given(column) for column in columns.values()]
        try:
            if self._asynchronous:
                answer = await self.function(*arguments)
            else:
                if self._limiter is None:
                    self._limiter = CapacityLimiter(self._limit)
                answer = await to_thread.run_sync(
                    self._called, arguments, limiter=self._limiter, abandon_on_cancel=True
                )
        except (Failed, *MISTAKES):
            raise
        except Exception as error:
            raise Failed(f"{type(error).__name__}: {error}", lost=True) from error
        return Reply(named(answer, self.form))

    def _called(self, arguments: list[Any]) -> Any:
        try:
            return self.function(*arguments)
        except StopIteration as error:  # may not pass through a future
            raise RuntimeError(f"the function raised {error!r}") from error

    async def close(self) -> None:
        await anyio.sleep(0)


def _given(column: Column) -> Any:
    """What the function gets: tensors for numbers, lists for the rest."""
    if isinstance(column, np.ndarray):
        return torch.from_numpy(np.array(column))
    return column


def named(answer: Any, form: Form) -> Columns:
    """A function's return value by column."""
    if isinstance(answer, Mapping):
        missing = [name for name in form.columns if name not in answer]
        if missing:
            raise BadAnswer(f"the function's answer has no {' and no '.join(missing)}")
        return {name: answer[name] for name in form.columns}
    if len(form.columns) == 1:
        return {form.columns[0]: answer}
    if not isinstance(answer, tuple | list) or len(answer) != len(form.columns):
        raise BadAnswer(
            f"the function must return ({', '.join(form.columns)}); got {type(answer).__name__}"
        )
    return dict(zip(form.columns, answer, strict=True))
