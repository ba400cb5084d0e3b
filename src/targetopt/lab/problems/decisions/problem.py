"""Problems of decision-focused learning, with the data of PyEPO's generators (extra ``[decisions]``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Problem, as_rows, non_negative, seeded
from targetopt.lab.problems.decisions.losses import DecisionLoss, Feasibility, FenchelYoung, SPOPlus
from targetopt.lab.problems.decisions.solvers import (
    Array,
    Knapsack,
    Salesman,
    ShortestPath,
    Solver,
)
from targetopt.lab.problems.registry import register
from targetopt.oracle import GradientOracle
from targetopt.types import BadArgument, Forward, MissingCapability

Size = Literal["smoke", "quick", "full"]
LossName = Literal["spo+", "fenchel-young", "feasibility"]

FEATURES = 5
HELD_OUT = 100


@dataclass(frozen=True)
class Instances:
    """Features and true costs of training and of held-out instances, and the solver they share."""

    solver: Solver
    features: Array
    costs: Array
    held_out_features: Array
    held_out_costs: Array


class DecisionProblem(Problem):
    """A network predicts costs from features; the loss is about the decisions that the prediction leads to.

    Targets are predicted costs, one row for each instance. ``loss`` is the mean of the chosen loss over the training
    instances, ``regret`` how much dearer the decisions on held-out instances are than the best ones, relatively.
    The floor of the loss is 0; it is reached where the network can make every decision right.
    """

    expensive = True

    def __init__(
        self, label: str, data: Instances, make: Callable[[Array], DecisionLoss], hidden: int
    ) -> None:
        self.label = label
        self.data = data
        self.hidden = hidden
        self.make = make
        self.decisions = make(data.costs)
        mean, spread = data.features.mean(axis=0), data.features.std(axis=0)
        self.scaled = torch.from_numpy((data.features - mean) / spread)
        self._held_out = torch.from_numpy((data.held_out_features - mean) / spread)
        self.held_out_best = data.solver.solve(data.held_out_costs)

    @property
    def n(self) -> int:
        return len(self.data.costs)

    @property
    def reveals(self) -> frozenset[str]:
        """A solution is known to be feasible for every instance: SPO+ reveals a pool of them."""
        known = super().reveals
        return known | {"pool"} if isinstance(self.decisions, SPOPlus) else known

    def model(self, seed: int) -> nn.Module:
        width, outputs = self.hidden, self.data.solver.size
        scale = float(np.abs(self.data.costs).mean())

        def build() -> nn.Module:
            last = nn.Linear(width, outputs)
            with torch.no_grad():
                last.weight.mul_(scale)  # predictions begin in the range of the costs
                last.bias.add_(float(self.data.costs.mean()))
            return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), last)

        return seeded(seed, build)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        features = self.scaled if index is None else self.scaled[as_rows(index)]
        return lambda: model(features)

    def oracle(self, index: ArrayLike | Tensor | None = None) -> GradientOracle:
        loss = self.decisions
        if index is not None:  # its decisions are solved again: only mini-batches pay for it
            loss = self.make(self.data.costs[as_rows(index).numpy()])
        return GradientOracle(lambda z: loss.answer(z.numpy()), smoothness=loss.smoothness)

    def pool_of(self, gradients: Tensor) -> Tensor:
        """The distinct decisions that SPO+ gradients 2(w* − w) and the best decisions hold."""
        assert isinstance(self.decisions, SPOPlus)
        best = torch.from_numpy(self.decisions.best)
        found: Tensor = torch.unique(torch.cat([best, (best - 0.5 * gradients).round()]), dim=0)
        return found

    def pooled(self, z: Tensor, pool: Tensor) -> Tensor:
        """SPO+ with the best decision of a pool in place of the solver's: costs nothing, and is never above SPO+."""
        assert isinstance(self.decisions, SPOPlus)
        turned = 2.0 * z - torch.from_numpy(self.data.costs)
        best = torch.from_numpy(self.decisions.best)
        found: Tensor = (turned * best).sum(dim=1) - (turned @ pool.T).min(dim=1).values
        return found

    @torch.no_grad()
    def taken(self, model: nn.Module) -> Array:
        """For each held-out instance the decision that the prediction leads to; ``held_out_best`` is the right one."""
        return self.data.solver.solve(model(self._held_out).numpy())

    @torch.no_grad()
    def metrics(self, model: nn.Module) -> dict[str, float]:
        predicted = model(self.scaled).numpy()
        if not np.isfinite(predicted).all():
            return {"loss": math.inf}
        losses, _ = self.decisions.answer(predicted)
        true = self.data.held_out_costs
        paid, least = (true * self.taken(model)).sum(), (true * self.held_out_best).sum()
        return {"loss": float(losses.mean()), "regret": float((paid - least) / abs(least))}


