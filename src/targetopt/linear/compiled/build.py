"""Compile one entry point and end: ``python -m targetopt.linear.compiled.build``, called by `jit`.

What to compile comes pickled on the standard input: module, name and types of the arguments.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import pickle
import sys

from numba.core.bytecode import FunctionIdentity

from targetopt.linear.compiled import jit


def main() -> None:
    """Leave the machine code in numba's cache."""
    module, name, types = pickle.load(sys.stdin.buffer)
    # numba numbers what it compiles, and the numbers are part of the names. Every entry point begins
    # at another one, so that no two of them have a callee of the same name.
    first = int.from_bytes(hashlib.sha256(f"{module}.{name}{types}".encode()).digest()[:6], "big")
    FunctionIdentity._unique_ids = itertools.count(first)
    dispatcher = getattr(importlib.import_module(module), name)
    for other in jit.entries:
        if other is not dispatcher:  # as a callee it is compiled anew, whatever was cached
            other._cache.disable()
    dispatcher.compile(types)


if __name__ == "__main__":
    main()
