"""The forward of an actor or a critic, which knows how to solve mini-batches without autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from targetopt.inner import Inner, InnerResult, Objective, Torch
from targetopt.rl.adam import Adam
from targetopt.rl.networks import Actor, Critic
from targetopt.rl.stack.solver import Task, solve
from targetopt.step.by_rows import ByRows
from targetopt.surrogate import Surrogate
from targetopt.types import State

Serve = Callable[[Task], InnerResult]


def alone(task: Task) -> InnerResult:
    """One task by itself."""
    return solve([task])[0]


class Rows(ByRows):
    """``model(states)``, by rows; mini-batches of our own networks are solved by `solve`.

    Args:
        model: an `Actor` or a `Critic`, or any module, which is then solved as every forward is.
        states: what it sees.
        serve: who solves a task; beside those of other networks, if there are any.
    """

    def __init__(self, model: nn.Module, states: Tensor, serve: Serve = alone) -> None:
        super().__init__(model, states)
        self.module, self.states, self.serve = model, states, serve

    def solver_for(
        self, inner: Inner, surrogate: Surrogate, params: Sequence[Tensor]
    ) -> Callable[[Objective, State], InnerResult] | None:
        """`SSO` asks every forward that has this method; None where ``inner.minimise`` must be called itself."""
        module = self.module
        if not isinstance(module, Actor | Critic) or type(module) not in (Actor, Critic):
            return None
        if not isinstance(inner, Torch) or type(inner) is not Torch or inner.batch_size is None:
            return None
        own = {id(p) for p in module.parameters() if p.requires_grad}
        known = own == {id(p) for p in params} and type(inner.factory) is Adam
        if not known or surrogate.beside([]) is None:
            return None
        return lambda objective, state: self.serve(
            Task(module, self.states, inner, objective, state)
        )
