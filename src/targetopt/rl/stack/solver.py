"""Adam in mini-batches for networks of one shape, all at once: what `Torch` does for each of them, bit by bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from targetopt.inner import InnerResult, Objective, Torch
from targetopt.inner.stopping import MAX_STEPS
from targetopt.rl.adam import Adam
from targetopt.rl.networks import Actor, Critic
from targetopt.rl.stack.perceptrons import Perceptrons
from targetopt.surrogate import Surrogate
from targetopt.types import State


@dataclass
class Task:
    """One inner solve that waits to be done beside others.

    Attributes:
        module: whose parameters move.
        states: what it sees, one row each.
        inner: the solver, with the seed of its mini-batches.
        objective: what is to be decreased.
        state: the solver's, from the step before.
    """

    module: Actor | Critic
    states: Tensor
    inner: Torch
    objective: Objective
    state: State

    @property
    def kind(self) -> Hashable:
        """Tasks of one kind can be done at once: one shape, one solver, and optimisers that are equally old."""
        saved = self.state.get("optimiser", {}).get("state", {})
        ages = tuple(float(each["step"]) for each in saved.values())
        network = self.module.network
        return (
            type(self.module),
            network.widths,
            network.activation,
            network.weights[0].dtype,
            self.states.shape,
            replace(self.inner, seed=0),
            ages,
        )


def solve(tasks: Sequence[Task]) -> list[InnerResult]:
    """Every task as its own solver would do it, those of one kind at once.

    Args:
        tasks: with solvers that take mini-batches (``batch_size=``).
    """
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for i, task in enumerate(tasks):
        kinds[task.kind].append(i)
    found: dict[int, InnerResult] = {}
    for members in kinds.values():
        found |= dict(zip(members, _alike([tasks[i] for i in members]), strict=True))
    return [found[i] for i in range(len(tasks))]


def _alike(tasks: list[Task]) -> list[InnerResult]:
    surrogates = [task.objective.surrogate for task in tasks]
    joined = surrogates[0].beside(surrogates[1:])
    if joined is None:
        return [result for task in tasks for result in _alike([task])]
    return _in_batches(tasks, joined)


@torch.no_grad()
def _in_batches(tasks: list[Task], joined: Surrogate) -> list[InnerResult]:
    inner, count, rows = tasks[0].inner, len(tasks), len(tasks[0].states)
    size = inner.batch_size
    assert size is not None
    begin = [task.objective.value(task.objective.start().z) for task in tasks]
    params = [task.objective.space.params for task in tasks]
    stack = Perceptrons([task.module for task in tasks], params)  # type: ignore[arg-type]
    assert isinstance(inner.factory, Adam)
    moments = [] if inner.reset else [task.state["optimiser"] for task in tasks if task.state]
    adam = inner.factory.beside(stack.stacked, moments)
    states = torch.cat([task.states for task in tasks])
    drawn = [int(task.state.get("drawn", 0)) for task in tasks]
    steps = inner.steps_of(rows)
    done = 0
    while done < steps:
        orders = [
            task.inner.order(rows, times) + i * rows
            for i, (task, times) in enumerate(zip(tasks, drawn, strict=True))
        ]
        drawn = [times + 1 for times in drawn]
        # a pass in the order in which it is taken: mini-batch by mini-batch, network by network in each
        parts = list(zip(*(order.split(size) for order in orders), strict=True))[: steps - done]
        order = torch.cat([each for part in parts for each in part])
        taken, seen = joined.rows(order), states[order]
        first = 0
        for part in parts:
            each = len(part[0])
            now = slice(first, first + count * each)
            first = now.stop
            z = stack.forward(seen[now].view(count, each, -1))
            stack.pull(taken.minibatch(now, count).gradient(z) / each)
            _clip(stack, inner.clip)
            adam.step(stack.gradients)
        done += len(parts)
    stack.give_back(params)
    carried = adam.states(count)
    results = []
    for task, before, times, kept in zip(tasks, begin, drawn, carried, strict=True):
        task.objective.forward_calls += steps
        task.objective.backward_calls += steps
        decrease = before - task.objective.final_value()
        state = {"drawn": times} if inner.reset else {"drawn": times, "optimiser": kept}
        results.append(InnerResult(steps, decrease, MAX_STEPS, state))
    return results


def _clip(stack: Perceptrons, longest: float | None) -> None:
    """Shorten the gradient of every network that is longer."""
    if longest is None:
        return
    lengths = []
    for own in stack.flat:
        total = torch.dot(own[0], own[0])
        for each in own[1:]:
            total += torch.dot(each, each)
        lengths.append(total)
    squares = torch.stack(lengths).tolist()
    factors = [1.0 if (n := s**0.5) <= longest else longest / n for s in squares]
    if all(factor == 1.0 for factor in factors):
        return
    if len(factors) == 1:
        torch._foreach_mul_(stack.gradients, factors[0])
        return
    like = stack.gradients[0]
    factor = torch.tensor(factors, dtype=like.dtype)
    for each in stack.gradients:
        each.mul_(factor.view(-1, *[1] * (each.ndim - 1)))
