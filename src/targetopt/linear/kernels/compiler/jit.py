"""How every kernel is compiled, and how one kernel calls another by its address.

Python calls few of the kernels, the `entry` points; the others are compiled into those, or are reached
through a `pointer`: a function with a fixed signature that is compiled on its own, when it is first
asked for, and whose address is a number among the arguments. Rules, inner solvers and losses are
pointers, so a kernel is compiled once for all of them, and a new one compiles nothing but itself.

Sums may be reordered (that is what vectorises a dot product), but nan and inf keep their meaning: a run
that diverges must be seen to diverge.

**No counting in loops.** numba counts the references to every array, atomically, at each call and
each slice: a third of the time of a small batch. So a kernel that allocates nothing is a `loop`, and
those that allocate leave their loops to it.

**The same bits everywhere.** A reordered sum depends on how often the compiler went over it, so a
result is the same to the last bit only if it comes from the same machine code. Two things would
change that code. The process that compiles a kernel links it to callees that were optimised on their
own, while one that loads it from the cache links it to the copies that came along; so a process of its
own compiles each entry point and pointer (`targetopt.linear.kernels.compiler.build`), and all others load it. And
two of them that came with callees of the same name would share those of whichever was loaded first; so
their names differ. Nor does a loop both write and sum: where a sum may be reordered, such a loop asks by the
addresses of its arrays, as it runs, which way it is gone over (`tests/test_linear_placement.py`).

**Cold starts.** What a run needs is asked for at once (`prepare`), so that one process imports the package
and reads numba's tables, and forks a child for each kernel. Callees are compiled for the types of their arguments
(`build`), where numba would compile them once more for a number that is written down, and they assign no slices,
for which numba compiles a formatter of error messages. A product with `np.dot` goes into an array that is there.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, typeof, types
from numba.core import cgutils
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from targetopt.linear.kernels.compiler.cache import CheckedCache

F = TypeVar("F", bound=Callable[..., object])

_options = {"error_model": "numpy", "nogil": True}
_reordering = {"fastmath": {"reassoc", "contract", "nsz"}, **_options}
compiled: list[Any] = []
"""All entry points and pointers."""

BUILDING = "TARGETOPT_BUILDS_KERNELS"
"""In the environment of the process that compiles."""

_callee: dict[str, bool] = (
    {"no_cpython_wrapper": True, "no_cfunc_wrapper": True} if BUILDING in os.environ else {}
)
"""Nobody calls a callee from Python in the process that compiles."""

PATIENCE = 2.0
"""Seconds of compiling after which the user is told."""


def jit(function: F) -> F:
    """A kernel for other kernels; its types are those of the plain function."""
    return cast(F, njit(**_reordering, **_callee)(function))


def loop(function: F) -> F:
    """As `jit`, for a kernel that neither makes nor returns arrays: it counts no references."""
    return cast(F, njit(_nrt=False, **_reordering, **_callee)(function))


def as_written(function: F) -> F:
    """As `loop`, but nothing is reordered: each operation is rounded as it stands."""
    return cast(F, njit(_nrt=False, **_options, **_callee)(function))


def entry(function: F) -> F:
    """A kernel that Python calls: compiled at its first call ever, then loaded from disk."""
    dispatcher = njit(cache=True, no_cfunc_wrapper=True, **_reordering)(function)
    dispatcher._cache = _BuiltElsewhere(function)
    compiled.append(dispatcher)
    return cast(F, dispatcher)


class Calls:
    """Pointers of one signature, and the kernel that calls them.

    Args:
        returns: an example of what they return.
        examples: one of each argument.
        allocate: whether they make arrays; if not they count no references, like a `loop`.
    """

    def __init__(self, returns: object, *examples: object, allocate: bool) -> None:
        taken = tuple(typeof(each) for each in examples)
        self.signature = typeof(returns)(*taken)
        self.call = caller(self.signature.return_type, taken)
        self.options = _reordering if allocate else {"_nrt": False, **_reordering}

    def pointer(self, function: Callable[..., Any]) -> Pointer:
        """Make a function a kernel that is called by its address."""
        return Pointer(function, self.signature, self.options)


class Pointer:
    """A kernel that other kernels call by its address; see `Calls.pointer`."""

    def __init__(self, function: Callable[..., Any], signature: Any, options: Any) -> None:
        self.py_func = function
        self._signature, self._options = signature, options
        # Only what belongs to the package can be found by a process of its own.
        own = function.__module__.startswith("targetopt.")
        self._cache = _BuiltElsewhere(function) if own else _cache_of(function)
        compiled.append(self)

    @cached_property
    def address(self) -> int:
        """Where it begins; compiled when this is first asked for, ever."""
        return self.compile(self._signature)

    def compile(self, signature: Any) -> int:
        return _address_of(self.py_func, signature, self._cache, self._options)

    @property
    def request(self) -> Request:
        """What `prepare` takes to have it compiled."""
        return self, self._signature


Request = tuple[Any, Any]
"""An entry point and the types of its arguments, or a pointer and its signature."""
_prepared: set[tuple[int, Any]] = set()


def request(kernel: Any, *examples: object) -> Request:
    """An entry point, to be compiled for arguments of these types."""
    return kernel, tuple(typeof(each) for each in examples)


def prepare(*wanted: Request) -> None:
    """Have all of these kernels that are not on disk yet compiled together, which is faster than one by one."""
    own = [each for each in wanted if isinstance(each[0]._cache, _BuiltElsewhere)]
    new = [each for each in own if (id(each[0]), each[1]) not in _prepared]
    _prepared.update((id(kernel), sig) for kernel, sig in new)
    if not new or BUILDING in os.environ:
        return
    lacking = [(kernel.py_func, sig) for kernel, sig in new if kernel._cache.lacks(sig)]
    if len(lacking) < 2:  # a single one is compiled when it is first called
        return
    with new[0][0]._cache.alone():
        _build([(kernel.py_func, sig) for kernel, sig in new if kernel._cache.lacks(sig)])


def _cache_of(function: Callable[..., Any]) -> Any:
    """A place on disk, or none where the function has no file."""
    try:
        return CheckedCache(function)
    except RuntimeError:
        return NullCache()


def _address_of(function: Callable[..., Any], signature: Any, cache: Any, options: Any) -> int:
    made: Any = CFunc(function, (signature.args, signature.return_type), {}, dict(options))
    made._cache = cache
    made.compile()
    _alive.append(made)
    return int(made.address)


_alive: list[Any] = []
"""Machine code lives as long as these do."""
_scalars: dict[Callable[..., float], int] = {}


def scalar_address(function: Callable[..., float], arguments: int) -> int:
    """The address of a function of so many floats, compiled exactly as it stands.

    The machine code is kept on disk where the function has a file; a function that was typed into an
    interpreter is compiled again in every process.
    """
    if function not in _scalars:
        signature = types.float64(*[types.float64] * arguments)
        cache = _cache_of(function)
        _scalars[function] = _address_of(function, signature, cache, {"_nrt": False, **_reordering})
    return _scalars[function]


def caller(result: Any, expected: tuple[Any, ...] | None = None) -> Any:
    """A kernel ``call(address, (argument, …))`` that calls a pointer which returns ``result``.

    Args:
        result: a numba type.
        expected: the arguments' types, which are then checked when a caller is compiled.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        taken = [context.get_value_type(each) for each in signature.args[1].types]
        kind = ir.FunctionType(context.get_value_type(result), taken)
        function = builder.inttoptr(args[0], ir.PointerType(kind))
        return builder.call(function, cgutils.unpack_tuple(builder, args[1], len(taken)))

    @intrinsic  # type: ignore[untyped-decorator]
    def call(typing: Any, address: Any, arguments: Any) -> Any:
        if expected is not None and tuple(arguments.types) != expected:
            raise TypingError(f"this pointer takes {expected}, not {tuple(arguments.types)}")
        return result(types.int64, arguments), generate

    return call


