"""Where a run goes on: what its checkpoint holds, checked before any of it is used.

A checkpoint is a copy of work that can be done again. One that is damaged, of another run, of other
versions or of other code is not continued: the run then begins anew, which is always right.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from targetopt.errors import TargetoptError
from targetopt.lab.store.directory import AXES, COUNTS
from targetopt.lab.store.files import write_whole

FORMAT = 3
Rows = list[dict[str, float | int]]


class Refused(TargetoptError, ValueError):
    """A checkpoint cannot be continued; the message says why."""


@dataclass
class Progress:
    """What a run has so far; with the session's state, the contents of a checkpoint."""

    step: int = 0
    wall_time: float = 0.0
    elapsed: float = 0.0
    cpu_time: float = 0.0
    rows: Rows = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that has passed all checks that need no session.

    Attributes:
        run: the id of its run.
        source: the versions and the code that it was made with.
        session: the session's state.
        random: the state of torch's generator.
        progress: steps, times and rows.
    """

    run: str
    source: Mapping[str, Any]
    session: dict[str, Any]
    random: torch.Tensor
    progress: Progress

    def write(self, path: Path) -> None:
        """Replace the checkpoint at ``path``."""
        buffer = io.BytesIO()
        content = {
            "format": FORMAT,
            "run": self.run,
            "source": dict(self.source),
            "session": self.session,
            "random": self.random,
            "progress": vars(self.progress),
        }
        torch.save(content, buffer)
        write_whole(path, buffer.getvalue())


def read(path: Path) -> Checkpoint | None:
    """The checkpoint at ``path``, or None if there is none. Raises :class:`Refused`; runs no code in it."""
    try:
        content = torch.load(path, weights_only=True)
    except FileNotFoundError:
        return None
    except Exception as error:  # whatever torch finds in a file that is none of its own
        raise Refused(f"it cannot be read ({type(error).__name__})") from error
    _require(isinstance(content, dict), "it is not a dictionary")
    if content.get("format") != FORMAT:
        raise Refused(
            f"it is of format {content.get('format')!r}, and this version writes {FORMAT}"
        )
    _require(isinstance(content.get("run"), str), "it does not say of which run it is")
    _require(isinstance(content.get("source"), dict), "it does not say what made it")
    _require(isinstance(content.get("session"), dict), "it has no state of the session")
    random, usual = content.get("random"), torch.get_rng_state()
    fits = isinstance(random, torch.Tensor) and random.dtype == usual.dtype
    _require(fits and random.shape == usual.shape, "its random state is not one of torch's")
    progress = _progress(content.get("progress"))
    return Checkpoint(content["run"], content["source"], content["session"], random, progress)


def saved_rows(path: Path) -> Rows:
    """The rows a run had recorded at its last checkpoint; none if that cannot be read."""
    try:
        checkpoint = read(path)
    except Refused:
        return []
    return checkpoint.progress.rows if checkpoint else []


def _progress(found: Any) -> Progress:
    _require(isinstance(found, dict), "it does not say how far the run is")
    _require(found.keys() == vars(Progress()).keys(), "it does not say how far the run is")
    step, rows = found["step"], found["rows"]
    _require(type(step) is int and step >= 0, f"its step is {step!r}")
    for name in ("wall_time", "elapsed", "cpu_time"):
        _require(_is_time(found[name]), f"its {name} is {found[name]!r}, not a time")
    _require(isinstance(rows, list), "its rows are not a list")
    last = (-1, 0)
    for row in rows:
        _require(isinstance(row, dict) and all(name in row for name in AXES), "a row is damaged")
        for name, value in row.items():
            whole = name in ("step", *COUNTS)
            right = type(value) is int and value >= 0 if whole else isinstance(value, int | float)
            _require(isinstance(name, str) and right, f"a row has {name!r}: {value!r}")
        # a step may ask several times
        place = (row["step"], row["oracle_calls"] + row["value_calls"])
        _require(last < place and place[0] <= step, "its rows are not in order")
        last = place
    return Progress(**found)


def _is_time(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value >= 0


def _require(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)
