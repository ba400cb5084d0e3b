"""Verdicts on claims: what was claimed, whether it holds here, with which numbers.

``DIR/verdicts.json`` is a list of ``{claim, verdict, numbers, n, test, asked}``. Whoever judges a claim writes it with
:func:`write`; the report reads it with :func:`read`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from targetopt.lab.store.files import write_whole
from targetopt.types import TargetoptError

Judgement = Literal[
    "holds", "mixed", "does not hold", "false as stated", "measured here", "not judged"
]
JUDGEMENTS: tuple[str, ...] = get_args(Judgement)
FILE = "verdicts.json"


class VerdictError(TargetoptError, ValueError):
    """A verdict that says nothing, or says it in a way nobody can read."""


@dataclass(frozen=True)
class Verdict:
    """One claim judged on measured numbers.

    >>> Verdict(
    ...     "SSO beats SGD", "holds", {"win share": 0.97}, n=36, test="one-sided sign test"
    ... ).verdict
    'holds'

    Attributes:
        claim: the claim, in a sentence.
        verdict: ``holds``, ``does not hold`` or ``mixed``; ``false as stated`` where a sentence about all cases has
            counter-examples; ``measured here`` where it is about a machine, and another one has another number; ``not
            judged`` where what it needs is missing.
        numbers: what was measured, by name; a string is taken as it stands.
        n: the number of runs (or pairs of runs) behind it.
        test: how it was decided.
        asked: the same as data: what has to be so of which runs, for whoever wants to decide it with code of their own.
    """

    claim: str
    verdict: Judgement
    numbers: Mapping[str, float | str] = field(default_factory=dict)
    n: int = 0
    test: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.verdict not in JUDGEMENTS:
            raise VerdictError(
                f"verdict={self.verdict!r} of the claim {self.claim!r} must be one of {', '.join(JUDGEMENTS)}."
            )
        if not self.claim.strip():
            raise VerdictError("claim='' must be a sentence: a verdict on nothing cannot be read.")


def write(directory: Path, verdicts: Sequence[Verdict]) -> Path:
    """Write ``directory/verdicts.json`` whole; numbers that JSON has no word for become strings."""
    path = directory / FILE
    content = [
        {**asdict(v), "numbers": {k: _json_number(x) for k, x in v.numbers.items()}}
        for v in verdicts
    ]
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode())
    return path


def read(directory: Path) -> list[Verdict]:
    """The verdicts of a directory; none if it has no ``verdicts.json``."""
    path = directory / FILE
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, ensure_ascii=False).encode("utf-8")  # halves of characters are none
    except (ValueError, RecursionError) as error:
        raise VerdictError(
            f"{path} is not JSON ({error}). Delete it, or write it again."
        ) from error
    if not isinstance(content, list):
        raise VerdictError(
            f"{path} must hold a list of verdicts; it holds a {type(content).__name__}."
        )
    return [_verdict(path, position, entry) for position, entry in enumerate(content)]


def _verdict(path: Path, position: int, entry: Any) -> Verdict:
    if not isinstance(entry, dict) or not {"claim", "verdict"} <= entry.keys():
        raise VerdictError(
            f"{path}, entry {position}: a verdict needs at least 'claim' and 'verdict'; got {entry!r}."
        )
    count = entry.get("n") or 0
    if not isinstance(count, int):
        raise VerdictError(f"{path}, entry {position}: n={count!r} must be a whole number.")
    numbers = entry.get("numbers") or {}
    if not isinstance(numbers, dict):
        numbers = {"": numbers}
    return Verdict(
        str(entry["claim"]),
        entry["verdict"],
        numbers,
        count,
        str(entry.get("test") or ""),
        entry.get("asked") or {},
    )


def _json_number(value: float | str) -> float | str:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