class _BuiltElsewhere(CheckedCache):
    """The cache on disk, which has what it lacks compiled by another process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function, with_kernels=True)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is not None or BUILDING in os.environ:
            return found
        with self.alone():
            found = super().load_overload(sig, target_context)
            if found is None:
                _build([(self._py_func, sig)])
                found = super().load_overload(sig, target_context)
        return found

    def lacks(self, sig: Any) -> bool:
        """Whether there is no machine code on disk for these types."""
        key = self._index_key(sig, cpu_target.target_context.codegen())
        return key not in self._cache_file._load_index()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process compiles kernels, of whatever folder."""
        place = Path(CheckedCache(_announce).cache_path)
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / "targetopt-kernels.lock"):
            yield


def _announce(count: int) -> None:
    logging.getLogger("targetopt").warning(
        "targetopt compiles %s for linear models. This happens once; the machine code is kept.",
        "a kernel" if count == 1 else f"{count} kernels",
    )


def _build(wanted: list[tuple[Callable[..., object], Any]]) -> None:
    """Have kernels compiled for these types, by a process that does nothing else."""
    told = threading.Timer(PATIENCE, _announce, [len(wanted)])
    told.daemon = True
    told.start()
    try:
        if hasattr(os, "fork"):
            _build_in_one_process(wanted)
        else:
            for each in wanted:
                _build_in_one_process([each])
    finally:
        told.cancel()


def _build_in_one_process(wanted: list[tuple[Callable[..., object], Any]]) -> None:
    home = str(Path(__file__).parents[4])
    environment = {
        **os.environ,
        BUILDING: "1",
        "PYTHONHASHSEED": "0",  # numba goes through sets
        "PYTHONPATH": os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")])),
    }
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", "targetopt.linear.kernels.compiler.build"],
            input=pickle.dumps([(f.__module__, f.__qualname__, sig) for f, sig in wanted]),
            env=environment,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode(errors="replace")[-2000:]
        names = ", ".join(f"{each.__module__}.{each.__qualname__}" for each, _ in wanted)
        warnings.warn(
            f"These kernels are compiled in this process, because a process of their own failed: {names}. "
            f"Results may differ in their last bits from those of other processes. {error}\n{said}",
            RuntimeWarning,
            stacklevel=2,
        )
