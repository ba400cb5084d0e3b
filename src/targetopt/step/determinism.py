"""A forward made a function of the parameters alone, for the length of one outer step.

The inner loop compares values of q(f(θ)) at different θ, so f must not change by itself. Two
things in ordinary models do change it, and both are handled without the user's help:

* random numbers (dropout): every inner forward replays the generator state of the first;
* buffers that a forward moves (BatchNorm's statistics, spectral norm's vectors): every inner forward
  starts from the buffers the first one found, and only the first one's change is kept.

A replay runs on tensors of its own, so that no graph and no dictionary of the user's is disturbed. That
holds for buffers that hang in modules and for those that ``torch.func.functional_call`` lends to one.

What cannot be handled (a forward that draws its own batch, say) is found by evaluating twice on the
first step, and refused with the reason.
"""

from __future__ import annotations

import random
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import setitem
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from targetopt.step.calls import lending, noticed
from targetopt.step.journal import Deed, Journal, at_once
from targetopt.types import BadForward, Forward

RngStates = list[tuple[str, Tensor]]
Place = tuple[MutableMapping[str, Any], str]
"""Where a buffer hangs: a module's ``_buffers``, or the dictionary given to ``functional_call``."""


def _device_module(device: str) -> Any:
    return torch.random if device == "cpu" else torch.get_device_module(device)


def _get_rng(devices: Sequence[str]) -> RngStates:
    return [
        (d, torch.get_rng_state() if d == "cpu" else _device_module(d).get_rng_state(d))
        for d in devices
    ]


def _set_rng(states: RngStates) -> list[Deed]:
    return [
        partial(torch.default_generator.set_state, state)
        if device == "cpu"
        else partial(_device_module(device).set_rng_state, state, device)
        for device, state in states
    ]


def _same_rng(a: RngStates, b: RngStates) -> bool:
    return all(torch.equal(x, y) for (_, x), (_, y) in zip(a, b, strict=True))


@dataclass
class Buffer:
    """A buffer of the modules a forward calls; ``None`` until a module fills it.

    One tensor may hang in several places (tied modules); it stays one tensor in every replay.

    Attributes:
        found: the tensor that hung there when the forward began.
        before: what it held then.
        places: where it hangs.
        owners: ids of the modules it belongs to.
        after: what hangs there after the forward that counts.
        lent: whether ``functional_call`` lent it to the module.
        replayed: the tensor of the last replay.
    """

    found: Tensor | None
    before: Tensor | None
    places: list[Place] = field(default_factory=list)
    owners: set[int] = field(default_factory=set)
    after: list[Tensor | None] = field(default_factory=list)
    lent: bool = False
    replayed: Tensor | None = None

    @classmethod
    def of(cls, found: Tensor | None) -> Buffer:
        return cls(found, None if found is None else found.detach().clone())

    def hanging(self) -> list[Tensor | None]:
        return [mapping[name] for mapping, name in self.places]

    def moved(self) -> bool:
        if any(now is not self.found for now in self.hanging()):
            return True
        if self.found is None or self.before is None:
            return False
        # By value: torch's batch norm writes its statistics without raising their version.
        return not torch.equal(self.found, self.before)

    def keep(self) -> None:
        """What hangs there now is what the outer step leaves behind."""
        self.after = self.hanging()

    def replaying(self) -> list[Deed]:
        # a fresh tensor: the first graph may hold the module's own one
        self.replayed = None if self.before is None else self.before.clone()
        return self._hang([self.replayed] * len(self.places))

    def replay_ended(self) -> list[Deed]:
        return self._hang(self.after)

    def back(self) -> list[Deed]:
        """As it was found."""
        deeds = self._hang([self.found] * len(self.places))
        if self.found is not None and self.before is not None:
            memory = self.found.detach()
            if not torch.equal(memory, self.before):
                deeds.append(partial(memory.copy_, self.before))
        return deeds

    def _hang(self, tensors: Sequence[Tensor | None]) -> list[Deed]:
        return [
            partial(setitem, mapping, name, tensor)
            for (mapping, name), tensor in zip(self.places, tensors, strict=True)
        ]


