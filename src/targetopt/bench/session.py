"""Runs on their engine: a problem, a method and a sample order, stepped by ``execute.py``."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from targetopt.bench.execute import Session
from targetopt.bench.methods import Method
from targetopt.bench.problem_options import load_problem
from targetopt.problems import Problem
from targetopt.types import Counts, TargetoptError

if TYPE_CHECKING:
    from targetopt.bench.grid import RunConfig


class Conflict(TargetoptError, ValueError):
    """A method cannot run on a problem or engine; ``key`` is the option at fault."""

    def __init__(self, key: str, why: str) -> None:
        self.key = key
        super().__init__(why)


def choose_engine(wanted: str, problem: Problem, method: Method) -> str:
    """``auto`` resolved, and what cannot be refused."""
    misfit = method.misfit(problem)
    if misfit is not None:
        raise Conflict(*misfit)
    return "torch"


def open_session(config: "RunConfig") -> Session:
    """The session of a run, at its first step; the same on every machine and in every process."""
    return TorchSession(config, load_problem(config.problem))


class TorchSession:
    """A run on the torch path."""

    def __init__(self, config: "RunConfig", problem: Problem) -> None:
        torch.manual_seed(config.seed)  # for what a model draws while it trains, such as dropout
        self.problem = problem
        self.seed = config.seed
        self.model = problem.model(config.seed)
        self.batch_size = problem.n if config.batch_size == "full" else int(config.batch_size)
        self.steps_per_epoch = -(-problem.n // self.batch_size)
        self.total_steps = config.epochs * self.steps_per_epoch
        self.trainer = config.method.trainer(problem, self.model, self.total_steps, self.batch_size)

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
        order = epoch_order(self.problem.n, self.seed, epoch)
        rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
        return torch.from_numpy(rows)

    def metrics(self) -> dict[str, float]:
        return self.problem.metrics(self.model)

    def state_dict(self) -> dict[str, Any]:
        return self.trainer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state)


@lru_cache(maxsize=4)
def epoch_order(n: int, seed: int, epoch: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The order of the examples in one epoch, from the seed and the epoch alone.

    A continued run needs no memory of what came before to draw the same batches.

    >>> epoch_order(5, seed=0, epoch=1).tolist() == epoch_order(5, seed=0, epoch=1).tolist()
    True
    """
    return np.random.default_rng([seed, epoch]).permutation(n)
