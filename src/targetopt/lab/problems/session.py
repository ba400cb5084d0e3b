"""A run under way: what the engine drives, and the session of every problem that has no faster one."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from targetopt import linear
from targetopt.lab.problems.states import check_keys, checked_count
from targetopt.lab.problems.trail import Record, Trail
from targetopt.types import BadArgument, Counts

if TYPE_CHECKING:
    from targetopt.lab.problems.base import Problem
    from targetopt.lab.spec.config import RunConfig


class Session(Protocol):
    """A problem and a method on their way; made by ``problem.session(config)``."""

    total_steps: int
    steps_per_epoch: int
    records_all: bool
    """Whether metrics are recorded after every step, or as ``record_steps`` says."""
    measures_seldom: bool = False
    """Whether metrics are computed after 1, 2, 4, … steps and at the end alone, however often answers are recorded."""

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

    def records(self) -> list[Record]:
        """What is to be written down now: the metrics, or one record for each answer since the last time."""
        return [{**self.metrics()}]

    def is_over(self) -> bool:
        """Whether the run has spent what it was given before its last step."""
        return False

    def used(self, step: int) -> int:
        """How much of ``total_steps`` is used up after ``step``: more, where a step may ask several questions."""
        return step

    def state_dict(self) -> dict[str, Any]:
        """Everything a bitwise continuation needs, loadable with ``weights_only=True``."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. A state that is not one of this session is refused with an error.

        Called once, before the first step. After an error the session is thrown away.
        """


class TorchSession(Session):
    """A run on the torch path: a model, a method, and batches in an order that the seed decides.

    On a problem whose oracle is expensive, every answer is recorded as it comes, and a run is over when as
    many questions were asked as it was given steps: methods that ask several times a step take fewer
    steps. Where a question is about all examples its loss is the objective; where it is about
    a batch, the problem's metrics are recorded.
    """

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
        self.trail = Trail() if problem.expensive else None
        self.records_all = problem.expensive
        whole = self.steps_per_epoch == 1 and problem.weight_decay == 0
        self._answers_tell = whole and problem.answers_tell
        self.measures_seldom = self.trail is not None and self._answers_tell
        self._done = 0
        watched = problem if self.trail is None else self.trail.watch(problem)
        self.trainer = config.method.trainer(watched, self.model, scheduled, config.batch_size)

    @property
    def counts(self) -> Counts:
        return self.trainer.counts

    def advance(self, start: int, stop: int) -> int:
        rows = self._rows(start)
        if self.trail is None:
            self.trainer.step(rows)
        else:
            self.trail.step(lambda: self.trainer.step(rows))
        self._done = start + 1
        return self._done

    def is_over(self) -> bool:
        return self.trail is not None and self.trail.calls >= self.total_steps

    def used(self, step: int) -> int:
        return step if self.trail is None else self.trail.calls

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

    def records(self) -> list[Record]:
        if self.trail is None:
            return super().records()
        answers = self.trail.take()
        # everything else that the problem measures may be as expensive as a call: few times, and at the end
        done = self._done
        all_of_it = done & (done - 1) == 0 or self.is_over() or done == self.total_steps
        if not self._answers_tell:
            counts: Record = {name: getattr(self.trail, name) for name in _TOLD}
            measured = self.metrics() if all_of_it else self.problem.loss_again(self.model)
            return [{**counts, **measured}]
        if answers and all_of_it:
            measured = self.metrics()
            answers[-1] |= {name: x for name, x in measured.items() if name != "loss"}
        return answers

    def state_dict(self) -> dict[str, Any]:
        state = self.trainer.state_dict()
        if self.trail is None:
            return state
        return {"trainer": state, "trail": self.trail.state_dict(), "done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.trail is None:
            self.trainer.load_state_dict(state)
            return
        check_keys(state, ("trainer", "trail", "done"))
        self._done = checked_count("done", state["done"])
        if self._done > self.total_steps:
            raise BadArgument(f"done is {self._done} of {self.total_steps}")
        self.trainer.load_state_dict(state["trainer"])
        self.trail.load_state_dict(state["trail"])


_TOLD = ("oracle_calls", "value_calls", "oracle_time", "method_time")
_order = lru_cache(maxsize=2)(linear.sample_order)
