"""Which modules a forward calls, seen while it runs.

A forward is any function, so the modules it calls are known only when it calls them, and for that torch has one
means: hooks on all modules of the process. The hook here acts for the thread that asked for it, and passes the
calls of all other threads through untouched.

A module that ``torch.compile`` has compiled calls no hooks of Python, and a hook on all modules would make it
compile anew, or not at all. So where a forward is seen to hold such a module, no hook is set: all modules that
can be found from the forward count as called.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from operator import setitem
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.utils import stateless

from targetopt.step.journal import Journal, at_once

Act = Callable[[nn.Module], None]

_MOST_OBJECTS = 1000
"""How many objects are looked at to find compiled modules; a forward that holds more has them near by."""


class _Own(threading.local):
    """What this thread wants to be told of; the outermost step first, if steps are nested."""

    acts: tuple[Act, ...] = ()


_own = _Own()
# torch's own function would give the hook's number only after it is in place: an interrupt could lose it
_HOOKS: MutableMapping[int, Any] = torch_modules._global_forward_pre_hooks
_MODULE_CALL = nn.Module._call_impl.__code__
_LENDER = stateless._functional_call.__code__


def _hook(module: nn.Module, _inputs: object) -> None:
    if torch.compiler.is_compiling():  # another thread compiles: there is nothing here for it
        return
    for act in _own.acts:
        act(module)


@contextmanager
def noticed(forward: object, act: Act, journal: Journal) -> Iterator[None]:
    """``act(module)`` before every call of a module that *this thread* makes inside.

    Args:
        forward: what will be called inside. If it holds compiled modules, ``act`` is called at once, for all
            modules that can be found from it.
        act: what to do.
        journal: undoes the hook if an interrupt strikes.
    """
    modules, compiled = found_from(forward)
    if compiled:
        for module in modules:
            act(module)
        yield
        return
    outer, number = _own.acts, -threading.get_ident()  # torch's own numbers are positive
    unhook = [partial(setattr, _own, "acts", outer)]
    if not outer:
        unhook.append(partial(_HOOKS.pop, number, None))
    journal.remember(lambda: unhook)
    at_once(
        [partial(setattr, _own, "acts", (*outer, act)), partial(setitem, _HOOKS, number, _hook)]
    )
    try:
        yield
    finally:
        at_once(unhook)


def lending() -> MutableMapping[str, Any] | None:
    """The tensors that ``functional_call`` lends to the module call that is beginning, if it does."""
    frame: FrameType | None = sys._getframe(2)
    calls = 0
    while frame is not None and calls < 2:  # the call itself, and up to the module that made it
        if frame.f_code is _LENDER:
            lent: MutableMapping[str, Any] = frame.f_locals["parameters_and_buffers"]
            return lent
        calls += frame.f_code is _MODULE_CALL
        frame = frame.f_back
    return None


def found_from(forward: object) -> tuple[list[nn.Module], bool]:
    """The modules that a forward holds, and whether one of them, or a function it holds, is compiled.

    They are looked for in its closure, in the globals it names, and in attributes and containers of these.
    """
    waiting, modules, compiled = deque([forward]), [], False
    seen: set[int] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        thing = waiting.popleft()
        if type(thing) in _PLAIN or id(thing) in seen or isinstance(thing, Tensor | type):
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            modules.append(thing)
            compiled = compiled or _holds_compiled(thing)
        elif hasattr(thing, "_torchdynamo_orig_callable"):
            waiting.append(thing._torchdynamo_orig_callable)
            compiled = True
        else:
            waiting.extend(_held(thing))
    return modules, compiled


def _holds_compiled(module: nn.Module) -> bool:
    """Whether it or any module below is; a plain walk, which is done in every step."""
    below: list[nn.Module | None] = [module]
    seen = set()
    while below:
        each = below.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        if each._compiled_call_impl is not None or "_orig_mod" in each._modules:
            return True
        below.extend(each._modules.values())
    return False


_PLAIN = {
    *(str, bytes, int, float, bool, complex, type(None), ModuleType, BuiltinFunctionType),
    *(np.ndarray, torch.Tensor, nn.Parameter, torch.Generator, torch.dtype, torch.device),
}


def _held(thing: Any) -> list[Any]:
    if isinstance(thing, FunctionType):
        held = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        held += [*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        names = list(_names(thing.__code__))
        for name in names:
            value = thing.__globals__.get(name)
            if isinstance(
                value, ModuleType
            ):  # package.model(x): the attribute's name is among them
                held += [vars(value).get(other) for other in names]
            else:
                held.append(value)
        return held
    if isinstance(thing, MethodType):
        return [thing.__self__, thing.__func__]
    if isinstance(thing, partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, Mapping):
        return list(thing.values())[:_MOST_OBJECTS]
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)[:_MOST_OBJECTS]
    return list(getattr(thing, "__dict__", {}).values())


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 (an empty cell raises)
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
