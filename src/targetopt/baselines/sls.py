"""SLS: SGD whose step size is found by a line-search on each batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from targetopt.baselines.base import (
    Closure,
    ClosureOptimizer,
    checked_number,
    squared_norm,
)
from targetopt.schedules import Constant, Schedule, factor
from targetopt.step.journal import Journal
from targetopt.types import BadArgument, checked_whole, settle_whole


@dataclass(frozen=True)
class Search:
    """The line-search of `SLS`, wherever it runs: the one definition of its options and defaults.

    The defaults are those of the paper's convex experiments; for networks it takes c = 0.1.
    """

    c: float = 0.5
    shrink: float = 0.7
    reset: Literal["keep", "restart", "grow"] = "grow"
    growth: float = 2.0
    max_backtracks: int = 400

    def __post_init__(self) -> None:
        for name in ("c", "shrink"):
            value = getattr(self, name)
            if not checked_number("SLS", name, value, above=0.0) < 1:
                raise BadArgument(f"SLS: {name}={value!r} must lie strictly between 0 and 1")
        checked_number("SLS", "growth", self.growth, least=1.0)
        if self.reset not in ("keep", "restart", "grow"):
            raise BadArgument(
                f"SLS: reset={self.reset!r} must be 'keep' (begin at the last step), 'restart' (at lr) or "
                "'grow' (at the last step, grown a little)"
            )
        settle_whole(self, "max_backtracks", least=0)


class SLS(ClosureOptimizer):
    """Stochastic gradient descent with an Armijo line-search on the same batch.

        θ ← θ − schedule(t)·η ∇f_B(θ),   η the first of η₀, η₀·shrink, η₀·shrink², … with
        f_B(θ − η∇f_B(θ)) ≤ f_B(θ) − c·η·‖∇f_B(θ)‖²

    ``lr`` is η_max, the largest step ever tried; torch's schedulers lower it as they please. The
    search begins at η₀, set by ``reset`` (the three options of the paper, which published codes
    number variously), at the first step η_max and then

    ============= ==================================================================
    ``"keep"``    η₀ = the last accepted step: steps never grow
    ``"restart"`` η₀ = η_max: every search begins anew, more trials, no memory
    ``"grow"``    η₀ = last accepted step · growth^(1/batches_per_epoch): slow growth
    ============= ==================================================================

    always capped at the present ``lr``. A ``schedule`` shortens the step that was found; what is
    remembered is the step found. A trial whose loss is nan or inf is a rejected trial. If
    ``max_backtracks`` trials after the first are rejected too, the parameters stay where they were
    (``failed_searches`` counts these); a step longer than the condition allows is never taken. If
    the closure raises, or is not finite at the current parameters, nothing at all has changed.

    Args:
        params: parameters, one group.
        lr: η_max.
        c: share of the linear decrease that must be realised, in (0, 1). ½ is the value the convex
            theory likes; the reference takes 0.1 for networks.
        shrink: factor after a rejected trial, in (0, 1).
        reset: ``"keep"``, ``"restart"`` or ``"grow"``, see above.
        growth: γ ≥ 1 of ``reset="grow"``.
        batches_per_epoch: n/b of ``reset="grow"``, e.g. ``len(loader)``; 1 stands for the full batch.
        max_backtracks: rejected trials allowed after the first.
        weight_decay: adds ½·weight_decay·‖θ‖² to the loss, in the condition too.
        schedule: a `targetopt.schedules` schedule with values in (0, 1]; constant by default.

    Attributes:
        gradient_calls: closures evaluated with their gradient, one per step.
        value_calls: closures evaluated for their value alone, one per trial.
        failed_searches: searches that found no step.
        step_size: the last accepted η, before the schedule; ``None`` before the first.

    Example:
        >>> w = torch.tensor([4.0], requires_grad=True)
        >>> opt = SLS([w], lr=8.0, c=0.5, shrink=0.5)
        >>> opt.step(lambda: 0.5 * w.square().sum())  # tries η = 8, 4, 2, 1
        tensor(8.)
        >>> w.item(), opt.step_size, opt.gradient_calls, opt.value_calls
        (0.0, 1.0, 1, 4)

    Reference:
        Vaswani, Mishkin, Laradji, Schmidt, Gidel & Lacoste-Julien, "Painless Stochastic Gradient:
        Interpolation, Line-Search, and Convergence Rates", NeurIPS 2019; with a schedule: Vaswani,
        Dubois-Taine & Babanezhad, "Towards Noise-adaptive, Problem-adaptive (Accelerated) Stochastic
        Gradient Descent", ICML 2022.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        c: float = Search.c,
        shrink: float = Search.shrink,
        reset: Literal["keep", "restart", "grow"] = Search.reset,
        growth: float = Search.growth,
        batches_per_epoch: int = 1,
        max_backtracks: int = Search.max_backtracks,
        weight_decay: float = 0.0,
        schedule: Schedule | None = None,
    ) -> None:
        search = Search(c, shrink, reset, growth, max_backtracks)
        defaults = {
            "lr": lr,
            **asdict(search),
            "batches_per_epoch": checked_whole(
                "SLS", "batches_per_epoch", batches_per_epoch, least=1
            ),
            "weight_decay": weight_decay,
        }
        self.schedule: Schedule = Constant() if schedule is None else schedule
        super().__init__(params, defaults)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "schedule": self.schedule}

    @property
    def value_calls(self) -> int:
        return self._count("value_calls")

    @property
    def failed_searches(self) -> int:
        return self._count("failed_searches")

    @property
    def step_size(self) -> float | None:
        return self._memory.get("step_size")

    def step(self, closure: Closure) -> Tensor:  # type: ignore[override]
        """One gradient, then trials until the condition holds.

        Args:
            closure: returns the mean loss of the batch, as a tensor that autograd can
                differentiate; no ``backward()`` in it. Called once with autograd on, for the
                gradient, then once per trial with autograd off (``torch.is_grad_enabled()``).

        Returns:
            The loss before the step, without the weight-decay term.
        """
        params = self._trained()
        group = self.param_groups[0]
        journal = Journal(params)
        with journal, journal, journal, torch.no_grad():
            frozen = self._frozen(closure, params, journal)
            loss, gradient = self._loss_and_gradient(frozen.first, params)
            if group["weight_decay"]:
                gradient = torch._foreach_add(gradient, params, alpha=group["weight_decay"])
            slope = squared_norm(gradient)
            begin, eta = float(loss) + self._penalty(params), self._first_trial()
            shortened = self._shortened()
            trials, accepted = 0, slope == 0.0 or eta == 0.0
            origin = [p.clone() for p in params]
            while not accepted and trials <= group["max_backtracks"] and eta > 0.0:
                torch._foreach_copy_(params, torch._foreach_add(origin, gradient, alpha=-eta))
                trials += 1
                value = float(frozen().detach()) + self._penalty(params)
                accepted = armijo_holds(begin, value, eta, slope, group["c"])
                if not accepted:
                    eta *= group["shrink"]
            if accepted and shortened != 1.0:
                step = torch._foreach_add(origin, gradient, alpha=-shortened * eta)
                torch._foreach_copy_(params, step)
            if not accepted:  # every trial failed
                journal.put_parameters_back()
            found = {"step_size": eta} if accepted and trials else {}
            failed = int(not accepted)
            journal.adopt(
                self._noted(found, gradient_calls=1, value_calls=trials, failed_searches=failed)
            )
        return loss

    def _penalty(self, params: Sequence[Tensor]) -> float:
        """½ weight_decay ‖θ‖² over the trained parameters."""
        weight_decay = float(self.param_groups[0]["weight_decay"])
        return 0.5 * weight_decay * squared_norm(params) if weight_decay else 0.0

    def _shortened(self) -> float:
        """The schedule's factor of this step."""
        t = self.gradient_calls + 1
        shorter = factor(self.schedule, t)
        if not 0.0 < shorter <= 1.0:
            raise BadArgument(
                f"SLS: schedule={self.schedule!r} gave {shorter!r} at t = {t}; it shortens the step that "
                "was found and must lie in (0, 1]"
            )
        return shorter

    def _first_trial(self) -> float:
        """η₀ of this step: Algorithm 2 of the paper, capped at the present lr."""
        group, last = self.param_groups[0], self.step_size
        largest = float(group["lr"])
        if last is None or group["reset"] == "restart":
            return largest
        if group["reset"] == "grow":
            last = last * group["growth"] ** (1.0 / group["batches_per_epoch"])
        return min(last, largest)


def armijo_holds(begin: float, value: float, eta: float, slope: float, c: float) -> bool:
    """f(θ − η∇f) ≤ f(θ) − c·η·‖∇f‖², with a finite left side.

    Example:
        >>> armijo_holds(begin=8.0, value=0.0, eta=1.0, slope=16.0, c=0.5)
        True
    """
    return math.isfinite(value) and value <= begin - c * eta * slope
