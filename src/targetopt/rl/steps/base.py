"""The seam between a policy step and the size it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from targetopt.types import State, check_entries, is_positive


@dataclass(frozen=True)
class Landing:
    """Where an inner solve has come to, measured on the rows it was solved on.

    Attributes:
        eta: the η it was solved with.
        tries: solves of this step so far, this one included.
        kl: mean KL(π_t ‖ π_z).
        promised: −⟨g, z − z_t⟩, what the policy gradient promises for this step.
        earned: mean A (ρ − 1), what importance sampling says that the step earns in the visited states.
    """

    eta: float
    tries: int
    kl: float
    promised: float
    earned: float


class Verdict(NamedTuple):
    """What is to be done with a landing.

    Attributes:
        eta: to solve again from z_t with this η; None to keep the landing; 0 to refuse the step: nothing moves.
        state: what the next step begins with.
    """

    eta: float | None
    state: State


class StepSize(ABC):
    """Chooses η. Pure: what it remembers comes in as ``state`` and goes out in the verdict.

    It is asked twice a step: `first` before the inner solve, and `judge` after each solve. Judging asks for no further
    interaction with the environment.
    """

    needs_divergence: ClassVar[bool] = True
    """Whether η must do something: without a divergence it does nothing."""

    @abstractmethod
    def first(self, state: State) -> float:
        """η of the first solve."""

    @abstractmethod
    def judge(self, seen: Landing, state: State) -> Verdict:
        """Keep it, solve again, or refuse."""

    def check_state(self, state: State) -> None:
        """Refuse a loaded state that this rule cannot have written."""
        check_entries(type(self).__name__, state, eta=is_positive)
