"""A tiny problem that can be told to go wrong and a method, for the tests of the experiment engine.

Specifications name this file under ``plugins``, as users do with problems of their own.
"""

import ctypes
import os
import time
from typing import Literal

import torch
from torch import nn

from targetopt.lab import register as register_method
from targetopt.lab.problems import Problem, register
from targetopt.lab.problems.base import seeded
from targetopt.lab.spec.methods import Sgd
from targetopt.losses import Logistic
from targetopt.oracle import LossOracle
from targetopt.types import TargetPoint

Trouble = Literal["none", "raise", "segfault", "exit", "stuck", "nan", "once", "hoard"]


class Tiny(Problem):
    """Logistic regression on 24 random points with a dropout layer, so that randomness is met."""

    def __init__(self, seed: int, pause: float, trouble: Trouble, at: int, marker: str) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(24, 3, generator=random, dtype=torch.float64)
        self.loss = Logistic(torch.randn(24, generator=random, dtype=torch.float64).sign())
        self.label = f"tiny {seed}" if trouble == "none" else f"tiny {trouble}"
        self.pause = pause
        self.trouble = trouble
        self.at = at
        self.marker = marker

    @property
    def n(self) -> int:
        return 24

    def model(self, seed: int) -> nn.Module:
        self.calls = 0
        layers = (nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1), nn.Flatten(0))
        return seeded(seed, lambda: nn.Sequential(*layers))

    def forward(self, model, index=None):
        x = self.x if index is None else self.x[index]
        return lambda: model(x)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            loss = float(self.loss.value(model(self.x)).mean())
            size = float(torch.stack([p.square().sum() for p in model.parameters()]).sum())
        model.train()
        return {"loss": loss, "size": size}

    def oracle(self, index=None):
        return _Troubled(self, super().oracle(index))


class _Troubled:
    def __init__(self, problem: Tiny, oracle: LossOracle) -> None:
        self.problem = problem
        self.oracle = oracle

    def query(self, z: torch.Tensor) -> TargetPoint:
        self.problem.calls += 1
        time.sleep(self.problem.pause)
        if self.problem.calls == self.problem.at:
            self.go_wrong()
        return self.oracle.query(z)

    def go_wrong(self) -> None:
        trouble = self.problem.trouble
        if trouble == "raise":
            raise RuntimeError("the simulator is out of paper")
        if trouble == "segfault":
            ctypes.string_at(0)
        if trouble == "hoard":
            self.problem.hoard = torch.ones(2 * 10**9, dtype=torch.float64)
        if trouble == "exit":
            os._exit(3)
        if trouble == "stuck":
            ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock: only the kernel can help
        if trouble == "once" and not os.path.exists(self.problem.marker):
            open(self.problem.marker, "w").close()
            os._exit(4)


@register("tiny", "24 points, for tests")
def tiny(
    seed: int = 0, pause: float = 0.0, trouble: Trouble = "none", at: int = 3, marker: str = ""
) -> Problem:
    return Tiny(seed, pause, trouble, at, marker)


@register_method
class Careful(Sgd):
    """SGD that takes half of its step."""

    name = "careful"
    title = "Careful SGD"
    about = "SGD with half of its step"

    def learning_rate(self, problem: Problem) -> float:
        return super().learning_rate(problem) / 2
