"""Lists of values to try that go on beyond their ends, by the ratio of the last two values there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from targetopt.lab.spec.options import theory_factor


def extended(values: Sequence[Any], extend: int) -> tuple[list[Any], range]:
    """The list with ``extend`` further values at either end, and the places of the given ones in it.

    Lists of numbers and lists of multiples of ``"theory"`` are extended, if they rise; others stay as they are.

    >>> extended([0.1, 1.0], 1)
    ([0.01, 0.1, 1.0, 10.0], range(1, 3))
    >>> extended(["theory/4", "theory", "theory*4"], 1)[0]
    ['theory/16', 'theory/4', 'theory', 'theory*4', 'theory*16']
    >>> extended(["keep", "grow"], 2)
    (['keep', 'grow'], range(0, 2))
    """
    by_theory = all(isinstance(value, str) for value in values)
    numbers = [_number(value) for value in values]
    known = [number for number in numbers if number is not None]
    rising = all(0 < less < more for less, more in pairwise(known))
    mixed = any(isinstance(value, str) for value in values) and not by_theory
    if not extend or len(known) < max(2, len(values)) or not rising or mixed:
        return list(values), range(len(values))
    down, up = known[1] / known[0], known[-1] / known[-2]
    below = [known[0] / down**k for k in range(extend, 0, -1)]
    above = [known[-1] * up**k for k in range(1, extend + 1)]
    spelt = _by_theory if by_theory else _short
    whole = [*map(spelt, below), *values, *map(spelt, above)]
    return whole, range(extend, extend + len(values))


def beyond(values: Sequence[float], best: float, digits: int = 6) -> float | None:
    """The value that follows where the best lies at an end of a rising list; None if it lies inside.

    >>> beyond([0.1, 1.0, 10.0], 10.0), beyond([0.1, 1.0, 10.0], 0.1), beyond([0.1, 1.0, 10.0], 1.0)
    (100.0, 0.01, None)
    """
    if best == values[-1]:
        return _short(best * (values[-1] / values[-2]), digits)
    if best == values[0]:
        return _short(best / (values[1] / values[0]), digits)
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return theory_factor(value) if value.startswith("theory") else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _short(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}")


def _by_theory(factor: float) -> str:
    if factor == 1:
        return "theory"
    return f"theory*{factor:g}" if factor > 1 else f"theory/{1 / factor:g}"
