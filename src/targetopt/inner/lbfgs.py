"""Limited-memory BFGS with a Wolfe line-search."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Line, Objective
from targetopt.inner.stopping import (
    DECREASE,
    GRADIENT,
    LINE_SEARCH,
    MAX_STEPS,
    Stopping,
    settle,
)
from targetopt.types import State, check_entries, is_positive


@dataclass(frozen=True)
class LBFGS(Inner):
    """ω ← ω + αd, d = −H∇q by the two-loop recursion, α by a weak-Wolfe bisection.

    The history is built anew for each surrogate; only the scale of the first step is carried over.
    (torch's own L-BFGS neither counts its evaluations nor can be stopped between iterations, and
    compares values that agree in most digits; this one uses the cancellation-free change of q.)

    Args:
        max_steps: m, accepted steps.
        history: pairs kept.
        max_backtracks: trials per search before it gives up (reason ``"line-search"``).
        stopping: optional early stop.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        >>> x = torch.diag(torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64))
        >>> oracle = to.LossOracle(to.losses.Squared(torch.ones(3, dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=1.0, inner=to.LBFGS(max_steps=30))
        >>> _ = opt.step(lambda: x @ w, oracle)
        >>> bool(torch.allclose(x @ w, torch.ones(3, dtype=torch.float64)))
        True

    Reference: Nocedal, Wright, *Numerical Optimization*, 2006, algorithms 7.4 and 7.5.
    """

    max_steps: int = 20
    history: int = 10
    max_backtracks: int = 12
    stopping: Stopping = field(default_factory=Stopping)

    remedy: ClassVar[str] = "Lower lr, or use Armijo."

    SUFFICIENT = 1e-4
    CURVATURE = 0.9

    def __post_init__(self) -> None:
        settle(self, "history", "max_backtracks")

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, step_size=is_positive)

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        now = objective.start()
        gradient = _flat(objective.gradient(now))
        pairs: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=self.history)
        carried = dict(state)
        total, reason, steps = 0.0, MAX_STEPS, 0
        while steps < self.max_steps:
            norm = float(gradient.norm())
            if self.stopping.small_gradient(norm):
                reason = GRADIENT
                break
            direction = _two_loop(pairs, gradient)
            slope = float(gradient @ direction)
            first = 1.0 if pairs else float(state.get("step_size", 1.0 / norm))
            found = self._search(objective, now, direction, slope, first)
            if found is None and pairs:  # stale curvature: once more along the gradient
                pairs.clear()
                continue
            if found is None:
                reason = LINE_SEARCH
                break
            alpha, now, new_gradient, change = found
            if not pairs:
                carried["step_size"] = alpha
            y, s = new_gradient - gradient, alpha * direction
            curvature = float(y @ s)
            if curvature > 0:
                pairs.append((s, y, curvature))
            gradient = new_gradient
            steps += 1
            total -= change
            if self.stopping.small_decrease(-change, total):
                reason = DECREASE
                break
        return InnerResult(steps, total, reason, carried)

    def _search(
        self, objective: Objective, now: Evaluation, direction: Tensor, slope: float, alpha: float
    ) -> tuple[float, Evaluation, Tensor, float] | None:
        """A step with sufficient decrease and increased slope; the parameters are left there."""
        line = Line(objective, now, _unflat(direction, objective.params))
        low, high = 0.0, float("inf")
        best: tuple[float, Evaluation, Tensor, float] | None = None
        for _ in range(self.max_backtracks):
            there, change = line.trial(alpha)
            if change <= self.SUFFICIENT * alpha * slope:
                gradient = _flat(objective.gradient(there))
                new_slope = float(gradient @ direction)
                best = (alpha, there, gradient, change)
                if new_slope >= self.CURVATURE * slope:
                    return best
                # too short: the secant of the slopes says how far, within reason
                low = alpha
                grown = low * slope / (slope - new_slope) if new_slope != slope else 2 * low
                alpha = (
                    min(max(grown, 1.5 * low), 10 * low)
                    if high == float("inf")
                    else 0.5 * (low + high)
                )
            else:
                high = alpha
                fitted = -0.5 * slope * alpha * alpha / (change - slope * alpha)
                if low == 0.0 and 0.1 * high <= fitted <= 0.5 * high:
                    alpha = fitted
                else:
                    alpha = low + 0.5 * (high - low) if low else 0.2 * high
        if best is None:
            line.move(0.0)
            return None
        line.move(best[0])
        return best


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def _unflat(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    parts = flat.split([p.numel() for p in like])
    types = [torch.promote_types(p.dtype, torch.float32) for p in like]
    return [part.view_as(p).to(t) for part, p, t in zip(parts, like, types, strict=True)]


def _two_loop(pairs: deque[tuple[Tensor, Tensor, float]], gradient: Tensor) -> Tensor:
    q = gradient.neg()
    if not pairs:
        return q
    weights = []
    for s, y, curvature in reversed(pairs):
        weight = (s @ q) / curvature
        q = torch.sub(q, weight * y)
        weights.append(weight)
    _, y, curvature = pairs[-1]
    q = q * (curvature / (y @ y))
    for (s, y, curvature), weight in zip(pairs, reversed(weights), strict=True):
        q = q + s * (weight - (y @ q) / curvature)
    return q
