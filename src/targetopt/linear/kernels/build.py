"""Compile one kernel and end: ``python -m targetopt.linear.kernels.build``, called by `jit`.

What to compile comes pickled on the standard input: module, name and types.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import pickle
import sys

from numba.core.bytecode import FunctionIdentity

from targetopt.linear.kernels import jit


def main() -> None:
    """Leave the machine code in the cache."""
    module, name, signature = pickle.load(sys.stdin.buffer)
    # numba numbers what it compiles, and the numbers are part of the names. Every kernel begins at
    # another one, so that no two of them have a callee of the same name.
    digest = hashlib.sha256(f"{module}.{name}{signature}".encode()).digest()
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(digest[:6], "big"))
    wanted = getattr(importlib.import_module(module), name)
    for other in jit.compiled:
        if other is not wanted:  # as a callee it is compiled anew, whatever was cached
            other._cache.disable()
    wanted.compile(signature)


if __name__ == "__main__":
    main()
