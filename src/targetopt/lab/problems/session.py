"""A run under way: what the engine drives, and the session of every problem that has no faster one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from targetopt import linear
from targetopt.types import Counts

if TYPE_CHECKING:
    from targetopt.lab.problems.base import Problem
    from targetopt.lab.spec.config import RunConfig


class Session(Protocol):
    """A problem and a method on their way; made by ``problem.session(config)``."""

    total_steps: int
    steps_per_epoch: int
    records_all: bool
    """Whether metrics are recorded after every step, or as ``record_steps`` says."""

    @property
    def counts(self) -> Counts:
        """What was paid for so far."""

    def advance(self, start: int, stop: int) -> int:
        """Do steps ``start + 1 … stop``, or fewer; say which step was reached.

        Called again until ``stop`` is reached; between calls the run may be checkpointed, stopped
        or found to be over its time. Only the time spent in here is the run's wall time.
        """

    def metrics(self) -> dict[str, float]:
        """The problem's metrics at the current parameters; ``loss`` is always among them."""

    def state_dict(self) -> dict[str, Any]:
        """Everything a bitwise continuation needs, loadable with ``weights_only=True``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. A state that is not one of this session is refused with an error.

        Called once, before the first step. After an error the session is thrown away.
        """


class TorchSession:
    """A run on the torch path: a model, a method, and batches in an order that the seed decides."""

    records_all = False

    def __init__(self, config: RunConfig, problem: Problem) -> None:
        torch.manual_seed(config.seed)  # for what a model draws while it trains, such as dropout
        self.problem = problem
        self.seed = config.seed
        self.model = problem.model(config.seed)
        self.batch_size = config.batch_size
        self.steps_per_epoch = problem.batches(config.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        scheduled = config.scheduled_epochs * self.steps_per_epoch
        self.trainer = config.method.trainer(problem, self.model, scheduled, config.batch_size)

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
        assert self.problem.n is not None  # or there is one batch an epoch
        assert self.batch_size != "full"
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
