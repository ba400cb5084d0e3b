"""Limited-memory BFGS with a Wolfe line-search."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from targetopt.inner.armijo import Armijo
from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Line, Objective
from targetopt.inner.space import Tensors
from targetopt.inner.stopping import (
    GRADIENT,
    LINE_SEARCH,
    MAX_STEPS,
    Steps,
    Stopping,
    settle,
)
from targetopt.types import BadArgument, State, check_entries, is_positive

FEWEST = 2
"""A single pair takes three more copies of the parameters than gradient descent, for little more than its steps."""


@dataclass(frozen=True)
class LBFGS(Inner):
    """ω ← ω + αd, d = −H∇q by the two-loop recursion, α by a weak-Wolfe bisection.

    The history is built anew for each surrogate; only the scale of the first step is carried over.
    (torch's own L-BFGS neither counts its evaluations nor can be stopped between iterations, and
    compares values that agree in most digits; this one uses the cancellation-free change of q.)

    Args:
        max_steps: m, accepted steps, or ``"auto"`` to stop when an oracle call would buy more.
        history: pairs kept at most; each takes twice the memory of the parameters.
        max_backtracks: trials per search before it gives up (reason ``"line-search"``).
        stopping: optional early stop.
        memory: bytes that the pairs may take. Of a large model fewer pairs are kept, so that memory stays bounded.
            Where not even two fit, which is beyond 16 million parameters in float32, the steps are those of
            `Armijo`, which holds one gradient and nothing else. ``math.inf`` keeps ``history`` pairs of any model.

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

    max_steps: Steps = 20
    history: int = 10
    max_backtracks: int = 12
    stopping: Stopping = field(default_factory=Stopping)
    memory: float = 2.0**28

    remedy: ClassVar[str] = "Lower lr, or use Armijo."

    SUFFICIENT = 1e-4
    CURVATURE = 0.9

    def __post_init__(self) -> None:
        settle(self, "history", "max_backtracks")
        if not self.memory >= 0:
            raise BadArgument(
                f"LBFGS: memory={self.memory!r} must be a number of bytes, or math.inf for no limit"
            )

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, step_size=is_positive)

    def pairs_kept(self, params: Tensors) -> int:
        """How many pairs the budget allows for these parameters.

        >>> (
        ...     LBFGS().pairs_kept([torch.zeros(1000)]),
        ...     LBFGS(memory=8000).pairs_kept([torch.zeros(500)]),
        ...     LBFGS(memory=float("inf")).pairs_kept([torch.zeros(500)]),
        ... )
        (10, 2, 10)
        """
        size = sum(p.numel() * max(p.element_size(), 4) for p in params)
        fitting = int(min(self.history, self.memory / (2 * size))) if size else self.history
        return fitting if fitting >= min(FEWEST, self.history) else 0

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        kept = self.pairs_kept(objective.params)
        if not kept:
            return Armijo(self.max_steps, stopping=self.stopping).minimise(objective, state)
        now = objective.start()
        gradient = objective.space.gathered(objective.gradient(now))
        pairs = _Pairs(objective, kept, frugal=kept < self.history)
        carried = dict(state)
        total, reason, steps = 0.0, MAX_STEPS, 0
        pace = self.stopping.pace(self.max_steps, objective.price, objective.largest_decrease)
        while steps < pace.limit:
            squared = objective.dot(gradient, gradient)
            if self.stopping.small_gradient(squared**0.5):
                reason = GRADIENT
                break
            curved = bool(pairs)
            direction = pairs.direction(gradient)
            slope = objective.dot(gradient, direction) if curved else -squared
            first = 1.0 if curved else float(state.get("step_size", squared**-0.5))
            found = self._search(objective, now, direction, slope, first)
            if found is None and curved:  # stale curvature: once more along the gradient
                pairs.clear()
                continue
            if found is None:
                reason = LINE_SEARCH
                break
            if not curved:
                carried["step_size"] = found.alpha
            now, change = found.there, found.change
            pairs.add(direction, gradient, found, slope)
            gradient = found.gradient
            del direction, found
            steps += 1
            total -= change
            stop = pace.after(-change)
            if stop is not None:
                reason = stop
                break
        return InnerResult(steps, total, reason, carried, steps_at=pace.at)

    def _search(
        self,
        objective: Objective,
        now: Evaluation,
        direction: list[Tensor],
        slope: float,
        alpha: float,
    ) -> _Found | None:
        """A step with sufficient decrease and increased slope; the parameters are left there."""
        line = Line(objective, now, objective.space.spread(direction))
        low, high = 0.0, float("inf")
        best: _Found | None = None
        gradient: list[Tensor] = []
        for _ in range(self.max_backtracks):
            there, change = line.trial(alpha)
            if change <= self.SUFFICIENT * alpha * slope:
                best, gradient = None, []  # their memory first
                gradient = objective.space.gathered(objective.gradient(there))
                new_slope = objective.dot(gradient, direction)
                best = _Found(alpha, there, gradient, change, new_slope)
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
        if best is None or best.is_rounding(slope):
            line.move(0.0)
            return None
        line.move(best.alpha)
        return best