class _Collector:
    """Finds (and copies) the buffers of every module that is called, in order of call."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._by_tensor: dict[int, Buffer] = {}
        self._seen: set[tuple[int, int]] = set()
        self._places: set[tuple[int, str]] = set()
        self._lent: set[int] = set()
        self._lenders: list[object] = []  # kept alive: they are known by their ids

    def __call__(self, module: nn.Module) -> None:
        lent = lending()
        if (id(module), id(lent)) in self._seen:
            return
        self._lenders.append(lent)
        names = {} if lent is None else {id(t): name for name, t in lent.items()}
        for child in module.modules():
            if (id(child), id(lent)) in self._seen:
                continue
            self._seen.add((id(child), id(lent)))
            for name, tensor in child._buffers.items():
                if id(tensor) in names:
                    self._add(child, tensor, (lent, names[id(tensor)]), lent=True)
                elif id(tensor) in self._lent:  # a call inside the one it was lent to
                    self._seen.discard((id(child), id(lent)))
                else:
                    self._add(child, tensor, (child._buffers, name), lent=False)

    def _add(self, owner: nn.Module, tensor: Tensor | None, place: Any, lent: bool) -> None:
        if (id(place[0]), place[1]) in self._places:
            return
        self._places.add((id(place[0]), place[1]))
        buffer = None if tensor is None else self._by_tensor.get(id(tensor))
        if buffer is None:
            buffer = Buffer.of(tensor)
            buffer.lent = lent
            if lent:
                self._lent.add(id(tensor))
            self._by_tensor[id(tensor)] = buffer
            self.buffers.append(buffer)
        buffer.places.append(place)
        buffer.owners.add(id(owner))

    def back(self) -> list[Deed]:
        return [deed for b in self.buffers for deed in b.back()]

    def moved(self) -> list[Buffer]:
        """All buffers of a module that moved one: a mean may stand still by chance, once."""
        owners = {owner for b in self.buffers if b.moved() for owner in b.owners}
        return [b for b in self.buffers if b.owners & owners]


class FrozenForward:
    """The user's forward during one outer step.

    Call `first` once (or, for a query told in another process, `rejoin`), then the object itself
    for every further evaluation (`retake` for the first one of another closure). The first forward's
    effects stay, unless the journal of the step undoes them.
    """

    def __init__(self, forward: Forward, devices: Sequence[str], journal: Journal) -> None:
        self.forward = forward
        self.journal = journal
        self._devices = sorted({"cpu", *devices})
        self._rng_before: RngStates = []
        self._random = False
        self._buffers: list[Buffer] = []

    def continued(self, journal: Journal) -> None:
        """From now on this journal undoes: to what there is now, not to before the first forward."""
        self.journal = journal
        self._remember_rng()
        for b in self._buffers:
            for place in b.places:
                now = Buffer.of(place[0][place[1]])
                now.places.append(place)
                journal.remember(now.back)

    def first(self) -> Tensor:
        """The forward whose randomness and buffers are kept."""
        self._rng_before = self._remember_rng()
        seen = _Collector()
        self.journal.remember(seen.back)
        with noticed(self.forward, seen, self.journal):
            z = self.forward()
        self._buffers = seen.moved()
        for b in self._buffers:
            b.keep()
        self._random = not _same_rng(self._rng_before, _get_rng(self._devices))
        return z

    def _remember_rng(self) -> RngStates:
        before = _get_rng(self._devices)
        self.journal.remember(partial(_set_rng, before))
        return before

    @property
    def rng(self) -> RngStates:
        """What another process needs to repeat the randomness; empty if there is none."""
        return self._rng_before if self._random else []

    @property
    def buffers(self) -> list[Tensor | None]:
        """What the buffers that the forward moves held before; another process starts from them."""
        return [b.before for b in self._buffers]

    def rejoin(self, rng: RngStates, buffers: Sequence[Tensor | None]) -> Tensor:
        """The first forward repeated in another process: no effect is kept but the answer.

        The model there has the buffers as the first forward left them, and which ones that forward
        moves is found by calling it; only then can it start from what they held before.
        """
        outer = self._remember_rng()
        at_once(_set_rng(rng))
        z = self.first()
        at_once([*(deed for b in self._buffers for deed in b.back()), *_set_rng(outer)])
        if len(self._buffers) != len(buffers):
            raise BadForward(
                f"the forward moves {len(self._buffers)} buffers here and moved {len(buffers)} when it was "
                "asked: the model or its mode (train, eval) changed between ask and tell. Build the same "
                "model, in the same mode."
            )
        if not buffers:
            return z
        pairs = zip(self._buffers, buffers, strict=True)
        self._buffers = [replace(b, before=before, after=b.hanging()) for b, before in pairs]
        return self()

    def retake(self, forward: Forward) -> Tensor:
        """The first forward repeated by another closure, which takes its place; no effect is kept.

        Only what the first forward drew and moved is known to be replayed. A closure that draws or
        moves more (of another model, or in another mode) is refused.
        """
        self.forward = forward
        known = {owner for b in self._buffers for owner in b.owners}
        outer = _get_rng(self._devices)
        seen = _Collector()
        self.journal.remember(seen.back)
        with noticed(forward, seen, self.journal):
            z = self()
        drawn = not _same_rng(outer, _get_rng(self._devices))
        if drawn or any(not b.owners & known for b in seen.moved()):
            what = "draws random numbers" if drawn else "moves buffers"
            raise BadForward(
                f"the forward {what}, which it did not when it was asked: the model or its mode (train, "
                "eval) changed between ask and tell. Pass the same forward, of the same model in the same "
                "mode."
            )
        return z

    def __call__(self) -> Tensor:
        if not self._random and not self._buffers:
            return self.forward()
        outer = _set_rng(_get_rng(self._devices)) if self._random else []
        at_once([*(deed for b in self._buffers for deed in b.replaying()), *_set_rng(self.rng)])
        try:
            return self._with_borrowed()
        finally:
            at_once([*(deed for b in self._buffers for deed in b.replay_ended()), *outer])

    def _with_borrowed(self) -> Tensor:
        """The forward; where ``functional_call`` lends the user's own tensors, it gets the replay's."""
        borrowed = {id(b.found): b for b in self._buffers if b.lent}
        if not borrowed:
            return self.forward()

        def exchange(module: nn.Module) -> None:
            if lending() is not None:
                for child in module.modules():
                    for name, tensor in child._buffers.items():
                        if id(tensor) in borrowed:
                            child._buffers[name] = borrowed[id(tensor)].replayed

        with noticed(self.forward, exchange, self.journal):
            return self.forward()

    def rows(self, index: Tensor) -> Tensor:
        """The targets of some rows, by the forward that the user's forward offers for them (``forward.rows``).

        A forward whose rows depend on each other has no such thing: a mask of dropout is drawn for a whole batch, and
        batch norm's statistics are of it. Such a forward is refused.
        """
        if self._random or self._buffers:
            what = "draws random numbers" if self._random else "moves buffers"
            raise BadForward(
                f"the forward {what} (dropout, batch norm), so that what a row gives depends on which rows come with "
                "it: it cannot be evaluated on mini-batches of a step. Call model.eval(), or leave batch_size= out."
            )
        return self.forward.rows(index)  # type: ignore[attr-defined, no-any-return]

    def check_pure(self, z: Tensor) -> None:
        """Evaluate again at the same parameters; refuse a forward that answers differently."""
        python_before = random.getstate()
        numpy_before = np.random.get_state()  # noqa: NPY002 (the global one is what users draw from)
        with torch.enable_grad():  # as the first: some modules take another path without it
            again = self().detach()
        remedy = (
            "Between two calls at the same parameters a forward must give the same targets: fix the "
            "batch and any noise outside of it, e.g. x = next(batches); opt.step(lambda: model(x), …)."
        )
        if again.shape != z.shape:
            raise BadForward(
                f"forward() gave targets of shape {tuple(z.shape)}, then {tuple(again.shape)}, at the same "
                f"parameters: it seems to draw a new batch at each call. {remedy}"
            )
        same = torch.equal(z, again) if z.device.type == "cpu" else torch.allclose(z, again)
        if same or not torch.isfinite(z).all():  # targets that are not finite have their own error
            return
        if random.getstate() != python_before:
            cause = "it draws from Python's `random`"
        elif not _same_numpy(numpy_before, np.random.get_state()):  # noqa: NPY002
            cause = "it draws from numpy.random's global generator"
        else:
            cause = "it draws from a generator of its own, fetches a new batch, or keeps a counter"
        changed = (z != again).reshape(z.shape[0], -1).any(dim=1)
        raise BadForward(
            f"forward() is not a function of the parameters alone: {int(changed.sum())} of {z.shape[0]} rows "
            f"changed between two calls. Probable cause: {cause}. (torch's own generator and buffers of "
            f"modules are frozen for you.) {remedy}"
        )


def _same_numpy(a: Any, b: Any) -> bool:
    return bool(a[0] == b[0] and np.array_equal(a[1], b[1]) and a[2:] == b[2:])
