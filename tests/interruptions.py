"""A step that is interrupted, wherever one likes: what `test_interrupts` and the fuzz lane share.

`World` is everything a step may change; `by_line` interrupts an action at its k-th line, in whatever
file that is (torch's own included), `by_call` at a later call or return, `by_signal` after some time.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.utils import stateless

import targetopt as to
from core_parts import fingerprint, identical


class World:
    """A model, its optimiser and torch's global state; it can be looked at and put back."""

    def __init__(self, model: nn.Module, opt: torch.optim.Optimizer, *more: Tensor) -> None:
        self.model, self.opt, self.more = model, opt, more
        self._start = self.seen()
        self._progress = getattr(opt, "_progress", None)
        self._hung = [
            (m._buffers, name, t) for m in model.modules() for name, t in m._buffers.items()
        ]

    def seen(self) -> dict[str, Any]:
        return {
            **fingerprint(self.model, self.opt),
            "more": [t.detach().clone() for t in self.more],
            "grad mode": torch.is_grad_enabled(),
            "hooks": len(torch_modules._global_forward_pre_hooks),
        }

    def unchanged(self) -> bool:
        return identical(self.seen(), self._start)

    def put_back(self) -> None:
        """As it was when this object was made, by means that have nothing to do with the library's."""
        with torch.no_grad():
            for p, kept in zip(self.model.parameters(), self._start["parameters"], strict=True):
                p.copy_(kept)
            for t, kept in zip(self.more, self._start["more"], strict=True):
                t.copy_(kept)
            for mapping, name, t in self._hung:
                mapping[name] = t
            for b, kept in zip(self.model.buffers(), self._start["buffers"], strict=True):
                b.copy_(kept)
        torch.set_rng_state(self._start["rng"])
        if self._progress is not None:
            self.opt._progress = self._progress  # type: ignore[attr-defined]
        else:
            self.opt.load_state_dict(self._start["optimiser"])


class Interrupt(KeyboardInterrupt):
    """As Ctrl-C raises it, but ours."""


def swaps(frame: FrameType | None) -> bool:
    """Whether torch's ``functional_call`` is exchanging tensors, which an interrupt tears by itself."""
    while frame is not None:
        if frame.f_code is stateless._reparametrize_module.__wrapped__.__code__:
            return True
        frame = frame.f_back
    return False


PACKAGE = os.path.dirname(to.__file__)


def by_line(
    action: Callable[[], Any], moment: int, own: list[int] | None = None
) -> tuple[Any, int]:
    """Run it, raise at its ``moment``-th line; what it returned, and how many lines there were.

    The garbage collector waits meanwhile: what it calls (finalisers, the callbacks of test tools) would be
    counted too, now here and now there. ``own`` is given the numbers of the lines that are of this package.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if own is not None and frame.f_code.co_filename.startswith(PACKAGE):
                own.append(lines)
            if lines >= moment > 0 and not swaps(frame):
                raise Interrupt(f"at {frame.f_code.co_filename}:{frame.f_lineno}")
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        outcome = action()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return outcome, lines


@contextlib.contextmanager
def and_again(calls_later: int) -> Iterator[None]:
    """A second interrupt, so many calls and returns after the first one was raised."""
    seen = 0

    def profile(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal seen
        if sys.gettrace() is None:  # Python has taken it away as it raised
            seen += 1
            if seen == calls_later:
                raise Interrupt("once more")

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def by_signal(action: Callable[[], Any], seconds: float) -> Any:
    """Run it; a real signal comes after so many seconds, handled as Ctrl-C is."""
    kept = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        return action()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


def within(error: BaseException, function: Any) -> bool:
    """Whether it was raised while the function ran: an oracle that has not returned has not answered."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is function.__code__:
            return True
        trace = trace.tb_next
    return False


class Answering:
    """An oracle's function that knows whether it has answered, to the line."""

    def __init__(self, loss: to.losses.Loss) -> None:
        self.loss = loss
        self.answers: list[tuple[Tensor, Tensor]] = []

    def __call__(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.answers.append((self.loss.value(z), self.loss.gradient(z))) or self.answers[-1]


class Remembering:
    """An oracle that knows whether it has answered, and offers all that the one it wraps reveals."""

    def __init__(self, oracle: to.Oracle) -> None:
        self.oracle = oracle
        self.answers: list[to.TargetPoint] = []

    def query(self, z: Tensor) -> to.TargetPoint:
        return self.answers.append(self.oracle.query(z)) or self.answers[-1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.oracle, name)
