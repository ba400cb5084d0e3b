"""Packages whose names are imported when they are first used.

Importing torch takes seconds, and a command such as ``targetopt --help`` needs none of it. A package that names its
public objects in a table, instead of importing them, costs nothing until somebody asks for one of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from targetopt.errors import MissingCapability

Method = TypeVar("Method", bound=Callable[..., Any])


def attach(
    package: str,
    names: Mapping[str, Sequence[str]],
    modules: Sequence[str] = (),
    extras: Mapping[str, str] = MappingProxyType({}),
    unlisted: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The functions ``__getattr__`` and ``__dir__`` of a lazy package, and its ``__all__``.

    An object goes before a module of the same name: ``targetopt.lab.run`` is the function, although there is a
    package ``targetopt.lab.run`` that the import system would put in its place.

    Args:
        package: the package's ``__name__``.
        names: for each module of the package, the objects of it that the package offers.
        modules: modules of the package that it offers whole, under the last part of their names.
        extras: for packages that may be missing, the extra of targetopt that they come with.
        unlisted: like ``names``, for objects that are found but listed in their own modules only.

    Example:
        >>> find, _, public = attach("json", {"decoder": ["JSONDecodeError"]})
        >>> find("JSONDecodeError").__name__, public
        ('JSONDecodeError', ['JSONDecodeError'])
    """
    listed = {name: module for module, offered in names.items() for name in offered}
    homes = listed | {name: module for module, offered in unlisted.items() for name in offered}
    whole = {module.rpartition(".")[2]: module for module in modules}

    def __getattr__(name: str) -> Any:
        if name not in homes and name not in whole:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found = importlib.import_module(f"{package}.{whole.get(name) or homes[name]}")
        except ModuleNotFoundError as error:
            extra = extras.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            raise MissingCapability(
                f"{package}.{name} needs {error.name}, which is not installed: pip install 'targetopt[{extra}]'"
            ) from error
        if name in homes:
            found = getattr(found, name)
            setattr(sys.modules[package], name, found)  # so that it is looked up once
        return found

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            if not (name in homes and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Package
    public = sorted([*listed, *whole])

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return __getattr__, __dir__, public


def without_compiler(method: Method) -> Method:
    """A method of torch's optimisers that does not import torch's compiler in order to switch it off.

    ``torch.optim`` marks some methods as not to be compiled, and importing ``torch._dynamo`` for that takes as long
    as importing torch. While nobody has imported the compiler there is nothing to switch off, and the method inside
    the mark is called directly.

    Args:
        method: a bound method, such as ``super().add_param_group``.
    """
    function: Any = getattr(method, "__func__", None)
    marked = getattr(function, "__globals__", {}).get("__name__") == "torch._compile"
    if not marked or "torch._dynamo" in sys.modules:
        return method
    inside: Method = function.__wrapped__.__get__(getattr(method, "__self__", None))
    return inside
