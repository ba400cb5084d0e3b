"""What `linear.Run` hands its work to: compiled loops, or one step after another.

Both make the same steps. An engine keeps θ and the counts, advances over a stretch of batches, and gives
and takes its state; every part of a state is checked here before it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from targetopt.inner import Inner
from targetopt.linear.baselines import Baseline
from targetopt.linear.coordinates import FORMS
from targetopt.linear.design import Design
from targetopt.losses import Loss
from targetopt.rules import Rule
from targetopt.types import BadArgument, checked_whole

Array = NDArray[np.float64]
Index = NDArray[np.int64]

COUNTS = ("oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls")
"""What an engine counts, in this order; the steps made in each form follow."""
PLACES = len(COUNTS) + len(FORMS)


@dataclass(frozen=True)
class Setup:
    """What a run is made of, checked: ``baseline``, or ``rule`` and ``inner``."""

    design: Design
    loss: Loss
    rule: Rule
    inner: Inner
    baseline: Baseline | None
    lr: float | None
    weight_decay: float
    start: Array
    form: str | None
    steps_per_epoch: int


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of a draw of batches, the first of which is the run's step ``number`` + 1.

    Batch t of the draw is ``order[ends[t-1]:ends[t]]``. The steps use those from ``first`` on, one for each
    of the ``multipliers``, which multiply their step sizes.
    """

    number: int
    order: Index
    ends: Index
    first: int
    multipliers: Array

    def rows(self, t: int) -> Index:
        """The batch of the t-th of these steps."""
        place = self.first + t
        begin = self.ends[place - 1] if place > 0 else 0
        return self.order[begin : self.ends[place]]


class Engine(Protocol):
    """``theta`` and ``counts`` are kept up to date in place."""

    theta: Array
    counts: Index

    def advance(self, steps: Steps, path: Array) -> int:
        """Steps made: all, or fewer if the run diverged; it then stands before the step that did it.

        ``path`` takes θ after each step, one row each, unless it has no rows.
        """

    def state(self) -> dict[str, Any]:
        """All that changes, copied; ``theta`` and ``counts`` among it."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state, checked."""


def checked_steps(state: dict[str, Any]) -> int:
    """The number of steps in a state."""
    if "steps" not in state:
        raise BadArgument("state has no 'steps': it was not made by linear.fit or Run.state_dict")
    value = state["steps"]
    value = value.item() if hasattr(value, "item") else value
    return checked_whole("state", "steps", value, 0)


def checked_part(
    state: dict[str, Any], name: str, like: NDArray[Any], *, nan_means_none: bool = False
) -> NDArray[Any]:
    """A copy of a part of a state, refused unless shape and type are those of ``like`` and its range is.

    Counts must not be negative, and other numbers must be finite; ``nan_means_none`` lets nan pass.
    """
    if name not in state:
        raise BadArgument(
            f"state has no {name!r}: it was saved by a run with another method, or without (or with) numba"
        )
    try:
        value = np.asarray(state[name])
    except (TypeError, ValueError) as error:
        raise BadArgument(f"state[{name!r}] is not an array: {error}") from None
    whole = like.dtype.kind == "i"
    if value.shape != like.shape or value.dtype.kind not in ("iu" if whole else "f"):
        raise BadArgument(
            f"state[{name!r}] has shape {value.shape} and type {value.dtype}, this run needs {like.shape} "
            f"and {like.dtype}: it was saved by a run with other data or another method"
        )
    if whole and value.size and (value.min() < 0 or value.max() > np.iinfo(np.int64).max // 2):
        raise BadArgument(f"state[{name!r}] must hold counts ≥ 0; got {value.tolist()}")
    bad = np.isinf(value) if nan_means_none else ~np.isfinite(value)
    if bad.any():
        raise BadArgument(
            f"state[{name!r}] holds numbers that are not finite: it is damaged, or its run had diverged"
        )
    return np.array(value, dtype=like.dtype)


def not_negative(state: dict[str, Any], name: str, value: NDArray[Any]) -> None:
    """Refuse a part with a number below zero (nan passes)."""
    if (value < 0).any():
        least = float(np.nanmin(value))
        raise BadArgument(f"state[{name!r}] must hold numbers ≥ 0; found {least!r}. It is damaged.")


NONE = math.nan
"""What stands for a number that is not there yet."""
