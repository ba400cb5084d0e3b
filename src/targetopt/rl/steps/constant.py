"""A constant η."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from targetopt.rl.steps.base import Landing, StepSize, Verdict
from targetopt.types import BadArgument, State, as_number


@dataclass(frozen=True)
class ConstantStep(StepSize):
    """η_t = η, and whatever comes out is kept.

    Args:
        eta: η; it multiplies the advantages, which have unit deviation.

    Example:
        >>> ConstantStep(0.5).first({})
        0.5
    """

    eta: float = 1.0

    needs_divergence: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0.0 < as_number(self.eta) < float("inf"):
            raise BadArgument(f"ConstantStep: eta={self.eta!r} must be positive and finite")

    def first(self, state: State) -> float:
        return self.eta

    def judge(self, seen: Landing, state: State) -> Verdict:
        return Verdict(None, state)
