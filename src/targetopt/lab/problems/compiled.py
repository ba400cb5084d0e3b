"""The session of linear problems in the compiled driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from targetopt import linear
from targetopt.lab.problems.session import Session
from targetopt.lab.problems.states import check_tensor
from targetopt.types import BadArgument, Counts, Diverged

if TYPE_CHECKING:
    from targetopt.lab.problems.linear import LinearProblem
    from targetopt.lab.spec.config import RunConfig


class CompiledSession(Session):
    """A run of a linear problem in the compiled driver: same start, same batches, same iterates."""

    records_all = False

    def __init__(self, config: RunConfig, problem: LinearProblem) -> None:
        self.problem = problem
        size = problem.n if config.batch_size == "full" else config.batch_size
        self.steps_per_epoch = problem.batches(config.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        scheduled = config.scheduled_epochs * self.steps_per_epoch
        method = config.method.on_linear(problem, config.batch_size)
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
                weight_decay=config.method.weight_decay_on(problem),
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
        return {
            key: value if isinstance(value, dict) else torch.as_tensor(value)
            for key, value in state.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        usual = self.state_dict()
        if state.keys() != usual.keys():
            raise BadArgument(f"state has {sorted(state)}, and this run needs {sorted(usual)}")
        for name, mine in usual.items():
            if not isinstance(mine, dict):
                # what a rule keeps may be nan or infinite before it is known
                check_tensor(f"state[{name!r}]", state[name], like=mine, finite=name == "theta")
        self.run.load_state_dict(state)  # which checks every part before a kernel sees it
        if self.run.steps > self.total_steps:
            raise BadArgument(f"state['steps'] is {self.run.steps} of {self.total_steps}")
