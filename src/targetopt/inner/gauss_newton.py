"""Gauss–Newton with Levenberg–Marquardt damping: the surrogate is a least squares in z."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Line, Objective
from targetopt.inner.space import Space
from targetopt.inner.stopping import (
    GRADIENT,
    LINE_SEARCH,
    MAX_STEPS,
    Steps,
    Stopping,
    settle,
)
from targetopt.types import (
    BadArgument,
    BadForward,
    State,
    check_entries,
    is_positive,
    settle_whole,
    wide,
)


@dataclass(frozen=True)
class GaussNewton(Inner):
    """d solves (JᵀWJ/n + (λ + μ)I) d = −∇, by conjugate gradients; μ follows the gain ratio.

    W is the surrogate's metric and J the forward's Jacobian at the present θ, used through products
    only: Jᵀv is a backward, Jv the derivative of u ↦ Jᵀu, so any forward closure will do. For a
    linear forward one step is the exact minimiser, up to CG.

    Args:
        max_steps: accepted steps, or ``"auto"`` to stop when an oracle call would buy more.
        cg_steps: products per step at most.
        cg_tolerance: CG stops at this relative residual.
        initial_damping: first μ, relative to the curvature along the gradient.
        max_backtracks: halvings of a rejected step before giving up (reason ``"line-search"``).
        stopping: optional early stop.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> x = torch.diag(torch.tensor([1.0, 100.0], dtype=torch.float64))
        >>> oracle = to.LossOracle(to.losses.Squared(torch.ones(2, dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=1.0, inner=to.GaussNewton(max_steps=30))
        >>> _ = opt.step(lambda: x @ w, oracle)
        >>> bool(torch.allclose(x @ w, torch.ones(2, dtype=torch.float64)))
        True

    Reference: Nocedal, Wright, *Numerical Optimization*, 2006, ch. 10; Martens 2010 for the products.
    """

    max_steps: Steps = 5
    cg_steps: int = 10
    cg_tolerance: float = 1e-2
    initial_damping: float = 1e-3
    max_backtracks: int = 30
    stopping: Stopping = field(default_factory=Stopping)

    remedy: ClassVar[str] = "Lower lr, or use Armijo or LBFGS."

    def __post_init__(self) -> None:
        settle(self, "cg_steps")
        settle_whole(self, "max_backtracks", least=0)
        if not (0 < self.cg_tolerance < 1 and 0 < self.initial_damping < float("inf")):
            raise BadArgument(
                "GaussNewton needs 0 < cg_tolerance < 1 and a positive initial_damping; got "
                f"cg_tolerance={self.cg_tolerance!r}, initial_damping={self.initial_damping!r}"
            )

    def check(self, params: Sequence[Tensor]) -> None:
        Space(params).check_whole("GaussNewton")

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, damping=is_positive)

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        now = objective.start()
        damping = state.get("damping")
        total, reason, steps = 0.0, MAX_STEPS, 0
        pace = self.stopping.pace(self.max_steps, objective.price, objective.largest_decrease)
        while steps < pace.limit:
            gradient = objective.gradient(now, keep_graph=True)
            squared = objective.dot(gradient, gradient)
            if self.stopping.small_gradient(squared**0.5):
                reason = GRADIENT
                break
            curvature = _Curvature(objective, now)
            if damping is None:
                along = objective.dot(gradient, curvature.product(gradient)) / squared
                damping = self.initial_damping * along if along > 0 else self.initial_damping
            direction, slope, curved = self._solve(curvature, gradient, damping)
            line = Line(objective, now, direction)
            alpha = 1.0
            for _ in range(self.max_backtracks + 1):
                there, change = line.trial(alpha)
                predicted = alpha * slope + 0.5 * alpha**2 * curved
                if change < 0 and change <= 1e-3 * predicted:
                    break
                alpha *= 0.5
            else:
                line.move(0.0)
                reason = LINE_SEARCH
                break
            # Nielsen's rule on the gain ratio; a shortened step asks for more damping outright
            gain = min(change / predicted, 1.0)
            damping *= max(1 / 3, 1 - (2 * gain - 1) ** 3) if alpha == 1.0 else 2.0 / alpha
            now = there
            steps += 1
            total -= change
            stop = pace.after(-change)
            if stop is not None:
                reason = stop
                break
        carried = dict(state) if damping is None else {"damping": damping}
        return InnerResult(steps, total, reason, carried, steps_at=pace.at)

    def _solve(
        self, curvature: _Curvature, gradient: list[Tensor], damping: float
    ) -> tuple[list[Tensor], float, float]:
        """CG from zero: d, ∇·d and dᵀ(JᵀWJ/n + λ)d, so that the undamped model is known along d."""
        dot = curvature.objective.dot
        d = [torch.zeros_like(g) for g in gradient]
        model_d = [torch.zeros_like(g) for g in gradient]  # (JᵀWJ/n + λ) d
        r = [-g for g in gradient]
        p = [t.clone() for t in r]
        rr = start = dot(r, r)
        for _ in range(self.cg_steps):
            gp = curvature.product(p)
            pgp = dot(p, gp) + damping * dot(p, p)
            if pgp <= 0:
                break
            a = rr / pgp
            torch._foreach_add_(d, p, alpha=a)
            torch._foreach_add_(model_d, gp, alpha=a)
            torch._foreach_add_(r, gp, alpha=-a)
            torch._foreach_add_(r, p, alpha=-a * damping)
            previous, rr = rr, dot(r, r)
            if rr <= self.cg_tolerance**2 * start:
                break
            torch._foreach_mul_(p, rr / previous)
            torch._foreach_add_(p, r)
        return d, dot(gradient, d), dot(d, model_d)


class _Curvature:
    """v ↦ (JᵀWJ/n + λI) v at one evaluation, whose graph is kept."""

    def __init__(self, objective: Objective, at: Evaluation) -> None:
        self.objective = objective
        self.at = at
        self.dual = torch.zeros_like(at.z, requires_grad=True)
        objective.backward_calls += 1
        transposed = torch.autograd.grad(
            at.z,
            objective.space.params,
            grad_outputs=self.dual,
            create_graph=True,
            allow_unused=True,
        )
        self.used = [i for i, t in enumerate(transposed) if t is not None]
        self.transposed = [transposed[i] for i in self.used]
        if any(t.is_sparse for t in self.transposed):
            raise BadForward(
                "GaussNewton differentiates the forward twice, which torch cannot do through the sparse gradients "
                "of an embedding. Make it nn.Embedding(..., sparse=False), or use LBFGS or Armijo."
            )

    def product(self, v: list[Tensor]) -> list[Tensor]:
        self.objective.jvp_calls += 1
        along = [v[i].to(t.dtype) for i, t in zip(self.used, self.transposed, strict=True)]
        (jv,) = torch.autograd.grad(
            self.transposed, self.dual, grad_outputs=along, retain_graph=True
        )
        metric = self.objective.surrogate.curvature_product(self.at.z.detach(), jv)
        product = [wide(g) for g in self.objective.vjp(self.at, metric / self.objective.examples)]
        if self.objective.weight_decay:
            return list(torch._foreach_add(product, v, alpha=self.objective.weight_decay))
        return product
