"""The seam between a surrogate and the parameters: an inner solver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from targetopt.inner.objective import Objective
from targetopt.types import State, check_entries


@dataclass(frozen=True)
class InnerResult:
    """What an inner solver did. The parameters already hold its answer.

    Attributes:
        steps: parameter updates made.
        decrease: objective before − after; ``None`` if the solver did not look.
        reason: see `StepReport.stop_reason`.
        state: what to hand to the next call, if the step succeeds.
        form: how a linear forward was solved, else ``""``.
        steps_at: after how many steps ``max_steps="auto"`` would have stopped, by the price of an oracle call.
    """

    steps: int
    decrease: float | None
    reason: str
    state: State = field(default_factory=dict)
    form: str = ""
    steps_at: dict[int, int] = field(default_factory=dict)


class Inner(ABC):
    """An inner solver: called once per outer step to decrease θ ↦ q(f(θ)) + ½λ‖θ‖².

    It owns the parameters during the call: it moves ``objective.params`` in place and leaves them
    at its answer. It is otherwise pure: carried state comes in as ``state`` (``{}`` at first) and
    goes out in the result, and ``state`` itself is not changed. It never sees a loss or an oracle.
    """

    remedy: ClassVar[str] = "Lower its step size (or lr), or use Armijo or LBFGS."
    """What to try where this solver has left the finite numbers."""

    any_surrogate: ClassVar[bool] = True
    """Whether it decreases every surrogate. One that needs a closed form is given `GradientStep` by default."""

    @property
    def prescribed(self) -> bool:
        """Whether m is a number and the tests that stop it need the last gradient and decrease only.

        Compiled loops and solvers in coordinates follow such a solver; others are called themselves.
        """
        stopping = getattr(self, "stopping", None)
        plain = stopping is None or stopping.relative_error == 0.0
        return plain and getattr(self, "max_steps", 1) != "auto"

    def check(self, params: Sequence[Tensor]) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse parameters this solver cannot work on, before the oracle is asked for anything."""

    def check_state(self, state: State) -> None:
        """Refuse a loaded state that this solver cannot have written."""
        check_entries(type(self).__name__, state)

    @abstractmethod
    def minimise(self, objective: Objective, state: State) -> InnerResult:
        """Decrease the objective from its present parameters."""
