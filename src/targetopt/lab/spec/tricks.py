"""What single fields do to save calls: solution pools, everything bought so far, free and fast adversarial training.

Each buys one answer a step and then takes m steps of Adam on what it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from targetopt.lab.problems import Problem
from targetopt.lab.problems.base import BatchSize
from targetopt.lab.problems.decisions.problem import DecisionProblem
from targetopt.lab.problems.digits.attacks import RobustDigits
from targetopt.lab.problems.states import check_tensor
from targetopt.lab.spec.methods import MethodSpec, register
from targetopt.lab.spec.options import Positive
from targetopt.lab.spec.trainers import BaselineTrainer, Rows, Trainer
from targetopt.losses import CrossEntropy
from targetopt.schedules import Schedule
from targetopt.types import BadArgument, Counts


class _Trick(MethodSpec):
    """m steps of Adam on what is known after each answer."""

    needs: ClassVar[str]
    why: ClassVar[str]
    made: ClassVar[Callable[..., Trainer]]

    lr: Positive = 0.01
    max_steps: int = Field(default=30, ge=1, alias="m")

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if self.needs not in problem.reveals:
            return "name", f"{self.name!r} needs {self.why}; {problem.name!r} has none"
        if self.weight_decay_on(problem) > 0:
            return "weight_decay", f"{self.name!r} has none; {problem.name!r} wants some"
        return None

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = torch.optim.Adam(model.parameters(), lr=self.lr)
        schedule = self.make_schedule(total_steps)
        return type(self).made(problem, model, optimiser, schedule, self.max_steps)


class TrickTrainer(BaselineTrainer):
    """One question, then ``m`` steps; what is remembered between questions is ``known``."""

    known: Tensor | None = None

    def __init__(
        self,
        problem: Problem,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        m: int,
    ) -> None:
        super().__init__(problem, model, optimiser, schedule)
        self.m = m

    def step(self, rows: Rows) -> None:
        super().step(rows)
        self.counts += Counts(inner_steps=-1)  # its own are counted where they are taken

    def _descend(self, loss: Callable[[], Tensor], steps: int) -> None:
        """Steps on something that is known, which costs no call."""
        for _ in range(steps):
            self.optimiser.zero_grad()
            loss().backward()
            self.optimiser.step()
        self.counts += Counts(inner_steps=steps, forward_calls=steps, backward_calls=steps)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "known": self.known}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or "known" not in state:
            raise BadArgument("the state has no part 'known'")
        rest = {name: part for name, part in state.items() if name != "known"}
        if state["known"] is not None:
            self._check_known(state["known"])
        super().load_state_dict(rest)
        self.known = state["known"]

    def _check_known(self, known: Any) -> None:
        raise BadArgument("the state has a part 'known', which this method never writes")


class PoolTrainer(TrickTrainer):
    """Every decision that was ever found is feasible for all instances: the best of them stands in for the solver's."""

    problem: DecisionProblem

    def _update(self, rows: Rows) -> None:
        z = self.problem.forward(self.model, None)()
        point = self.problem.oracle(None).query(z.detach())
        self.counts += Counts(oracle_calls=1, forward_calls=1)
        found = self.problem.pool_of(point.gradients)
        pool = found if self.known is None else torch.unique(torch.cat([self.known, found]), dim=0)
        self.known = pool

        def loss() -> Tensor:
            return self.problem.pooled(self.problem.forward(self.model, None)(), pool).mean()

        self._descend(loss, self.m)

    def _check_known(self, known: Any) -> None:
        width = self.problem.data.solver.size
        rows = known.shape[0] if isinstance(known, Tensor) and known.ndim == 2 else 0
        check_tensor("known", known, like=torch.zeros(rows, width, dtype=torch.float64))


@register
class SolutionPool(_Trick):
    """SPO+ with PyEPO's pool of solutions: one solve for all instances, then m steps with the pool in its place.

    Reference: Mulamba et al., *Contrastive losses and solution caching for predict-and-optimize*, 2021.
    """

    name = "solution-pool"
    title = "Adam with a pool"
    about = "SPO+ with a pool of solutions: one solve, then m Adam steps with the pool in the solver's place"
    needs = "pool"
    why = "decisions that are feasible for every instance (SPO+)"
    made = PoolTrainer


