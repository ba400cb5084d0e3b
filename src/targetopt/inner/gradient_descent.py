"""Gradient descent with a fixed step: Algorithm 1 as printed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Objective
from targetopt.inner.stopping import GRADIENT, MAX_STEPS, Steps, Stopping, settle
from targetopt.types import BadArgument, State


@dataclass(frozen=True)
class GradientDescent(Inner):
    """ω ← ω − α∇q(f(ω)), m times (paper Alg. 1).

    With ``max_steps=1`` the outer step is SGD's whatever η, and costs what SGD costs: where it lands
    is not evaluated, so ``report.surrogate_decrease`` is nan.

    Args:
        step_size: α, in parameter space.
        max_steps: m, or ``"auto"`` to stop when an oracle call would buy more.
        stopping: optional early stop.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, requires_grad=True)
        >>> opt = to.SSO([w], lr=1.0, inner=to.GradientDescent(step_size=0.5, max_steps=1))
        >>> _ = opt.step(lambda: 2 * w, to.LossOracle(to.losses.Squared(torch.ones(1))))
        >>> w.item()  # 0 − 0.5·2·(0 − 1)
        1.0
    """

    step_size: float
    max_steps: Steps = 20
    stopping: Stopping = field(default_factory=Stopping)

    def __post_init__(self) -> None:
        settle(self)
        if not 0 < self.step_size < float("inf"):
            raise BadArgument(
                f"GradientDescent: step_size={self.step_size!r} must be positive and finite. "
                "If you do not know one, Armijo() finds it."
            )

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        now = objective.start()
        watches_gradient = self.stopping.gradient_tolerance > 0
        pace = self.stopping.pace(self.max_steps, objective.price, objective.largest_decrease)
        measures = pace.limit > 1 or pace.judges
        initial = previous = objective.value(now.z) if measures else math.nan
        reason, steps = MAX_STEPS, 0
        while steps < pace.limit:
            gradient = objective.gradient(now, native=True)  # nothing is done with it but added
            if watches_gradient and self.stopping.small_gradient(
                objective.dot(gradient, gradient) ** 0.5
            ):
                reason = GRADIENT
                break
            torch._foreach_add_(objective.params, gradient, alpha=-self.step_size)
            steps += 1
            if steps < pace.limit or pace.judges:
                now = objective.evaluate()
            if pace.judges:
                value = objective.value(now.z)
                stop, previous = pace.after(previous - value), value
                if stop is not None:
                    reason = stop
                    break
        decrease = initial - objective.final_value() if measures else None
        return InnerResult(steps, decrease, reason, steps_at=pace.at)
