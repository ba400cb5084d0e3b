"""Runs on their engine: a problem, a method and a sample order, stepped by ``execute.py``."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from targetopt import linear
from targetopt.bench.execute import Session
from targetopt.bench.imitation import ImitationSession
from targetopt.bench.methods import Method
from targetopt.bench.problem_options import load_problem
from targetopt.linear.spec import loss_spec
from targetopt.problems import LinearProblem, Problem
from targetopt.problems.imitation.study import ImitationProblem
from targetopt.types import Counts, Diverged, MissingCapability, TargetoptError

if TYPE_CHECKING:
    from targetopt.bench.config import RunConfig


class Conflict(TargetoptError, ValueError):
    """A method cannot run on a problem or engine; ``key`` is the option at fault."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(why)


def choose_engine(wanted: str, problem: Problem, method: Method) -> str:
    """``auto`` resolved; what cannot run is a :class:`Conflict`."""
    misfit = method.misfit(problem)
    if misfit is not None:
        raise Conflict(*misfit)
    obstacle = _obstacle(problem, method)
    if wanted == "compiled" and obstacle:
        raise Conflict("engine", f"'compiled' cannot run this grid: {obstacle}. Use 'auto'")
    return "torch" if wanted == "torch" or obstacle else "compiled"


def _obstacle(problem: Problem, method: Method) -> str | None:
    """Why the compiled driver cannot run this; None if it can."""
    if not isinstance(problem, LinearProblem):
        return f"{problem.name!r} is not a linear problem"
    if problem.outputs != 1:
        return f"{problem.name!r} has {problem.outputs} outputs, and it takes one"
    if method.on_linear(problem, problem.n) is None:
        return f"it does not know {method.label()!r}"
    try:
        loss_spec(problem.loss)
    except MissingCapability as error:
        return str(error)
    return None


def open_session(config: "RunConfig") -> Session:
    """The session of a run, at its first step; the same on every machine and in every process."""
    problem = load_problem(config.problem)
    if isinstance(problem, ImitationProblem):
        return ImitationSession(config, problem)
    if config.engine == "torch":
        return TorchSession(config, problem)
    assert isinstance(problem, LinearProblem)
    return CompiledSession(config, problem)


class TorchSession:
    """A run on the torch path."""

    records_all = False

    def __init__(self, config: "RunConfig", problem: Problem) -> None:
        torch.manual_seed(config.seed)  # for what a model draws while it trains, such as dropout
        self.problem = problem
        self.seed = config.seed
        self.model = problem.model(config.seed)
        self.batch_size = problem.n if config.batch_size == "full" else int(config.batch_size)
        self.steps_per_epoch = -(-problem.n // self.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        scheduled = config.scheduled_epochs * self.steps_per_epoch
        self.trainer = config.method.trainer(problem, self.model, scheduled, self.batch_size)

    @property
    def counts(self) -> Counts:
        return self.trainer.counts

    def advance(self, start: int, stop: int) -> int:
        self.trainer.step(self._rows(start))
        return start + 1

    def _rows(self, step: int) -> torch.Tensor | None:
        """The rows of the step after ``step``: each epoch a fresh permutation, cut into batches."""
        if self.steps_per_epoch == 1:
            return None
        epoch, batch = divmod(step, self.steps_per_epoch)
        order = _order(self.problem.n, self.seed, epoch)
        rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return torch.from_numpy(rows)

    def metrics(self) -> dict[str, float]:
        return self.problem.metrics(self.model)

    def state_dict(self) -> dict[str, Any]:
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)


_order = lru_cache(maxsize=2)(linear.sample_order)


class CompiledSession:
    """A run of a linear problem in the compiled driver: same start, same batches, same iterates."""

    records_all = False

    def __init__(self, config: "RunConfig", problem: LinearProblem) -> None:
        self.problem = problem
        size = problem.n if config.batch_size == "full" else int(config.batch_size)
        self.steps_per_epoch = -(-problem.n // size)
        self.total_steps = config.epochs * self.steps_per_epoch
        scheduled = config.scheduled_epochs * self.steps_per_epoch
        method = config.method.on_linear(problem, size)
        assert method is not None  # choose_engine has seen to that
        weight, bias = problem.parameters_of(problem.model(config.seed))
        data = problem.linear

        def new_run() -> linear.Run:
            return linear.Run(
                problem.design,  # one for all runs, which then share their batches
                data.y,
                loss=data.loss,
                rule=method.rule,
                inner=method.inner,
                baseline=method.baseline,
                lr=method.lr,
                schedule=config.method.make_schedule(scheduled),
                batch_size=size,
                seed=config.seed,
                l2=config.method.l2(problem),
                bias=data.bias,
                start=weight if bias is None else np.append(weight, bias),
            )

        new_run().advance(1)  # kernels are compiled, or read from their cache, outside the clock
        self.run = new_run()

    @property
    def counts(self) -> Counts:
        return self.run.counts

    def advance(self, start: int, stop: int) -> int:
        # an epoch at a time, so that the runner can stop, or save, a long stretch
        if not self.run.advance(min(stop - start, self.steps_per_epoch)):
            raise Diverged(f"the targets left the finite numbers at step {self.run.steps + 1}")
        return self.run.steps

    def metrics(self) -> dict[str, float]:
        theta = self.run.theta
        if not self.problem.linear.bias:
            return self.problem.metrics_at(theta)
        return self.problem.metrics_at(theta[:-1], theta[-1:])

    def state_dict(self) -> dict[str, Any]:
        state = self.run.state_dict()
        return {key: torch.as_tensor(value) for key, value in state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.run.load_state_dict({key: value.numpy() for key, value in state.items()})
