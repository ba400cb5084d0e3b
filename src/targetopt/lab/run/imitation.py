"""Runs of imitation problems, a round of `imitation.Training` a step, and the control that the paper lacks."""

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from targetopt.imitation.checkpoint import packed
from targetopt.imitation.measuring.reachable import best_loss
from targetopt.lab.problems import Problem
from targetopt.lab.problems.imitation import ImitationProblem
from targetopt.lab.problems.session import Session
from targetopt.lab.spec.methods import Adam, MethodSpec, Sgd, register
from targetopt.types import Counts

if TYPE_CHECKING:
    from targetopt.lab.spec.config import RunConfig


class ImitationSession(Session):
    """A run whose steps are rounds: the policy learns from the states of the round, and the next are gathered.

    So at every record the policy has not seen the present states yet, and ``loss`` on them is the
    paper's measure. A run gathers its first states when it opens and one round more than it learns
    from. Everything else is `imitation.Training`, which users have as well; its records and these
    have the same names.
    """

    steps_per_epoch = 1
    records_all = True  # rounds are few, and each is a measurement

    def __init__(self, config: "RunConfig", problem: ImitationProblem) -> None:
        self.problem = problem
        self.total_steps = config.epochs
        size, method = int(config.batch_size), config.method
        policy = problem.model(config.seed)
        trainer = method.trainer(problem, policy, config.scheduled_epochs, size)
        update = trainer.on_rounds(method.steps_per_round)
        self.training = problem.training(policy, update, states=size, seed=config.seed)
        self.training.gather()

    @property
    def counts(self) -> Counts:
        return self.training.counts

    def advance(self, start: int, stop: int) -> int:
        self.training.step()
        self.training.gather()
        return start + 1

    def metrics(self) -> dict[str, float]:
        training, policy = self.training, self.training.policy
        found = {"loss": training.loss}
        if not math.isfinite(training.loss):
            return found
        if self.problem.is_linear and policy.is_quadratic:  # in closed form
            batch = training.gather()
            found["best_in_class"] = best_loss(policy, batch.states, batch.labels).value
        found["held_out_loss"] = training.measurement.loss(policy)
        done, every = len(training.history), self.problem.evaluate_every
        if every and (done % every == 0 or done == self.total_steps):
            found |= self.problem.returns(policy)
        last = training.history[-1] if done else None
        for clock in ("gathering_time", "updating_time"):
            found[clock] = math.nan if last is None else getattr(last, clock)
        return found

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = packed(self.training.state_dict())
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.training.load_state_dict(state)


class _Repeated(MethodSpec):
    """The control that the paper lacks: a plain optimiser that takes m steps on each round's loss.

    The labels of a round are bought once: it counts one oracle call a round, and m inner steps.
    """

    max_steps: int = Field(default=10, ge=1, alias="m")

    @property
    def steps_per_round(self) -> int:
        return self.max_steps

    def label(self) -> str:
        return " ".join([f"{self.title} ×{self.max_steps}", *self._unusual(hidden=("m",))])

    def misfit(self, problem: Problem) -> tuple[str, str] | None:
        if not isinstance(problem, ImitationProblem):
            why = "needs labels that are bought once and then known, as in imitation"
            return (
                "name",
                f"{self.name!r} {why}; each step on {problem.name!r} asks the oracle again",
            )
        return super().misfit(problem)


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