def _generator(name: str) -> Callable[..., tuple[Any, ...]]:
    """PyEPO's generator, imported when it is needed: it takes seconds."""
    try:
        import importlib

        module = importlib.import_module(f"pyepo.data.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"decision problems need the package {error.name!r}: pip install 'targetopt[decisions]'",
            name=error.name,
        ) from error
    found: Callable[..., tuple[Any, ...]] = module.genData
    return found


def _split(features: Any, costs: Any, solver: Solver, n: int) -> Instances:
    x, c = np.asarray(features, dtype=np.float64), np.asarray(costs, dtype=np.float64)
    return Instances(solver, x[:n], c[:n], x[n:], c[n:])


def _made(name: LossName, solver: Solver, draws: int) -> Callable[[Array], DecisionLoss]:
    losses: Mapping[str, Callable[[Array], DecisionLoss]] = {
        "spo+": lambda costs: SPOPlus(solver, costs),
        "fenchel-young": lambda costs: FenchelYoung(solver, costs, draws=draws),
        "feasibility": lambda costs: _feasible(solver, costs),
    }
    if name not in losses:
        raise BadArgument(f"loss={name!r} must be one of {', '.join(losses)}")
    return losses[name]


def _feasible(solver: Solver, costs: Array) -> DecisionLoss:
    if not isinstance(solver, ShortestPath):
        raise MissingCapability(
            "loss='feasibility' needs decisions of a linear programme; use 'shortest-path', or loss='spo+'."
        )
    return Feasibility(solver, costs)


def _problem(
    title: str, data: Instances, loss: LossName, hidden: int, draws: int
) -> DecisionProblem:
    label = f"{title}, {loss}"
    return DecisionProblem(label, data, _made(loss, data.solver, draws), hidden)


@register(
    "shortest-path", "predict the costs of a grid's arcs; the oracle finds every shortest path"
)
def shortest_path(
    size: Size = "quick",
    loss: LossName = "spo+",
    degree: int = 4,
    noise: float = 0.5,
    seed: int = 0,
) -> DecisionProblem:
    n, grid, hidden, draws = {
        "smoke": (30, (3, 3), 16, 2),
        "quick": (100, (5, 5), 32, 4),
        "full": (500, (5, 5), 64, 10),
    }[size]
    non_negative("noise", noise)
    x, c = _generator("shortestpath")(
        n + HELD_OUT, FEATURES, grid, deg=degree, noise_width=noise, seed=seed
    )
    data = _split(x, c, ShortestPath(*grid), n)
    return _problem("shortest path", data, loss, hidden, draws)


@register("knapsack", "predict the values of items; the oracle packs every knapsack")
def knapsack(
    size: Size = "quick",
    loss: LossName = "spo+",
    degree: int = 4,
    noise: float = 0.5,
    seed: int = 0,
) -> DecisionProblem:
    n, items, hidden, draws = {
        "smoke": (20, 6, 16, 1),
        "quick": (60, 12, 32, 2),
        "full": (30, 20, 64, 2),
    }[size]
    non_negative("noise", noise)
    weights, x, values = _generator("knapsack")(
        n + HELD_OUT, FEATURES, items, dim=2, deg=degree, noise_width=noise, seed=seed
    )
    solver = Knapsack(weights, 0.4 * weights.sum(axis=1))
    return _problem("knapsack", _split(x, -values, solver, n), loss, hidden, draws)


@register(
    "travelling-salesman", "predict the costs between cities; the oracle finds every best tour"
)
def travelling_salesman(
    size: Size = "quick",
    loss: LossName = "spo+",
    degree: int = 4,
    noise: float = 0.5,
    seed: int = 0,
) -> DecisionProblem:
    n, nodes, hidden, draws = {
        "smoke": (20, 5, 16, 1),
        "quick": (50, 7, 32, 2),
        "full": (200, 9, 64, 5),
    }[size]
    non_negative("noise", noise)
    x, c = _generator("tsp")(
        n + HELD_OUT, FEATURES, nodes, deg=degree, noise_width=noise, seed=seed
    )
    return _problem("travelling salesman", _split(x, c, Salesman(nodes), n), loss, hidden, draws)
