"""Losses of predicted costs that look at the decisions they lead to; each asks the solver once for every instance.

With c the true costs of an instance, w* = w(c) its best decision and ĉ the predicted costs:

    SPO+            ℓ(ĉ) = (2ĉ − c)ᵀw* − min_w (2ĉ − c)ᵀw                 ∂ℓ ∋ 2 (w* − w(2ĉ − c))
    Fenchel–Young   ℓ(ĉ) = mean_k [(ĉ + σZ_k)ᵀw* − min_w (ĉ + σZ_k)ᵀw]     ∇ℓ = w* − mean_k w(ĉ + σZ_k)
    feasibility     ℓ(ĉ) = ½ ‖ĉ − Π_C(ĉ)‖²                                 ∇ℓ = ĉ − Π_C(ĉ)

C are the costs for which w* is optimal by a margin: for min cᵀw, Aw = b, w ≥ 0 these are Aᵀν + s with s = 0 on w*
and s ≥ margin elsewhere. All three are convex and at least zero; the third is smooth with L = 1, the first
two are piecewise linear.

References: Elmachtoub, Grigas, *Smart "Predict, then Optimize"*, 2022; Berthet et al., *Learning with differentiable
perturbed optimizers*, 2020; Mishra, Raj, Vaswani, *From Inverse Optimization to Feasibility to ERM*, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.optimize as so

from targetopt.lab.problems.decisions.solvers import (
    Array,
    Infeasible,
    ShortestPath,
    Solver,
    checked_costs,
)
from targetopt.types import BadArgument, MissingCapability, positive_int


class DecisionLoss(Protocol):
    """Losses and gradients of predicted costs, one instance a row."""

    @property
    def smoothness(self) -> float | None:
        """L, where the loss is smooth."""

    def answer(self, costs: Array) -> tuple[Array, Array]: ...


def _inner(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=-1))


@dataclass(frozen=True)
class SPOPlus:
    """The convex upper bound of the regret: one solve for each instance.

    Example:
        >>> loss = SPOPlus(ShortestPath(2, 2), np.array([[1.0, 5.0, 1.0, 1.0]]))
        >>> values, gradients = loss.answer(np.array([[1.0, 0.0, 1.0, 1.0]]))
        >>> values, gradients
        (array([6.]), array([[ 2., -2.,  2., -2.]]))
    """

    solver: Solver
    costs: Array
    best: Array = field(init=False)
    smoothness: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "best", self.solver.solve(self.costs))

    def answer(self, costs: Array) -> tuple[Array, Array]:
        turned = 2.0 * checked_costs(costs, self.solver.size) - self.costs
        off = self.best - self.solver.solve(turned)
        return _inner(turned, off), 2.0 * off


@dataclass(frozen=True)
class FenchelYoung:
    """The perturbed Fenchel–Young loss with ``draws`` perturbations that are drawn once: draws solves an instance."""

    solver: Solver
    costs: Array
    sigma: float = 0.5
    draws: int = 1
    seed: int = 0
    best: Array = field(init=False)
    smoothness: float | None = None

    def __post_init__(self) -> None:
        positive_int("draws", self.draws)
        if not 0 < self.sigma < np.inf:
            raise BadArgument(f"sigma={self.sigma!r} must be positive and finite")
        object.__setattr__(self, "best", self.solver.solve(self.costs))

    @cached_property
    def perturbations(self) -> Array:
        """σZ, with an axis of draws in front."""
        rng = np.random.default_rng([self.seed, 17])
        return self.sigma * rng.normal(size=(self.draws, *self.costs.shape))

    def answer(self, costs: Array) -> tuple[Array, Array]:
        moved = checked_costs(costs, self.solver.size) + self.perturbations
        flat = moved.reshape(-1, self.solver.size)
        off = self.best - self.solver.solve(flat).reshape(moved.shape)
        return _inner(moved, off).mean(axis=0), off.mean(axis=0)


@dataclass(frozen=True)
class Feasibility:
    """Half the squared distance to the costs that make the best decision optimal: one projection an instance.

    The projection is a non-negative least squares problem, solved exactly by an active set method.

    Args:
        solver: paths, whose linear programme has whole solutions.
        costs: the true costs.
        margin: how much dearer an arc beside the best path must be, in reduced costs. Without one, ĉ = 0 would
            have no loss.

    Example:
        >>> loss = Feasibility(ShortestPath(2, 2), np.array([[1.0, 5.0, 1.0, 1.0]]), margin=0.5)
        >>> loss.answer(np.array([[1.0, 5.0, 1.0, 1.0]]))[0].round(12)
        array([0.])
    """

    solver: ShortestPath
    costs: Array
    margin: float = 0.5
    best: Array = field(init=False)
    smoothness: float | None = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.solver, ShortestPath):
            raise MissingCapability(
                f"the feasibility loss needs decisions of a linear programme; {type(self.solver).__name__} has "
                "integer ones. Use loss='spo+' or 'fenchel-young'."
            )
        if not 0 < self.margin < np.inf:
            raise BadArgument(f"margin={self.margin!r} must be positive and finite")
        object.__setattr__(self, "best", self.solver.solve(self.costs))

    @cached_property
    def _beside(self) -> Array:
        """The projector onto what potentials ν cannot reach: I − Aᵀ(AAᵀ)⁺A."""
        incidence = self.solver.incidence
        return np.eye(self.solver.size) - np.linalg.pinv(incidence) @ incidence

    def answer(self, costs: Array) -> tuple[Array, Array]:
        costs = checked_costs(costs, self.solver.size)
        gradients = np.empty_like(costs)
        for row, (cost, best) in enumerate(zip(costs, self.best, strict=True)):
            away = best < 0.5
            columns = self._beside[:, away]
            wanted = self._beside @ cost - columns.sum(axis=1) * self.margin
            try:
                slack, _ = so.nnls(columns, wanted)
            except RuntimeError as error:
                raise Infeasible(
                    f"the projection of instance {row} did not end: {error}"
                ) from error
            gradients[row] = wanted - columns @ slack
        return 0.5 * _inner(gradients, gradients), gradients
