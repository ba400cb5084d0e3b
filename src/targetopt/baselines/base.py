"""What the baselines share: counters that survive a checkpoint, and losses as plain closures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from targetopt.lazy import without_compiler
from targetopt.step.determinism import FrozenForward
from targetopt.step.journal import Deed, Journal
from targetopt.types import BadAnswer, BadArgument, Diverged, wide

Closure = Callable[[], Tensor]
"""``lambda: loss(model(x), y)``: the mean loss of one batch at the current parameters."""


def checked_number(
    owner: str, name: str, value: float, *, above: float = -math.inf, least: float = -math.inf
) -> float:
    """``value`` as a float, refused unless finite, ``> above`` and ``≥ least``."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > above and number >= least):
        bound = f"greater than {above:g}" if math.isfinite(above) else f"at least {least:g}"
        raise BadArgument(f"{owner}: {name}={value!r} must be a finite number {bound}")
    return number


def squared_norm(tensors: Sequence[Tensor]) -> float:
    """Σ ‖t‖² over all tensors, as a number; one transfer from the device."""
    return float(torch.nn.utils.get_total_norm([wide(t) for t in tensors])) ** 2


def differentiate(owner: str, loss: Tensor, params: list[Tensor]) -> tuple[Tensor, ...]:
    """∂loss/∂params, zeros where the loss does not use a parameter.

    Autograd may hand out the same memory twice: never change the result in place.
    """
    if not loss.requires_grad:
        raise BadAnswer(
            f"{owner}: the loss does not depend on the parameters through autograd. Remove "
            "detach(), no_grad() or .item() from the closure, and pass the parameters it uses."
        )
    try:
        return torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:
        raise BadAnswer(
            f"{owner} could not differentiate the loss ({error}). The closure must return the "
            "loss without calling backward(): the optimiser does that."
        ) from error


class CountingOptimizer(Optimizer):
    """A torch optimiser for real parameters with counters that live in its ``state_dict``."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        owner = type(self).__name__
        group = {**self.defaults, **param_group}
        checked_number(owner, "lr", group["lr"], above=0.0)
        checked_number(owner, "weight_decay", group["weight_decay"], least=0.0)
        without_compiler(super().add_param_group)(param_group)
        for p in self.param_groups[-1]["params"]:
            if not p.is_floating_point():
                self.param_groups.pop()
                raise BadArgument(f"{owner}: parameters must be real floating point; got {p.dtype}")

    @property
    def gradient_calls(self) -> int:
        """How many gradients were used so far."""
        return self._count("gradient_calls")

    @property
    def _memory(self) -> dict[str, Any]:
        """The optimiser's own numbers, kept with the first parameter's state as L-BFGS does."""
        memory: dict[str, Any] = self.state[self.param_groups[0]["params"][0]]
        return memory

    def _count(self, name: str) -> int:
        return int(self._memory.get(name, 0))

    def _noted(self, values: dict[str, Any] | None = None, **counts: int) -> Deed:
        """Writes ``values`` and the counters, raised by ``counts``, into the memory, all at once."""
        raised = {name: self._count(name) + count for name, count in counts.items()}
        return partial(self._memory.update, {**(values or {}), **raised})


class ClosureOptimizer(CountingOptimizer):
    """An optimiser that evaluates the loss at several points per step and differentiates it itself.

    A ``.grad`` filled beforehand cannot serve such a method. Its closure is the plain one: it
    returns the batch's mean loss and calls neither ``zero_grad`` nor ``backward``; ``.grad`` is
    neither read nor written. All evaluations of one step see the same dropout masks, and buffers
    (BatchNorm's statistics) move once per step.

    There is one parameter group. The objective is ``closure() + ½ weight_decay ‖θ‖²``. A step
    either succeeds or leaves parameters, buffers, generators, state and counters as they were.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self.param_groups:
            raise BadArgument(
                f"{type(self).__name__} takes one parameter group: one step size serves all "
                "parameters. Pass model.parameters() as one list."
            )
        super().add_param_group(param_group)

    def _trained(self) -> list[Tensor]:
        trained = [p for p in self.param_groups[0]["params"] if p.requires_grad]
        if not trained:
            raise BadArgument(f"{type(self).__name__}: no parameter requires a gradient")
        return trained

    def _frozen(self, closure: Closure, params: list[Tensor], journal: Journal) -> FrozenForward:
        """The closure as a function of the parameters alone; the journal undoes its side effects."""
        return FrozenForward(
            lambda: self._checked_loss(closure()),
            [str(p.device) for p in params if p.device.type != "cpu"],
            journal,
        )

    def _checked_loss(self, loss: Any) -> Tensor:
        """What a closure returned, known to be one real number (nan and inf included)."""
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            return loss.reshape(())
        got = (
            f"a tensor of shape {tuple(loss.shape)}, {loss.dtype}"
            if isinstance(loss, Tensor)
            else repr(loss)
        )
        raise BadAnswer(
            f"{type(self).__name__}: closure() must return the mean loss of the batch, one "
            f"floating-point number in a tensor; got {got}. Did you forget to return it, or to "
            "average?"
        )

    def _loss_and_gradient(
        self, evaluate: Closure, params: list[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """A finite loss, detached, and its finite gradient (without weight decay)."""
        owner = type(self).__name__
        with torch.enable_grad():
            loss = evaluate()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise Diverged(
                    f"{owner}: closure() returned {value} at the current parameters; nothing was "
                    "changed. Check the data, or begin again with a smaller lr."
                )
            gradient = differentiate(owner, loss, params)
        if not math.isfinite(squared_norm(gradient)):
            raise Diverged(
                f"{owner}: the loss is {value} but its gradient is not finite; nothing was changed"
            )
        # a copy: the loss may be a view of a parameter that is about to move
        return loss.detach().clone(), gradient
