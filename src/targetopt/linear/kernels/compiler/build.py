"""Compile kernels and end: ``python -m targetopt.linear.kernels.compiler.build``, called by `jit`.

What to compile comes pickled on the standard input: module, name and types of each. Several kernels
are compiled by a child each, so that every one is compiled in a process that has compiled nothing else.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import itertools
import os
import pickle
import sys
import traceback
from typing import Any

from numba.core.bytecode import FunctionIdentity
from numba.core.codegen import JITCodeLibrary
from numba.core.cpu import CPUContext
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.types.misc import unliteral

from targetopt.linear.kernels.compiler import jit


def main() -> None:
    """Leave the machine code in the cache."""
    gc.disable()  # what a compiler makes stays; looking for garbage takes a tenth of the time
    wanted = pickle.load(sys.stdin.buffer)
    if len(wanted) == 1:
        compile_one(*wanted[0])
        return
    for module, _, _ in wanted:  # once, for all children
        importlib.import_module(module)
    cpu_target.typing_context.refresh()  # numba would read its tables of functions in every child
    cpu_target.target_context.refresh()
    at_once, running, failed = os.cpu_count() or 1, 0, False
    for each in wanted:
        if running == at_once:
            failed |= os.wait()[1] != 0
            running -= 1
        running += 1
        if os.fork() == 0:
            _be_child(each)
    for _ in range(running):
        failed |= os.wait()[1] != 0
    sys.exit(int(failed))


def _be_child(wanted: Any) -> None:
    """Compile one kernel and leave the process at once, without the parent's clean-up."""
    status = 1
    try:
        compile_one(*wanted)
        status = 0
    except BaseException:  # whatever it is, it is the parent's to tell
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def compile_one(module: str, name: str, signature: Any) -> None:
    """Leave the machine code of one kernel in the cache."""
    # numba numbers what it compiles, and the numbers are part of the names. Every kernel begins at
    # another one, so that no two of them have a callee of the same name.
    digest = hashlib.sha256(f"{module}.{name}{signature}".encode()).digest()
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(digest[:6], "big"))
    wanted = getattr(importlib.import_module(module), name)
    for other in jit.compiled:
        if other is not wanted:  # as a callee it is compiled anew, whatever was cached
            other._cache.disable()
    _make_machine_code_of(module, name)
    _take_no_literals()
    wanted.compile(signature)


def _make_machine_code_of(module: str, name: str) -> None:
    """Have callees linked into this kernel as they are written, and all of it optimised together, once.

    numba would optimise every callee, make machine code of it and wrap it for Python, each with all that it
    calls: for a kernel with a hundred callees that takes two thirds of the time, and nothing of it is used.
    """
    executable = CPUContext.get_executable
    for_python, for_c = CPUContext.create_cpython_wrapper, CPUContext.create_cfunc_wrapper

    def is_wanted(description: Any) -> bool:
        return (description.modname, description.qualname) == (module, name)

    def add_linking_library(library: Any, callee: Any) -> None:
        if not callee._finalized:
            for deeper in dict.fromkeys(callee._linking_libraries):
                callee._reload_init.update(deeper._reload_init)
                callee._final_module.link_in(deeper._get_module_for_linking(), preserve=True)
            callee._finalize_dynamic_globals()
            callee._finalized = True
        library._linking_libraries.append(callee)

    def get_executable(context: Any, library: Any, description: Any, environment: Any) -> Any:
        if is_wanted(description):
            return executable(context, library, description, environment)
        return [].append  # nobody calls it from Python; it must be of this type and like no other

    def create_cpython_wrapper(
        context: Any, library: Any, description: Any, *a: Any, **k: Any
    ) -> None:
        if is_wanted(description):
            for_python(context, library, description, *a, **k)

    def create_cfunc_wrapper(
        context: Any, library: Any, description: Any, *a: Any, **k: Any
    ) -> None:
        if is_wanted(description):
            for_c(context, library, description, *a, **k)

    JITCodeLibrary.add_linking_library = add_linking_library
    CPUContext.get_executable = get_executable
    CPUContext.create_cpython_wrapper = create_cpython_wrapper
    CPUContext.create_cfunc_wrapper = create_cfunc_wrapper


def _take_no_literals() -> None:
    """Have kernels called for the types of numbers, whatever is known of their values.

    numba compiles a callee for a number that is written down, and again for any other; the optimiser sees the number
    all the same.
    """
    dispatchers: Any = Dispatcher
    template = dispatchers.get_call_template

    def get_call_template(dispatcher: Any, args: Any, kws: Any) -> Any:
        if dispatcher.py_func.__module__.startswith("targetopt."):
            args, kws = tuple(map(unliteral, args)), {k: unliteral(v) for k, v in kws.items()}
        return template(dispatcher, args, kws)

    dispatchers.get_call_template = get_call_template


if __name__ == "__main__":
    main()
