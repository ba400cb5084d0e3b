"""Calls side by side that wait for each other where something can be done for all of them at once."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Given = TypeVar("Given")
Out = TypeVar("Out")


class _Abandoned(BaseException):
    """Unwinds a call that nobody will serve any more."""


class Meeting(Generic[Asked, Given]):
    """Runs calls until each has ended or asks for something; then serves all that ask, and lets them go on.

    Only one of them runs at a time, in the order in which they are given, so that a meeting is as deterministic as
    its calls. Each has a thread of its own for no other reason than to be able to wait.

    Args:
        serve: answers several requests at once.

    Example:
        >>> meeting = Meeting(lambda numbers: [n / sum(numbers) for n in numbers])
        >>> meeting.run([lambda: meeting.ask(1.0), lambda: meeting.ask(3.0), lambda: "nothing"])
        [0.25, 0.75, 'nothing']
    """

    def __init__(self, serve: Callable[[list[Asked]], list[Given]]) -> None:
        self._serve = serve
        self._own = threading.local()

    def ask(self, request: Asked) -> Given:
        """Inside a call of `run`: wait until all others ask or have ended, and get the answer."""
        seat: _Seat[Asked, Given] = self._own.seat
        return seat.ask(request)

    def run(self, calls: Sequence[Callable[[], Out]]) -> list[Out | Exception]:
        """What the calls return, or the exceptions they raise, in their order."""
        seats: list[_Seat[Asked, Given]] = [_Seat() for _ in calls]
        outcomes: dict[int, Out | Exception] = {}

        def work(i: int) -> None:
            self._own.seat = seats[i]
            seats[i].turn.acquire()
            try:
                if not seats[i].abandoned:
                    outcomes[i] = calls[i]()
            except _Abandoned:
                pass
            except Exception as error:  # handed to whoever asked for the call
                outcomes[i] = error
            finally:
                seats[i].ended = True
                seats[i].back.release()

        for i in range(len(calls)):
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(work, i), daemon=True).start()
        try:
            self._until_all_have_ended(seats)
        finally:
            for seat in seats:
                seat.abandon()
        return [outcomes[i] for i in range(len(calls))]

    def _until_all_have_ended(self, seats: list[_Seat[Asked, Given]]) -> None:
        while going := [seat for seat in seats if not seat.ended]:
            for seat in going:
                seat.let_run()
            asking = [seat for seat in going if not seat.ended]
            if not asking:
                continue
            try:
                answers = self._serve([seat.request for seat in asking])
            except Exception as error:  # every call that waits undoes its own
                for seat in asking:
                    seat.error = error
            else:
                for seat, answer in zip(asking, answers, strict=True):
                    seat.answer = answer


class _Seat(Generic[Asked, Given]):
    """One call's place: the baton goes to it by ``turn`` and comes back by ``back``."""

    request: Asked
    answer: Given

    def __init__(self) -> None:
        self.turn, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = self.abandoned = self.running = False
        self.error: Exception | None = None

    def ask(self, request: Asked) -> Given:
        self.request = request
        self.back.release()
        self.turn.acquire()
        if self.abandoned:
            raise _Abandoned
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.answer

    def let_run(self) -> None:
        self.running = True
        self.turn.release()
        self.back.acquire()
        self.running = False

    def abandon(self) -> None:
        """After an interrupt: let the call unwind, wherever it is."""
        if self.running:
            self.back.acquire()  # it has the baton still
        while not self.ended:
            self.abandoned = True
            self.let_run()
