"""Methods at work on the torch path: each takes a step on the rows it is given, and counts.

All of them ask the problem's oracle for losses and gradients in target space and push those through
the model, so that one oracle call means the same for every method.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from targetopt.baselines import SLS, SVRG
from targetopt.imitation.update import SsoUpdate, TorchUpdate, Update
from targetopt.lab.problems import Problem
from targetopt.lab.problems.imitation import learner
from targetopt.lab.problems.states import (
    check_keys,
    checked_count,
    checked_counts,
    load_model,
    load_optimiser,
)
from targetopt.optim import SSO
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, Counts

Rows = Tensor | None
"""Row numbers of a batch; None for all of the data."""


class Trainer(Protocol):
    """A method and its model between two steps."""

    @property
    def counts(self) -> Counts:
        """What was paid for so far."""

    def step(self, rows: Rows) -> None: ...

    def on_rounds(self, steps: int) -> Update:
        """The method, from its beginning, as imitation takes it: ``steps`` steps on each round of states."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SsoTrainer:
    """`targetopt.SSO` on a problem."""

    def __init__(self, problem: Problem, model: nn.Module, optimiser: SSO) -> None:
        self.problem = problem
        self.model = model
        self.optimiser = optimiser
        dear = problem.expensive and problem.answers_last
        self._keeps = optimiser.rule.everywhere and optimiser.rule.wants_everything(
            problem.reveals, dear=dear
        )

    @property
    def counts(self) -> Counts:
        return self.optimiser.totals

    def on_rounds(self, steps: int) -> Update:
        return SsoUpdate.of(learner(self.model), self.optimiser)

    def step(self, rows: Rows) -> None:
        forward = self.problem.forward(self.model, rows)
        everything = self.problem.forward(self.model) if self._keeps and rows is not None else None
        oracle = self.problem.oracle(rows)
        self.optimiser.step(forward, oracle, index=rows, regularise_on=everything)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_keys(state, ("model", "optimiser"))
        load_model(self.model, state["model"])
        self.optimiser.load_state_dict(state["optimiser"])


class BaselineTrainer:
    """What the baselines share: a torch optimiser, a schedule, and counting by hand."""

    def __init__(
        self,
        problem: Problem,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
    ) -> None:
        self.problem = problem
        self.model = model
        self.optimiser = optimiser
        self.schedule = schedule
        self.lr = float(optimiser.param_groups[0]["lr"])
        self.steps = 0
        self.counts = Counts()

    def on_rounds(self, steps: int) -> Update:
        return TorchUpdate(
            learner(self.model), lambda _: self.optimiser, steps, schedule=self.schedule
        )

    def step(self, rows: Rows) -> None:
        self.steps += 1
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * self.schedule(self.steps)
        self._update(rows)
        self.counts += Counts(inner_steps=1)

    def _update(self, rows: Rows) -> None:
        raise NotImplementedError

    def _losses(self, rows: Rows) -> Tensor:
        """ℓ_i at the model's targets: values and gradients from one oracle call, for autograd."""
        z = self.problem.forward(self.model, rows)()
        point = self.problem.oracle(rows).query(z.detach())
        self.counts += Counts(oracle_calls=1, forward_calls=1, backward_calls=1)
        linear = point.gradients * (z - z.detach())  # zero, with the oracle's gradient
        losses = z.new_zeros(len(z)) if point.losses is None else point.losses
        return losses + linear.reshape(len(z), -1).sum(dim=1)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "steps": self.steps,
            "counts": asdict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_keys(state, ("model", "optimiser", "steps", "counts"))
        load_model(self.model, state["model"])
        self._load_optimiser(state["optimiser"])
        self.steps = checked_count("steps", state["steps"])
        self.counts = checked_counts(state["counts"])

    def _load_optimiser(self, state: Any) -> None:
        load_optimiser(self.optimiser, state)


class GradientTrainer(BaselineTrainer):
    """Optimisers that read ``.grad``: SGD, Adam, Adagrad, AdaGrad-Norm."""

    def _update(self, rows: Rows) -> None:
        self.optimiser.zero_grad()
        self._losses(rows).mean().backward()
        self.optimiser.step()


class SlsTrainer(BaselineTrainer):
    """SLS, whose trials ask the oracle for values alone."""

    optimiser: SLS

    def _update(self, rows: Rows) -> None:
        forward, oracle = self.problem.forward(self.model, rows), self.problem.oracle(rows)
        value: Callable[[Tensor], Tensor] | None = None

        def closure() -> Tensor:
            nonlocal value
            if torch.is_grad_enabled():
                z = forward()
                point = oracle.query(z.detach())
                value = point.value
                self.counts += Counts(oracle_calls=1, forward_calls=1, backward_calls=1)
                return point.loss + (point.gradients * (z - z.detach())).sum() / len(z)
            assert value is not None
            self.counts += Counts(value_calls=1, forward_calls=1)
            return value(forward()).mean()

        self.optimiser.step(closure)


class SvrgTrainer(BaselineTrainer):
    """SVRG, with a snapshot every epoch, its full gradient taken in batches."""

    optimiser: SVRG

    def __init__(
        self,
        problem: Problem,
        model: nn.Module,
        optimiser: SVRG,
        schedule: Schedule,
        batches: Sequence[Rows],
    ) -> None:
        super().__init__(problem, model, optimiser, schedule)
        self.batches = batches

    def on_rounds(self, steps: int) -> Update:
        raise BadArgument(
            "name='svrg' goes over the same rows again and again; imitation learns from each round of states once. "
            "Use 'sgd', 'sls' or 'adam'."
        )

    def _update(self, rows: Rows) -> None:
        if (self.steps - 1) % len(self.batches) == 0:
            self.optimiser.snapshot_over(self._losses, self.batches)
        self.optimiser.step(lambda: self._losses(rows).mean())
