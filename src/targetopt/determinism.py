"""A forward made a function of the parameters alone, for the length of one outer step.

The inner loop compares values of q(f(θ)) at different θ, so f must not change by itself. Two
things in ordinary models do change it, and both are handled without the user's help:

* random numbers (dropout): every inner forward replays the generator state of the first;
* buffers that a forward moves (BatchNorm's statistics, spectral norm's vectors): every inner forward
  starts from the buffers the first one found, and only the first one's change is kept.

What cannot be handled (a forward that draws its own batch, say) is found by evaluating twice on the
first step, and refused with the reason.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from targetopt.types import BadForward, Forward

RngStates = list[tuple[str, Tensor]]


def _device_module(device: str) -> Any:
    return torch.random if device == "cpu" else torch.get_device_module(device)


def _get_rng(devices: Sequence[str]) -> RngStates:
    return [
        (d, torch.get_rng_state() if d == "cpu" else _device_module(d).get_rng_state(d))
        for d in devices
    ]


def _set_rng(states: RngStates) -> None:
    for device, state in states:
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            _device_module(device).set_rng_state(state, device)


def _same_rng(a: RngStates, b: RngStates) -> bool:
    return all(torch.equal(x, y) for (_, x), (_, y) in zip(a, b, strict=True))


@dataclass
class _Buffer:
    """A buffer of the modules a forward calls; ``None`` until a module fills it.

    One tensor may hang in several places (tied modules); it stays one tensor in every replay.
    """

    places: list[tuple[nn.Module, str]]
    found: Tensor | None
    before: Tensor | None
    after: list[Tensor | None]

    @classmethod
    def of(cls, found: Tensor | None) -> _Buffer:
        return cls([], found, None if found is None else found.detach().clone(), [])

    def moved(self) -> bool:
        if any(now is not self.found for now in self._hanging()):
            return True
        if self.found is None or self.before is None:
            return False
        # By value: torch's batch norm writes its statistics without raising their version.
        return not torch.equal(self.found, self.before)

    def keep(self) -> None:
        """What hangs there now is what the outer step leaves behind."""
        self.after = self._hanging()

    def begin_replay(self) -> None:
        # a fresh tensor: the first graph may hold the module's own one
        self._hang([None if self.before is None else self.before.clone()] * len(self.places))

    def end_replay(self) -> None:
        self._hang(self.after)

    @torch.no_grad()
    def put_back(self) -> None:
        self._hang([self.found] * len(self.places))
        if self.found is not None and self.before is not None:
            self.found.copy_(self.before)

    def _hanging(self) -> list[Tensor | None]:
        return [module._buffers[name] for module, name in self.places]

    def _hang(self, tensors: list[Tensor | None]) -> None:
        for (module, name), tensor in zip(self.places, tensors, strict=True):
            module._buffers[name] = tensor


@contextmanager
def _buffers_seen() -> Iterator[list[_Buffer]]:
    """Collect (and copy) the buffers of every module that is called inside, in order of call."""
    buffers: list[_Buffer] = []
    tied: dict[int, _Buffer] = {}
    seen: set[int] = set()

    def collect(module: nn.Module, _inputs: object) -> None:
        if id(module) in seen:
            return
        for child in module.modules():
            if id(child) not in seen:
                seen.add(id(child))
                for name, tensor in child._buffers.items():
                    buffer = tied.get(id(tensor)) if tensor is not None else None
                    if buffer is None:
                        buffer = _Buffer.of(tensor)
                        buffers.append(buffer)
                        tied[id(tensor)] = buffer
                    buffer.places.append((child, name))

    handle = register_module_forward_pre_hook(collect)
    try:
        yield buffers
    finally:
        handle.remove()


def _of_moved_modules(buffers: list[_Buffer]) -> list[_Buffer]:
    """All buffers of a module that moved one: a mean may stand still by chance, once."""
    moved = {id(module) for b in buffers if b.moved() for module, _ in b.places}
    return [b for b in buffers if any(id(module) in moved for module, _ in b.places)]


class FrozenForward:
    """The user's forward during one outer step.

    Call `first` once (in another process than the one that asked, `rejoin`), then the object itself
    for every further evaluation (`retake` for the first one of another closure); end with nothing
    (the first forward's effects stay) or with `abandon` (as if there had been no call).
    """

    def __init__(self, forward: Forward, devices: Sequence[str]) -> None:
        self.forward = forward
        self._devices = sorted({"cpu", *devices})
        self._rng_before: RngStates = []
        self._random = False
        self._buffers: list[_Buffer] = []

    def first(self) -> Tensor:
        """The forward whose randomness and buffers are kept."""
        self._rng_before = _get_rng(self._devices)
        with _buffers_seen() as buffers:
            try:
                z = self.forward()
            finally:
                self._buffers = _of_moved_modules(buffers)
                for b in self._buffers:
                    b.keep()
        self._random = not _same_rng(self._rng_before, _get_rng(self._devices))
        return z

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
        outer = _get_rng(self._devices)
        _set_rng(rng)
        try:
            z = self.first()
        finally:
            self._put_back()
            _set_rng(outer)
        if len(self._buffers) != len(buffers):
            raise BadForward(
                f"the forward moves {len(self._buffers)} buffers here and moved {len(buffers)} when it was "
                "asked: the model or its mode (train, eval) changed between ask and tell. Build the same "
                "model, in the same mode."
            )
        if not buffers:
            return z
        for b, before in zip(self._buffers, buffers, strict=True):
            b.before = before
            b.keep()
        return self()

    def retake(self, forward: Forward) -> Tensor:
        """The first forward repeated by another closure, which takes its place; no effect is kept.

        Only what the first forward drew and moved is known to be replayed. A closure that draws or
        moves more (of another model, or in another mode) is undone and refused.
        """
        self.forward = forward
        known = {id(module) for b in self._buffers for module, _ in b.places}
        outer = _get_rng(self._devices)
        with _buffers_seen() as buffers:
            try:
                z = self()
            finally:
                drawn = not _same_rng(outer, _get_rng(self._devices))
                _set_rng(outer)
                seen = _of_moved_modules(buffers)
                moved = [b for b in seen if not any(id(module) in known for module, _ in b.places)]
                for b in moved:
                    b.put_back()
        if drawn or moved:
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
        outer = _get_rng(self._devices) if self._random else []
        _set_rng(self.rng)
        for b in self._buffers:
            b.begin_replay()
        try:
            return self.forward()
        finally:
            for b in self._buffers:
                b.end_replay()
            _set_rng(outer)

    def abandon(self) -> None:
        """Undo what the first forward did to buffers and generators."""
        self._put_back()
        _set_rng(self._rng_before)

    def _put_back(self) -> None:
        for b in self._buffers:
            b.put_back()

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
