"""Gradient descent with Armijo backtracking: the paper's inner solver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from targetopt.distributed.world import present
from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Line, Objective
from targetopt.inner.stopping import (
    GRADIENT,
    LINE_SEARCH,
    MAX_STEPS,
    Steps,
    Stopping,
    settle,
)
from targetopt.types import BadArgument, State, check_entries, is_positive, settle_whole


@dataclass(frozen=True)
class Armijo(Inner):
    """ω ← ω − α∇q with the first α that gives q(ω − α∇q) ≤ q(ω) − c·α·‖∇q‖² (paper §5).

    The search begins at ``grow`` times the last accepted α, carried across outer steps (after a
    search that found nothing, at ``initial_step`` again). The
    forward of an accepted trial is the forward of the next gradient, so a step costs one forward
    and one backward as long as trials are accepted.

    Args:
        max_steps: m, or ``"auto"`` to stop when an oracle call would buy more.
        c: share of the linear decrease that must be realised.
        shrink: factor on α after a rejection.
        grow: factor on α after an acceptance.
        initial_step: the very first α.
        max_backtracks: rejections after which the search gives up (reason ``"line-search"``).
        stopping: optional early stop.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        >>> x = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        >>> oracle = to.LossOracle(to.losses.Squared(torch.ones(3, dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=1.0, inner=to.Armijo(max_steps=200))
        >>> report = opt.step(lambda: x @ w, oracle)
        >>> bool(torch.allclose(x @ w, torch.ones(3, dtype=torch.float64)))
        True

    Reference: Armijo 1966; paper §5 and App. E.
    """

    max_steps: Steps = 20
    c: float = 0.5
    shrink: float = 0.5
    grow: float = 1.2
    initial_step: float = 1.0
    max_backtracks: int = 40
    stopping: Stopping = field(default_factory=Stopping)

    remedy: ClassVar[str] = "Lower lr, or use LBFGS."

    def __post_init__(self) -> None:
        settle(self)
        settle_whole(self, "max_backtracks", least=0)
        if not (0 < self.c < 1 and 0 < self.shrink < 1 <= self.grow):
            raise BadArgument(
                "Armijo needs 0 < c < 1 and 0 < shrink < 1 ≤ grow; got "
                f"c={self.c!r}, shrink={self.shrink!r}, grow={self.grow!r}"
            )
        if not 0 < self.initial_step < float("inf"):
            raise BadArgument(
                f"Armijo: initial_step={self.initial_step!r} must be positive and finite"
            )

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, step_size=is_positive)

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        now = objective.start()
        alpha = float(state.get("step_size", self.initial_step))
        total, reason, steps = 0.0, MAX_STEPS, 0
        pace = self.stopping.pace(self.max_steps, objective.price, objective.largest_decrease)
        while steps < pace.limit:
            gradient = objective.gradient(now)
            squared = objective.dot(gradient, gradient)
            if self.stopping.small_gradient(squared**0.5):
                reason = GRADIENT
                break
            line = Line(objective, now, gradient)
            for _ in range(self.max_backtracks + 1):
                there, change = line.trial(-alpha)
                if change <= -self.c * alpha * squared:
                    accepted = True
                    break
                accepted = False
                if not objective.weight_decay and present().all(torch.equal(there.z, now.z)):
                    break  # so short a step that rounding swallows it
                alpha *= self.shrink
            if not accepted:
                line.move(0.0)
                # At rounding level a search may end anywhere; the next one begins afresh.
                alpha, reason = self.initial_step, LINE_SEARCH
                break
            now = there
            del line, gradient, there  # their memory before the next gradient's
            steps += 1
            total -= change
            alpha *= self.grow
            stop = pace.after(-change)
            if stop is not None:
                reason = stop
                break
        return InnerResult(steps, total, reason, {"step_size": alpha}, steps_at=pace.at)
