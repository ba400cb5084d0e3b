"""Runs of imitation problems, a round a step, and the control that the paper lacks."""

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field
from torch import nn

from targetopt.bench.methods import Adam, Method, Sgd, register
from targetopt.bench.trainers import GradientTrainer, Rows, Trainer
from targetopt.problems import Problem
from targetopt.problems.imitation.checkpoint import packed
from targetopt.problems.imitation.network import Array
from targetopt.problems.imitation.reachable import best_loss
from targetopt.problems.imitation.study import ImitationProblem, LabelledStates
from targetopt.types import Counts

if TYPE_CHECKING:
    from targetopt.bench.config import RunConfig


class ImitationSession:
    """A run whose steps are rounds: update the policy on the states of the round, gather the next ones.

    So at every record the policy has not seen the present states yet, and ``loss`` on them is the
    paper's measure. A run gathers its first states when it opens and one round more than it learns
    from. ``gathering_time`` and ``updating_time`` are the CPU seconds of the last round.
    """

    steps_per_epoch = 1
    records_all = True  # rounds are few, and each is a measurement

    def __init__(self, config: "RunConfig", problem: ImitationProblem) -> None:
        torch.manual_seed(config.seed)
        self.problem = problem
        self.size = int(config.batch_size)
        self.total_steps = config.epochs
        self.model = problem.model(config.seed)
        self.gatherer = problem.gatherer(config.seed)
        self.rounds = 0
        self.gathering_time = self.updating_time = math.nan
        self.states = LabelledStates(problem, *self._gather())
        scheduled = config.scheduled_epochs
        self.trainer = config.method.trainer(self.states, self.model, scheduled, self.size)

    @property
    def counts(self) -> Counts:
        return self.trainer.counts

    def advance(self, start: int, stop: int) -> int:
        began = time.process_time()
        self.trainer.step(None)
        updated = time.process_time()
        self.rounds = start + 1
        self.states.take(*self._gather())
        self.updating_time = updated - began
        self.gathering_time = time.process_time() - updated
        return self.rounds

    def _gather(self) -> tuple[Array, Array]:
        behaviour = self.problem.behaviour(self.rounds + 1, self.model)
        batch = self.gatherer.gather(self.size, behaviour, self.problem.expert)
        return batch.states, batch.labels

    def metrics(self) -> dict[str, float]:
        found = self.states.metrics(self.model)
        if not math.isfinite(found["loss"]):
            return found
        if self.problem.is_linear:
            best = best_loss(self.model, self.states.states, self.states.labels)
            found["best_in_class"] = best.value
        found["held_out_loss"] = self.problem.metrics(self.model)["loss"]
        every = self.problem.evaluate_every
        if every and (self.rounds % every == 0 or self.rounds == self.total_steps):
            found |= self.problem.returns(self.model)
        return {
            **found,
            "gathering_time": self.gathering_time,
            "updating_time": self.updating_time,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "trainer": self.trainer.state_dict(),
            "gatherer": packed(self.gatherer.state_dict()),
            "states": torch.from_numpy(self.states.states),
            "labels": torch.from_numpy(self.states.labels),
            "rounds": self.rounds,
            # a checkpoint may lie between a round and its record
            "times": (self.gathering_time, self.updating_time),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self.gatherer.load_state_dict(state["gatherer"])
        self.states.take(state["states"].numpy(), state["labels"].numpy())
        self.rounds = state["rounds"]
        self.gathering_time, self.updating_time = state["times"]


class RepeatedTrainer(GradientTrainer):
    """m steps of an optimiser on the loss of the same states, whose labels are bought once.

    It counts one oracle call a round, and m inner steps.
    """

    def __init__(self, single: GradientTrainer, m: int) -> None:
        super().__init__(single.problem, single.model, single.optimiser, single.schedule)
        self.m = m

    def _update(self, rows: Rows) -> None:
        forward, loss = self.problem.forward(self.model, rows), self.problem.loss
        for _ in range(self.m):
            self.optimiser.zero_grad()
            loss.value(forward()).mean().backward()
            self.optimiser.step()
        self.counts += Counts(oracle_calls=1, forward_calls=self.m, backward_calls=self.m)
        self.counts += Counts(inner_steps=self.m - 1)  # and the one that every step counts


class _Repeated(Method):
    """The control that the paper lacks: a plain optimiser that takes m steps on each round's loss."""

    m: int = Field(default=10, ge=1)

    def label(self) -> str:
        return " ".join([f"{self.title} ×{self.m}", *self._unusual(hidden=("m",))])

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if not isinstance(problem, ImitationProblem):
            why = "needs labels that are bought once and then known, as in imitation"
            return (
                "name",
                f"{self.name!r} {why}; each step on {problem.name!r} asks the oracle again",
            )
        return super().misfit(problem)

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: int
    ) -> Trainer:
        single = super().trainer(problem, model, total_steps, batch_size)
        assert isinstance(single, GradientTrainer)
        return RepeatedTrainer(single, self.m)


@register
class RepeatedSgd(_Repeated, Sgd):
    """SGD, m steps on each round of states."""

    name = "sgd-m"
    about = "SGD, m steps on each round's own loss (imitation)"


@register
class RepeatedAdam(_Repeated, Adam):
    """Adam, m steps on each round of states."""

    name = "adam-m"
    about = "Adam, m steps on each round's own loss (imitation)"
