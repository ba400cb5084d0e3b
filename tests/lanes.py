"""Large products of parameters: a part of each for the ordinary lane, all the rest for the long one.

``@pytest.mark.product(3)`` beside ``parametrize`` keeps one case in three, and each value of each argument in two cases
at least (``each=``). ``but=("backend",)`` keeps or leaves out all values of an argument together, as where they share
what they are compared to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import pytest


def share_out(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what the ordinary lane leaves out of marked products."""
    products: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("product") and not item.get_closest_marker("slow"):
            products[item.nodeid.partition("[")[0]].append(item)
    for cases in products.values():
        marker = cases[0].get_closest_marker("product")
        values = [_values(case, marker.kwargs.get("but", ())) for case in cases]
        kept = chosen(values, *marker.args, each=marker.kwargs.get("each", 2))
        for case, keep in zip(cases, kept, strict=True):
            if not keep:
                case.add_marker(pytest.mark.slow)


def _values(case: Any, but: Sequence[str]) -> tuple[Hashable, ...]:
    given = {name: value for name, value in case.callspec.params.items() if name not in but}
    return tuple(v if isinstance(v, Hashable) else id(v) for v in given.values())


def chosen(cases: Sequence[tuple[Hashable, ...]], one_in: int, each: int = 2) -> list[bool]:
    """Which cases to keep: those whose places in the lists of values add up to a multiple, and what is rare.

    >>> product = [(a, b) for a in "abc" for b in "xyz"]
    >>> ["".join(case) for case, keep in zip(product, chosen(product, 3, each=1)) if keep]
    ['ax', 'bz', 'cy']
    >>> sum(chosen(product, 3)), sum(chosen(product + [("d", "x")], 3, each=1))
    (7, 4)
    """
    places: dict[tuple[int, Hashable], int] = {}
    known: Counter[int] = Counter()
    for case in cases:
        for value in enumerate(case):
            if value not in places:
                places[value] = known[value[0]]
                known[value[0]] += 1
    first = [sum(places[value] for value in enumerate(case)) % one_in == 0 for case in cases]
    met = Counter(
        v for case in {c for c, k in zip(cases, first, strict=True) if k} for v in enumerate(case)
    )
    added = set()
    for case, keep in zip(cases, first, strict=True):
        if not keep and case not in added and any(met[value] < each for value in enumerate(case)):
            added.add(case)
            met.update(enumerate(case))
    return [keep or case in added for case, keep in zip(cases, first, strict=True)]
