"""A register of the paper's inequalities, each with a source of random instances.

    @inequality("Lemma D.5", label="lem:ineq2", says="e^{−x} ≤ (γ/(ex))^γ for x, γ > 0")
    def _(rng, as_printed):
        …
        return Case(left, printed, corrected)

`check` draws instances under the assumptions as printed and counts where ``left ≤ printed`` fails, then
under the corrected assumptions for ``left ≤ corrected``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from targetopt.types import BadArgument

_RELATIVE, _ABSOLUTE = 1e-9, 1e-12


@dataclass(frozen=True)
class Case:
    """Both sides on one instance: the left, the right as printed, the right as corrected."""

    left: float
    printed: float
    corrected: float


Sampler = Callable[[np.random.Generator, bool], Case]


@dataclass(frozen=True)
class Inequality:
    """One statement of the paper.

    Attributes:
        name: its number in the paper.
        label: its LaTeX label (or the section).
        says: the statement, with its correction if there is one.
        sampler: draws an instance; its second argument tells whether the assumptions are those
            printed (or the corrected ones) and is ignored where they agree.
        printed_holds: whether the statement is true as printed.
        relation: ``"<="`` or ``"="``.
        instances: how many the tests draw.
        ours: not in the paper; what we prove instead (docs/errata.md).
    """

    name: str
    label: str
    says: str
    sampler: Sampler
    printed_holds: bool
    relation: Literal["<=", "="]
    instances: int
    ours: bool


INEQUALITIES: dict[str, Inequality] = {}


def inequality(
    name: str,
    *,
    label: str,
    says: str,
    printed_holds: bool = True,
    relation: Literal["<=", "="] = "<=",
    instances: int = 300,
    ours: bool = False,
) -> Callable[[Sampler], Sampler]:
    """Register a sampler under the statement's name."""

    def register(sampler: Sampler) -> Sampler:
        if name in INEQUALITIES:
            raise BadArgument(f"the inequality {name!r} is registered twice")
        INEQUALITIES[name] = Inequality(
            name, label, says, sampler, printed_holds, relation, instances, ours
        )
        return sampler

    return register


@dataclass(frozen=True)
class Checked:
    """What `check` found.

    Attributes:
        name: the statement.
        instances: how many were drawn for each of the two versions.
        printed_failures, corrected_failures: how often left > right.
        worst: the instance on which the printed version fails most (or comes nearest to failing).
        tightest: the largest left/right of the corrected version (1 is attained).
    """

    name: str
    instances: int
    printed_failures: int
    corrected_failures: int
    worst: Case
    tightest: float


def check(name: str, *, seed: int = 0, instances: int | None = None) -> Checked:
    """Try one statement on random instances.

    Example:
        >>> found = check("Lemma D.8", instances=50)
        >>> found.printed_failures > 0, found.corrected_failures
        (True, 0)
    """
    if name not in INEQUALITIES:
        raise BadArgument(f"name={name!r} is none of {', '.join(INEQUALITIES)}")
    statement = INEQUALITIES[name]
    count = statement.instances if instances is None else instances
    rng = np.random.default_rng([seed, *name.encode()])
    as_printed = [statement.sampler(rng, True) for _ in range(count)]
    as_corrected = [statement.sampler(rng, False) for _ in range(count)]
    equal = statement.relation == "="
    ratios = [case.left / case.corrected for case in as_corrected if case.corrected > 0]
    return Checked(
        name=name,
        instances=count,
        printed_failures=sum(_fails(c.left, c.printed, equal) for c in as_printed),
        corrected_failures=sum(_fails(c.left, c.corrected, equal) for c in as_corrected),
        worst=max(as_printed, key=lambda c: _excess(c.left, c.printed, equal)),
        tightest=max(ratios, default=0.0),
    )


def check_all(seed: int = 0, most: int | None = None) -> list[Checked]:
    """Try every statement, on at most ``most`` instances each."""
    return [
        check(name, seed=seed, instances=None if most is None else min(most, one.instances))
        for name, one in INEQUALITIES.items()
    ]


def _fails(left: float, right: float, equal: bool) -> bool:
    slack = _ABSOLUTE + _RELATIVE * max(abs(left), abs(right))
    return not (abs(left - right) <= slack if equal else left <= right + slack)


def _excess(left: float, right: float, equal: bool) -> float:
    difference = abs(left - right) if equal else left - right
    return difference / max(abs(left), abs(right), _ABSOLUTE)
