"""The kinds of values that options of methods take, checked: names, steps, weights, fractions."""

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from targetopt import registry


def _known(names: registry.Names[Any], value: str) -> str:
    if value in names:
        return value
    *others, last = map(repr, names)
    raise ValueError(f"must be {', '.join(others)} or {last}")


# Names of `targetopt.registry`, where plugins add their own.
RuleName = Annotated[str, AfterValidator(partial(_known, registry.rules))]
InnerName = Annotated[str, AfterValidator(partial(_known, registry.inner))]
ScheduleName = Annotated[str, AfterValidator(partial(_known, registry.schedules))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step(value: Any) -> float | str:
    if _is_number(value) and 0 < value < float("inf"):
        return float(value)
    multiple = re.fullmatch(r"theory(?:([*/])(\d+\.?\d*))?", str(value).replace(" ", ""))
    if multiple is not None and float(multiple[2] or 1.0) > 0:
        number = float(multiple[2] or 1.0)
        return "theory" if number == 1.0 else f"theory{multiple[1]}{number:g}"
    raise ValueError("must be 'theory', a multiple ('theory*4', 'theory/4') or a finite number > 0")


def _decay(value: Any) -> float | str:
    if value == "problem" or (_is_number(value) and 0 <= value < float("inf")):
        return value if isinstance(value, str) else float(value)
    raise ValueError("must be 'problem' or a finite number ≥ 0")


TheoryOrNumber = Annotated[float | str, BeforeValidator(_step)]
ProblemOrNumber = Annotated[Literal["problem"] | float, BeforeValidator(_decay)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


def theory_factor(lr: float | str) -> float | None:
    """The multiple of the theoretical step that ``lr`` stands for; None for a plain number.

    >>> theory_factor("theory"), theory_factor("theory*4"), theory_factor("theory/4")
    (1.0, 4.0, 0.25)
    """
    if not isinstance(lr, str):
        return None
    factor = float(lr[len("theory*") :] or 1.0)
    return 1.0 / factor if "/" in lr else factor
