"""The one list of what has a name: rules, inner solvers, losses and schedules.

Specifications, plots, the command line, the documentation and the tests read it; nothing else repeats
it. Whatever is registered here can be named in a specification and has its title and colour in figures.

>>> from targetopt import registry
>>> registry.rules["newton"].title
'SSO-Newton'
>>> sorted(registry.losses)
['cross-entropy', 'gaussian-kl', 'huber', 'logistic', 'poisson', 'squared']
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from targetopt import losses as _losses
from targetopt import schedules as _schedules
from targetopt.inner import LBFGS, Armijo, Exact, GaussNewton, GradientDescent, Inner, Torch
from targetopt.rules import (
    FTRL,
    AdaGrad,
    AdaGradNorm,
    Automatic,
    Bought,
    Bundle,
    GradientStep,
    LineSearch,
    Majoriser,
    Memory,
    MirrorDescent,
    Newton,
    Polyak,
    Proximal,
    Rule,
    TrustRegion,
)
from targetopt.types import BadArgument

T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[T]):
    """Something with a name.

    Attributes:
        name: what is typed in specifications and on the command line.
        item: the thing itself: a rule, a loss's class, a function that makes an inner solver or schedule.
        title: what legends and tables call it.
        about: one line that says what it is, for listings.
        colour: its colour in figures, as CSS writes it, ``oklch(0.5 0.16 322)`` or ``#b0559c``; lightness then
            follows the number of inner steps. None takes one from the name.
    """

    name: str
    item: T
    title: str
    about: str
    colour: str | None = None


class Names(Mapping[str, Entry[T]]):
    """Entries of one kind by their names, in the order in which they were registered."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry[T]] = {}

    def register(
        self,
        name: str,
        item: T,
        *,
        title: str | None = None,
        about: str = "",
        colour: str | None = None,
    ) -> Entry[T]:
        """Give a name; the same item may be registered under its name again (a plugin read twice)."""
        title = name if title is None else title
        entry = Entry(name, item, title, about or _first_line(item), colour)
        known = self._entries.setdefault(name, entry)
        if known.item != item:
            raise BadArgument(
                f"a {self.kind} named {name!r} is registered already: choose another name"
            )
        return known

    def unregister(self, name: str) -> None:
        """Forget a name; figures and specifications that use it will not be understood any more."""
        del self._entries[name]

    def __getitem__(self, name: str) -> Entry[T]:
        if name not in self._entries:
            known = ", ".join(repr(each) for each in self._entries)
            raise UnknownName(f"there is no {self.kind} named {name!r}; there are {known}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class UnknownName(BadArgument, KeyError):
    """Nothing has this name; the message says what there is."""

    def __str__(self) -> str:
        return str(self.args[0])


def _first_line(item: Any) -> str:
    documented = item if isinstance(item, type) or callable(item) else type(item)
    return (documented.__doc__ or "").strip().split("\n")[0]


@dataclass(frozen=True)
class InnerMaker:
    """How an inner solver is made from the numbers that specifications have.

    Attributes:
        make: takes m and the step size (None: not given).
        iterates: whether it has an m.
        step_size: ``"none"`` if it finds its own, ``"optional"`` or ``"required"``.
    """

    make: Callable[[int, float | None], Inner]
    iterates: bool = True
    step_size: str = "none"


rules: Names[Rule] = Names("rule")
inner: Names[InnerMaker] = Names("inner solver")
losses: Names[type[_losses.Loss]] = Names("loss")
schedules: Names[Callable[[int], _schedules.Schedule]] = Names("schedule")


def register_rule(
    name: str, rule: Rule, title: str | None = None, colour: str | None = None
) -> None:
    """Let specifications write ``rule = name``, and figures draw it.

    Args:
        name: what is typed.
        rule: the rule itself; rules are pure, so one serves all runs.
        title: what legends call SSO with it; ``SSO-name`` if left out.
        colour: its colour in figures as CSS writes it, if it is to have one of its own.

    Example:
        >>> import targetopt as to
        >>> register_rule("bold-newton", to.Newton(floor=0.001))
        >>> rules["bold-newton"].title
        'SSO-bold-newton'
        >>> rules.unregister("bold-newton")
    """
    if not isinstance(rule, Rule):
        raise BadArgument(
            f"rule={rule!r} must be a targetopt.Rule that has been made, like targetopt.Newton(), with "
            "its parentheses."
        )
    rules.register(name, rule, title=title or f"SSO-{name}", colour=colour)


def _adam(max_steps: int, step_size: float | None) -> Inner:
    import torch

    lr = 1e-3 if step_size is None else step_size
    return Torch(partial(torch.optim.Adam, lr=lr), max_steps=max_steps)


def _armijo(max_steps: int, step_size: float | None) -> Inner:
    """Its step size is the first that it tries."""
    if step_size is None:
        return Armijo(max_steps=max_steps)
    return Armijo(max_steps=max_steps, initial_step=step_size)


def _descent(max_steps: int, step_size: float | None) -> Inner:
    if step_size is None:
        raise BadArgument("gradient-descent needs a step_size")
    return GradientDescent(step_size=step_size, max_steps=max_steps)


rules.register("gradient-step", GradientStep(), title="SSO", colour="oklch(0.53 0.14 247)")
rules.register("line-search", LineSearch(), title="SSO-SLS", colour="oklch(0.6 0.17 42)")
rules.register("adagrad", AdaGrad(), title="SSO-AdaGrad", colour="oklch(0.6 0.12 165)")
rules.register("adagrad-norm", AdaGradNorm(), title="SSO-AdaGradNorm", colour="oklch(0.6 0.12 140)")
rules.register("newton", Newton(), title="SSO-Newton", colour="oklch(0.5 0.16 322)")
rules.register("ftrl", FTRL(), title="SSO-FTRL", colour="oklch(0.6 0.12 100)")
rules.register("trust-region", TrustRegion(), title="SSO-TrustRegion")
rules.register("polyak", Polyak(), title="SSO-Polyak")
rules.register("automatic", Automatic(), title="SSO-Automatic")
rules.register("bundle", Bundle(), title="SSO-Bundle")
rules.register("majoriser", Majoriser(), title="SSO-Majoriser")
rules.register("bought", Bought(), title="SSO-Bought")
rules.register("proximal", Proximal(), title="SSO-Proximal")
rules.register("memory", Memory(), title="SSO-Memory")
rules.register("mirror-descent", MirrorDescent(), title="SSO-Mirror")
rules.register("miso", Memory(kind="miso"), title="SSO-MISO")

for _name, _maker, _kind in (
    ("armijo", InnerMaker(_armijo, step_size="optional"), Armijo),
    ("gradient-descent", InnerMaker(_descent, step_size="required"), GradientDescent),
    ("lbfgs", InnerMaker(lambda m, step: LBFGS(max_steps=m)), LBFGS),
    ("gauss-newton", InnerMaker(lambda m, step: GaussNewton(max_steps=m)), GaussNewton),
    ("adam", InnerMaker(_adam, step_size="optional"), Torch),
    ("exact", InnerMaker(lambda m, step: Exact(), iterates=False), Exact),
):
    inner.register(_name, _maker, title=_kind.__name__, about=_first_line(_kind))

losses.register("squared", _losses.Squared)
losses.register("logistic", _losses.Logistic)
losses.register("huber", _losses.Huber)
losses.register("poisson", _losses.Poisson)
losses.register("cross-entropy", _losses.CrossEntropy)
losses.register("gaussian-kl", _losses.GaussianKL)

schedules.register("constant", lambda total: _schedules.constant(), about="η_t = η")
schedules.register("inverse-sqrt", lambda total: _schedules.inverse_sqrt(), about="η_t = η / √t")
schedules.register("exponential", _schedules.exponential, about="η_t = η · (1/T)^(t/T)")