class BoughtTrainer(TrickTrainer):
    """All answers so far stay known: m steps on the mean loss of every row that was ever asked about."""

    def _update(self, rows: Rows) -> None:
        z = self.problem.forward(self.model, rows)()
        self.problem.oracle(rows).query(z.detach())
        self.counts += Counts(oracle_calls=1, forward_calls=1)
        n = self.problem.n or len(z)
        new = torch.arange(n) if rows is None else rows
        bought = new if self.known is None else torch.unique(torch.cat([self.known, new]))
        self.known = bought
        assert self.problem.loss is not None  # or nothing would be revealed
        loss = self.problem.loss.rows(bought)
        forward = self.problem.forward(self.model, bought)

        def mean() -> Tensor:
            z = forward()
            gradients = loss.gradient(z.detach())
            return (gradients * z).sum() / len(z)

        self._descend(mean, self.m)

    def _check_known(self, known: Any) -> None:
        n = self.problem.n or 0
        whole = isinstance(known, Tensor) and known.dtype == torch.int64 and known.ndim == 1
        if not whole or not len(known) or not 0 <= int(known.min()) <= int(known.max()) < n:
            raise BadArgument("known is not a list of rows of this problem")


@register
class Bought(_Trick):
    """m steps of Adam on everything bought so far: the control wherever labels are what is sold."""

    name = "bought"
    title = "Adam on everything bought"
    about = "one question, then m Adam steps on the loss of every row bought so far (labels)"
    needs = "revealed"
    why = "answers that reveal the loss, such as labels"
    made = BoughtTrainer


class FreeTrainer(TrickTrainer):
    """As many passes as an attack takes, each of which moves the parameters and the attack together."""

    problem: RobustDigits

    def _update(self, rows: Rows) -> None:
        problem = self.problem
        which = slice(None) if rows is None else rows
        images, classes = problem.data.images[which], problem.data.classes[which]
        loss = CrossEntropy(classes)
        attacked = images if rows is not None or self.known is None else self.known
        problem.oracle(rows).query(
            self.model(attacked).detach()
        )  # one call: as many passes as an attack
        self.counts += Counts(oracle_calls=1)
        for _ in range(problem.steps):
            attacked = self._pass(loss, attacked, images)
        self.known = attacked if rows is None else None

    def _pass(self, loss: CrossEntropy, attacked: Tensor, images: Tensor) -> Tensor:
        leaf = attacked.detach().clone().requires_grad_()
        self.optimiser.zero_grad()
        z = self.model(leaf)
        z.backward(loss.gradient(z.detach()) / len(z))
        self.optimiser.step()
        self.counts += Counts(inner_steps=1, forward_calls=1, backward_calls=1)
        assert leaf.grad is not None
        return self.problem.moved(attacked, images, leaf.grad, self.problem.epsilon)

    def _check_known(self, known: Any) -> None:
        check_tensor("known", known, like=self.problem.data.images)


@register
class FreeAttack(_Trick):
    """Free adversarial training: every gradient serves the parameters and the attack.

    Reference: Shafahi et al., *Adversarial training for free!*, 2019.
    """

    name = "free-attack"
    title = "free adversarial training"
    about = "free adversarial training: every pass moves the parameters and the attack"
    needs = "attack"
    why = "an attack"
    made = FreeTrainer


class FastTrainer(FreeTrainer):
    """As many steps as an attack has passes, each with a random start and one long step of the attack."""

    def _update(self, rows: Rows) -> None:
        problem = self.problem
        which = slice(None) if rows is None else rows
        images, classes = problem.data.images[which], problem.data.classes[which]
        loss = CrossEntropy(classes)
        problem.oracle(rows).query(self.model(images).detach())
        self.counts += Counts(oracle_calls=1)
        for _ in range(max(problem.steps // 2, 1)):  # the attack's pass and the step's own
            start = images + problem.epsilon * (2 * torch.rand_like(images) - 1)
            slope = problem.slope(self.model, loss, start.clamp(0.0, 1.0))
            attacked = problem.moved(start, images, slope, 1.25 * problem.epsilon)
            self._pass(loss, attacked, images)


@register
class FastAttack(_Trick):
    """Fast adversarial training: one step of the attack from a random start.

    Reference: Wong, Rice, Kolter, *Fast is better than free*, 2020.
    """

    name = "fast-attack"
    title = "fast adversarial training"
    about = "fast adversarial training: one step of the attack from a random start"
    needs = "attack"
    why = "an attack"
    made = FastTrainer