class _Found(NamedTuple):
    """Where a search has ended."""

    alpha: float
    there: Evaluation
    gradient: list[Tensor]
    change: float
    slope: float
    """Of the objective along the direction, there."""

    def is_rounding(self, slope: float) -> bool:
        """Whether nothing has moved: the slope is the same to the last bit, and the decrease more than it allows."""
        return self.slope == slope and self.change < 2 * self.alpha * slope


class _Pair(NamedTuple):
    """A step s, how the gradient changed over it, y, and their products y·s and y·y."""

    s: list[Tensor]
    y: list[Tensor]
    curvature: float
    squared: float


class _Pairs:
    """The last pairs and the two-loop recursion. Nothing is allocated that can be written over.

    Fresh memory of the size of the parameters costs about as much as the arithmetic on it: every page of it has
    to be fetched from the system. So the oldest pair's memory becomes the newest one's. Gradients are never written
    to: autograd may hand out views, one tensor twice, or what a function of the user's keeps.

    Args:
        objective: gives inner products.
        most: pairs kept.
        frugal: free the oldest pair as soon as the direction is known, where memory is dearer than time.
    """

    def __init__(self, objective: Objective, most: int, *, frugal: bool) -> None:
        self.objective = objective
        self.most = most
        self.frugal = frugal
        self._pairs: deque[_Pair] = deque()
        self._spare: list[Tensor] = []
        self._along = 0.0  # −(newest s)·gradient, which the search has computed already

    def __len__(self) -> int:
        return len(self._pairs)

    def clear(self) -> None:
        self._pairs.clear()

    def direction(self, gradient: list[Tensor]) -> list[Tensor]:
        """−H∇; the caller may keep it."""
        if self._spare:
            q, self._spare = self._spare, []
            torch._foreach_copy_(q, gradient)
            torch._foreach_neg_(q)
        else:
            q = list(torch._foreach_neg(gradient))
        if not self._pairs:
            return q
        dot = self.objective.dot
        weights: list[float] = []
        for pair in reversed(self._pairs):
            along = dot(pair.s, q) if weights else self._along
            weights.append(along / pair.curvature)
            torch._foreach_add_(q, pair.y, alpha=-weights[-1])
        newest = self._pairs[-1]
        torch._foreach_mul_(q, newest.curvature / newest.squared)
        for pair, weight in zip(self._pairs, reversed(weights), strict=True):
            torch._foreach_add_(q, pair.s, alpha=weight - dot(pair.y, q) / pair.curvature)
        if self.frugal and len(self._pairs) == self.most:
            del pair, newest
            self._pairs.popleft()
        return q

    def add(
        self, direction: list[Tensor], before: list[Tensor], found: _Found, slope: float
    ) -> None:
        """The pair of the step αd, in the memory of the direction."""
        dot, rise, s = self.objective.dot, found.slope - slope, direction
        torch._foreach_mul_(s, found.alpha)
        if len(self._pairs) == self.most:
            oldest = self._pairs.popleft()
            self._spare, y = oldest.s, oldest.y
            torch._foreach_copy_(y, found.gradient)
            torch._foreach_sub_(y, before)
        else:
            y = list(torch._foreach_sub(found.gradient, before))
        # y·s without another pass, unless it would be a small difference of large numbers
        curvature = found.alpha * rise if rise > 1e-2 * abs(slope) else dot(y, s)
        if curvature > 0:
            self._pairs.append(_Pair(s, y, curvature, dot(y, y)))
            self._along = -found.alpha * found.slope
        elif self._pairs:
            self._along = -dot(self._pairs[-1].s, found.gradient)
