"""What a run costs: a price for each question to the expert and for each step of the simulator."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from targetopt.types import BadArgument


@dataclass(frozen=True)
class Prices:
    """The price of what a run asks for, in whatever unit: euros, minutes of a person's time.

    Args:
        question: of asking the expert about one state, for whatever purpose.
        interaction: of one step of the environment in the rounds.

    Example:
        >>> Prices(question=0.05, interaction=0.001).of(questions=1000, interactions=2000)
        52.0
    """

    question: float = 0.0
    interaction: float = 0.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not 0 <= value < math.inf:
                raise BadArgument(
                    f"Prices: {each.name}={value!r} must be a number, at least 0 and finite"
                )

    def of(self, *, questions: int, interactions: int) -> float:
        """What so many questions and interactions cost."""
        return self.question * questions + self.interaction * interactions


FREE = Prices()
