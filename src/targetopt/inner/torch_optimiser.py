"""Any torch optimiser as the inner solver."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.inner.base import Inner, InnerResult
from targetopt.inner.objective import Evaluation, Objective
from targetopt.inner.stopping import AUTO, GRADIENT, MAX_STEPS, Steps, Stopping, most, settle
from targetopt.types import BadArgument, MissingCapability, State, as_number, settle_whole


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
        clip: gradients longer than this are shortened to it; ``None`` leaves them as they are.
        batch_size: every step takes the next so many rows of the outer step's batch, in an order that is drawn anew
            when all were taken, instead of all of them. It needs a forward that can be evaluated by rows
            (`targetopt.ByRows`) and that neither draws random numbers nor moves buffers.
        epochs: passes over all rows, with ``batch_size=``; it takes the place of ``max_steps``.
        seed: of the order in which mini-batches are taken. The same seed gives the same order, whatever else is
            drawn; the state remembers how many orders were used up.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, requires_grad=True)
        >>> adam = to.Torch(lambda params: torch.optim.Adam(params, lr=0.1), max_steps=100)
        >>> opt = to.SSO([w], lr=1.0, inner=adam)
        >>> report = opt.step(lambda: 2 * w, to.LossOracle(to.losses.Squared(torch.ones(2))))
        >>> report.inner_steps, report.stop_reason
        (100, 'max-steps')
        >>> model, x = torch.nn.Linear(3, 1), torch.randn(64, 3)
        >>> in_batches = to.Torch(torch.optim.Adam, epochs=2, batch_size=16, clip=1.0)
        >>> opt = to.SSO(model.parameters(), lr=1.0, inner=in_batches)
        >>> report = opt.step(to.ByRows(model, x), to.losses.Squared(torch.ones(64, 1)))
        >>> report.inner_steps
        8
    """

    factory: Callable[[list[Tensor]], torch.optim.Optimizer]
    max_steps: Steps = 20
    reset: bool = False
    stopping: Stopping = field(default_factory=Stopping)
    clip: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        settle(self)
        settle_whole(self, "seed", least=0)
        for name in ("batch_size", "epochs"):
            if getattr(self, name) is not None:
                settle_whole(self, name)
        if self.clip is not None and not 0.0 < as_number(self.clip) < float("inf"):
            raise BadArgument(
                f"Torch: clip={self.clip!r} must be positive and finite: the greatest length of a gradient. Pass None "
                "for no bound."
            )
        if self.epochs is not None and self.batch_size is None:
            raise BadArgument(
                f"Torch: epochs={self.epochs} counts passes of mini-batches; give batch_size= too, or max_steps="
            )
        judged = self.max_steps == AUTO or self.stopping != Stopping()
        if self.batch_size is not None and judged:
            raise BadArgument(
                "Torch: max_steps='auto' and stopping= look at the whole surrogate after every step, which "
                "mini-batches do not know. Leave batch_size= out, or give a number of steps or epochs."
            )
        if not callable(self.factory):
            raise BadArgument(
                f"Torch: factory={self.factory!r} must be a function of the parameters, such as "
                "lambda params: torch.optim.Adam(params, lr=1e-3)"
            )

    def check(self, params: Sequence[Tensor]) -> None:
        self._made(list(params))

    def minimise(self, objective: Objective, state: State) -> InnerResult:
        if self.batch_size is not None:
            return self._in_batches(objective, state, self.batch_size)
        params = objective.space.params
        optimiser = self.optimiser(params, state)
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
            gradient = self._clipped(objective, objective.gradient(now, native=True))
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

    def _in_batches(self, objective: Objective, state: State, size: int) -> InnerResult:
        if present().size > 1:
            raise MissingCapability(
                "Torch: mini-batches inside the inner loop (batch_size=) are of one process; on several ranks each "
                "would take others. Leave batch_size= out."
            )
        params, rows = objective.space.params, objective.surrogate.anchor.shape[0]
        optimiser = self.optimiser(params, state)
        initial = objective.value(objective.start().z)
        each = -(-rows // size)  # mini-batches in a pass
        steps = self.steps_of(rows)
        drawn = int(state.get("drawn", 0))
        kept = [p.grad for p in params]
        try:
            for step in range(steps):
                if step % each == 0:
                    parts = self.order(rows, drawn).split(size)
                    drawn += 1
                part = objective.rows(parts[step % each])
                gradient = part.gradient(part.evaluate(), native=True)
                for p, g in zip(params, self._clipped(objective, gradient), strict=True):
                    p.grad = g
                optimiser.step()
        finally:
            for p, grad in zip(params, kept, strict=True):
                p.grad = grad
        carried: State = {"drawn": drawn}
        if not self.reset:
            carried["optimiser"] = optimiser.state_dict()
        return InnerResult(steps, initial - objective.final_value(), MAX_STEPS, carried)

    def steps_of(self, rows: int) -> int:
        """Steps in mini-batches of a batch with so many rows."""
        assert self.batch_size is not None
        if self.epochs is None:
            return most(self.max_steps)
        return self.epochs * -(-rows // self.batch_size)

    def order(self, rows: int, drawn: int) -> Tensor:
        """The order of the rows in one pass: a function of the seed and of how many were drawn before."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + drawn) % 2**63)
        return torch.randperm(rows, generator=generator)

    def _clipped(self, objective: Objective, gradient: list[Tensor]) -> list[Tensor]:
        if self.clip is None:
            return gradient
        length = objective.dot(gradient, gradient) ** 0.5
        if length <= self.clip:
            return gradient
        return [g * (self.clip / length) for g in gradient]

    def optimiser(self, params: list[Tensor], state: State) -> torch.optim.Optimizer:
        """What the factory makes, where the last step's has left off."""
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
