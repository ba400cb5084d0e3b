"""Any torch optimiser as the inner solver."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Objective
from targetopt.inner.stopping import GRADIENT, MAX_STEPS, Steps, Stopping, settle
from targetopt.types import BadArgument, State


class _StopNow(Exception):
    """Leaves the optimiser's step from inside its closure, before it moves the parameters."""


@dataclass(frozen=True)
class Torch(Inner):
    """m steps of ``factory(params)`` on q(f(θ)) + ½λ‖θ‖².

    The optimiser's state (Adam's moments, say) lives on across outer steps, as the surrogates of
    neighbouring steps are alike; ``reset=True`` starts it anew each time, and so does a change in
    which parameters are trained (gradual unfreezing), whose moments would go to the wrong ones. Its own
    ``weight_decay`` is its business; `SSO`'s is part of the objective it sees.

    Args:
        factory: gets the list of parameters, returns a ``torch.optim.Optimizer``.
        max_steps: m, the number of ``optimizer.step`` calls, or ``"auto"`` to stop when an oracle call would
            buy more.
        reset: forget the state before each outer step.
        stopping: optional early stop.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, requires_grad=True)
        >>> adam = to.Torch(lambda params: torch.optim.Adam(params, lr=0.1), max_steps=100)
        >>> opt = to.SSO([w], lr=1.0, inner=adam)
        >>> report = opt.step(lambda: 2 * w, to.LossOracle(to.losses.Squared(torch.ones(2))))
        >>> report.inner_steps, report.stop_reason
        (100, 'max-steps')
    """

    factory: Callable[[list[Tensor]], torch.optim.Optimizer]
    max_steps: Steps = 20
    reset: bool = False
    stopping: Stopping = field(default_factory=Stopping)

    def __post_init__(self) -> None:
        settle(self)
        if not callable(self.factory):
            raise BadArgument(
                f"Torch: factory={self.factory!r} must be a function of the parameters, such as "
                "lambda params: torch.optim.Adam(params, lr=1e-3)"
            )

    def check(self, params: Sequence[Tensor]) -> None:
        self._made(list(params))

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        params = objective.space.params
        optimiser = self._optimiser(params, state)
        first = objective.start()
        cached: Evaluation | None = first
        initial = previous = objective.value(first.z)
        watches_gradient = self.stopping.gradient_tolerance > 0
        pace = self.stopping.pace(self.max_steps, objective.price, objective.largest_decrease)
        fresh = True  # the closure has not been called in this optimiser step yet

        @torch.no_grad()  # torch's optimisers call closures in grad mode; evaluations see to it
        def closure() -> float:
            nonlocal cached, fresh, previous
            now, cached = cached or objective.evaluate(), None
            value = objective.value(now.z)
            gradient = objective.gradient(now, native=True)
            if fresh:
                if watches_gradient and self.stopping.small_gradient(
                    objective.dot(gradient, gradient) ** 0.5
                ):
                    raise _StopNow(GRADIENT)
                stop = pace.after(previous - value) if steps else None
                if stop is not None:
                    raise _StopNow(stop)
                previous, fresh = value, False
            for p, g in zip(params, objective.space.like_parameters(gradient), strict=True):
                p.grad = g.to(p.dtype)
            return value

        kept = [p.grad for p in params]
        reason, steps = MAX_STEPS, 0
        try:
            while steps < pace.limit:
                fresh = True
                optimiser.step(closure)
                steps += 1
        except _StopNow as stop:
            reason = str(stop)
        finally:
            for p, grad in zip(params, kept, strict=True):
                p.grad = grad
        carried = {} if self.reset else {"optimiser": optimiser.state_dict()}
        total = initial - objective.final_value()
        return InnerResult(steps, total, reason, carried, steps_at=pace.at)

    def _optimiser(self, params: list[Tensor], state: State) -> torch.optim.Optimizer:
        optimiser = self._made(params)
        if "optimiser" in state and not self.reset:
            try:
                # A copy: torch would work on these tensors in place, and a failed step must not.
                optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise BadArgument(
                    f"Torch: the saved state of the optimiser does not fit what factory made ({error!r}). Use "
                    "the factory it was saved with, or Torch(..., reset=True) to begin anew."
                ) from error
        return optimiser

    def _made(self, params: list[Tensor]) -> torch.optim.Optimizer:
        optimiser: Any = self.factory(params)
        if not isinstance(optimiser, torch.optim.Optimizer):
            raise BadArgument(
                f"Torch: factory must return a torch.optim.Optimizer; it returned {type(optimiser).__name__}"
            )
        return optimiser
