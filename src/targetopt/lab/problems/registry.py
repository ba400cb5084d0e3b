"""Problems by name. A problem is one declaration: a function that builds it, and a line about it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from targetopt.lab.problems.base import Problem
from targetopt.types import BadArgument


@dataclass(frozen=True)
class Declaration:
    """A registered problem: its name, one line of description, and the function that builds it."""

    name: str
    description: str
    build: Callable[..., Problem]

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The options that :func:`get` takes for it, with their defaults and types."""
        return inspect.signature(self.build, eval_str=True).parameters

    @property
    def expensive(self) -> bool:
        """Whether calls of its oracle are what counts, as the class says that it is declared to build."""
        built = inspect.signature(self.build, eval_str=True).return_annotation
        kind = self.build if isinstance(self.build, type) else built
        return bool(getattr(kind, "expensive", False))


_DECLARATIONS: dict[str, Declaration] = {}


def register(
    name: str, description: str
) -> Callable[[Callable[..., Problem]], Callable[..., Problem]]:
    """Declare a problem: decorates the function that builds it.

    The function's parameters, all with defaults, are the problem's options. ``name`` is set on what
    it returns.

    Example:
        >>> from targetopt.lab import problems
        >>> @problems.register("steep", "a quadratic with condition number 10⁶")
        ... def steep(seed: int = 0):
        ...     return problems.get("quadratic", kappa=1e6, seed=seed)
        >>> problems.get("steep").name
        'steep'
        >>> problems.unregister("steep")
    """

    def add(build: Callable[..., Problem]) -> Callable[..., Problem]:
        if name in _DECLARATIONS and _DECLARATIONS[name].build is not build:
            raise BadArgument(f"there is a problem {name!r} already; choose another name")
        _DECLARATIONS[name] = Declaration(name, description, build)
        return build

    return add


def unregister(name: str) -> None:
    """Forget a declaration."""
    del _DECLARATIONS[declaration(name).name]


def names() -> tuple[str, ...]:
    """The names of all problems.

    Example:
        >>> from targetopt.lab import problems
        >>> "mushrooms" in problems.names()
        True
    """
    return tuple(_DECLARATIONS)


def declaration(name: str) -> Declaration:
    """What is registered under a name: ``.description``, ``.options``, ``.build``.

    Example:
        >>> from targetopt.lab import problems
        >>> list(problems.declaration("mushrooms").options)
        ['loss', 'bias', 'weight_decay']
    """
    if name not in _DECLARATIONS:
        near = difflib.get_close_matches(str(name), _DECLARATIONS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(_DECLARATIONS)
        raise BadArgument(f"there is no problem {name!r}.{hint} Problems: {known}")
    return _DECLARATIONS[name]


def get(name: str, **options: Any) -> Problem:
    """Build a problem.

    Args:
        name: one of :func:`names`.
        options: the problem's own, see ``declaration(name).options``.

    Example:
        >>> from targetopt.lab import problems
        >>> problem = problems.get("breast_cancer", loss="logistic", weight_decay=0.01)
        >>> model = problem.model(seed=0)
        >>> sorted(problem.metrics(model))
        ['accuracy', 'grad_norm', 'loss', 'suboptimality']
    """
    declared = declaration(name)
    unknown = [option for option in options if option not in declared.options]
    if unknown:
        takes = ", ".join(declared.options) or "none"
        raise BadArgument(f"problem {name!r} has no option {unknown[0]!r}; its options: {takes}")
    problem = declared.build(**options)
    problem.name = name
    problem.label = problem.label or name
    return problem
