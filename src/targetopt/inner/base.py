"""The seam between a surrogate and the parameters: an inner solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from targetopt.inner.objective import Objective
from targetopt.types import State


@dataclass(frozen=True)
class InnerResult:
    """What an inner solver did. The parameters already hold its answer.

    Attributes:
        steps: parameter updates made.
        decrease: objective before − after; ``None`` if the solver did not look.
        reason: see `StepReport.stop_reason`.
        state: what to hand to the next call, if the step succeeds.
        form: how a linear forward was solved, else ``""``.
    """

    steps: int
    decrease: float | None
    reason: str
    state: State = field(default_factory=dict)
    form: str = ""


class Inner(ABC):
    """An inner solver: called once per outer step to decrease θ ↦ q(f(θ)) + ½λ‖θ‖².

    It owns the parameters during the call: it moves ``objective.params`` in place and leaves them
    at its answer. It is otherwise pure: carried state comes in as ``state`` (``{}`` at first) and
    goes out in the result, and ``state`` itself is not changed. It never sees a loss or an oracle.
    """

    @abstractmethod
    def minimise(self, objective: Objective, state: State) -> InnerResult:
        """Decrease the objective from its present parameters."""
