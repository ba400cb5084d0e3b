"""What a step changes, changes completely or not at all, wherever an interrupt strikes.

Ctrl-C (or a timer, or a request to end) raises an exception between any two bytecodes of Python, inside
``except`` and ``finally`` as well. Two things make a step atomic all the same:

* everything a step has done in place (parameters, gradients, buffers, generators, the grad mode) is put
  back by *one call into C*, between whose parts no interrupt can come, and which may be repeated;
* the step is adopted by one such call too. Before it the step has not happened, after it the step is
  done and counted; there is nothing between.

The journal is entered several times over, ``with journal, journal, journal:``. An interrupt that
strikes while one level puts things back is met by the next level, which puts them back again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import call
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import local

Deed = Callable[[], object]
"""Something to do, as a call of compiled code without arguments: ``partial(tensor.copy_, kept)``."""

KEPT = (
    "The oracle's answer to this step was kept: error.answer. opt.step(forward, error.answer) does the "
    "step without asking the oracle again."
)


def at_once(deeds: Iterable[Deed]) -> None:
    """Do all of them in one call into C: no interrupt comes between them."""
    deque(map(call, list(deeds)), maxlen=0)


class Journal:
    """How to undo what has been done so far, until the step is adopted.

    Args:
        params: the parameters, whose values and gradients are to be kept.

    Attributes:
        open: whether the step can still be undone.
        answers: what the oracle said (and was paid for) in this step.
    """

    def __init__(self, params: Sequence[Tensor] = ()) -> None:
        self.open = True
        self.answers: list[Any] = []
        self._report: dict[str, Any] = {}
        self._grad_mode = torch.is_grad_enabled()
        self._ways_back: list[Callable[[], Iterable[Deed]]] = []
        self._params = [_Kept(p) for p in params]

    def remember(self, way_back: Callable[[], Iterable[Deed]]) -> None:
        """``way_back()`` says what must be done to undo something; it is asked when that is needed."""
        self._ways_back.append(way_back)

    def paid(self, question: Callable[[Any], Any], about: Any) -> Any:
        """``question(about)``, an expensive call: its answer is kept from the moment there is one."""
        self.answers.extend(map(question, (about,)))
        return self.answers[-1]

    def put_parameters_back(self) -> None:
        """The parameters as they were when the journal was opened."""
        at_once(deed for kept in self._params for deed in kept.back())

    def parameters(self, params: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Copies of these parameters as they are, to be read: the journal's own where nothing has moved since."""
        own = {id(kept.p): kept.value for kept in self._params if not kept.moved}
        return tuple(own[id(p)] if id(p) in own else local(p.detach()).clone() for p in params)

    def adopt(self, *deeds: Deed, **report: Any) -> None:
        """Do these, and there is no way back: the point of no return.

        Args:
            deeds: what makes the step done, in one call into C.
            report: what an interrupt that comes later carries as attributes.
        """
        told = partial(setattr, self, "_report", report)
        at_once([*deeds, told, partial(setattr, self, "open", False)])

    def undo(self) -> None:
        """Everything as it was when the journal was opened. Interrupts wait until that is done."""
        interrupt: BaseException | None = None
        while self.open:
            try:
                ways = [deed for way in reversed(self._ways_back) for deed in way()]
                ways += [deed for kept in self._params for deed in kept.back()]
                at_once([*ways, *self._modes(), partial(setattr, self, "open", False)])
            except (KeyboardInterrupt, SystemExit, GeneratorExit) as another:
                interrupt = another
        if interrupt is not None:
            raise interrupt

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if error is None:
            return
        if self.open:
            self.undo()
        else:
            at_once(self._modes())
        self._hand_over(error)

    def _modes(self) -> list[Deed]:
        return [partial(torch._C._set_grad_enabled, self._grad_mode)]

    def _hand_over(self, error: BaseException) -> None:
        """What the error carries: the report of a step that was done, or the answer of one that was not."""
        with suppress(AttributeError, TypeError):  # some errors take no attributes
            for name, value in self._report.items():
                setattr(error, name, value)
            if self.answers and not self._report:
                error.answer = self.answers[-1]  # type: ignore[attr-defined]
            if hasattr(error, "answer") and KEPT not in getattr(error, "__notes__", ()):
                error.add_note(KEPT)


class _Kept:
    """A parameter with its value and gradient as they were."""

    def __init__(self, p: Tensor) -> None:
        self.p, self.memory, self.gradient = p, local(p.detach()), p.grad
        self.version, self.value = self.memory._version, self.memory.clone()

    @property
    def moved(self) -> bool:
        """Whether the value is another one now, written in place or behind autograd's back."""
        return self.memory._version != self.version or not torch.equal(self.memory, self.value)

    def back(self) -> list[Deed]:
        deeds: list[Deed] = [partial(setattr, self.p, "grad", self.gradient)]
        if self.moved:
            deeds.append(partial(self.memory.copy_, self.value))
        return deeds
