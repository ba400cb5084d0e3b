"""What the problems with solvers share: the oracle that calls one, and the problem around it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Problem, non_negative, rng_of, seeded
from targetopt.lab.problems.physics.fields import FIELDS, Shape, field
from targetopt.lab.problems.physics.sparse import Array
from targetopt.oracle import Oracle, ScalarOracle
from targetopt.reference import Reference
from targetopt.surrogate import Surrogate
from targetopt.types import BadArgument, Forward, TargetPoint

Size = Literal["smoke", "quick", "full"]


class Answer(NamedTuple):
    """What a solver says of a field: a value, its gradient, and perhaps an upper bound of the value.

    The bound is made for targets of any type: called with them, it gives a surrogate.
    """

    value: float
    gradient: Array
    majoriser: Callable[[Tensor], Surrogate] | None = None


@dataclass(frozen=True)
class SolverOracle:
    """A solver as an oracle: one question, one solve.

    Args:
        solver: from a field to an `Answer`.
        noise: relative error of the answers, as of an iterative solver that is stopped early: the value is
            multiplied by 1 + noise·ξ, and the gradient gets a random vector of noise times its length. The
            same question always gets the same answer.
        cost: seconds that every question takes beside the solve.
        seed: of the noise.
        bound: the kind of the answers' majorisers, if they have them.

    Example:
        >>> oracle = SolverOracle(lambda x: Answer(float(x @ x), 2 * x))
        >>> float(oracle.query(torch.ones(3).double()).loss)
        3.0
    """

    solver: Callable[[Array], Answer]
    noise: float = 0.0
    cost: float = 0.0
    seed: int = 0
    bound: type[Surrogate] | None = None

    @property
    def majoriser(self) -> type[Surrogate] | None:
        """The kind of upper bound that answers hold (for `Majoriser`): none of a value that is not exact."""
        return None if self.noise else self.bound

    def __post_init__(self) -> None:
        non_negative("noise", self.noise)
        non_negative("cost", self.cost)

    def query(self, z: Tensor) -> TargetPoint:
        if self.cost:
            time.sleep(self.cost)
        field = z.detach().cpu().double().numpy()
        value, gradient, majoriser = self.solver(field)
        if self.noise:
            rng = rng_of(field, self.seed)
            value *= 1.0 + self.noise * rng.normal()
            off = rng.normal(size=gradient.shape)
            gradient = gradient + self.noise * np.linalg.norm(gradient) / math.sqrt(off.size) * off
        point = ScalarOracle(lambda _: (value, gradient)).query(z)
        if majoriser is None or self.majoriser is None:
            return point
        return replace(point, majoriser=majoriser(z))


class SolverProblem(Problem):
    """A field that a network gives, judged by a solver: h(θ) = solver(squash(network_θ)).

    Args:
        label: what figures show.
        shape: columns and rows of the grid.
        model: ``"fourier"``, ``"siren"``, ``"cnn"`` or ``"pixels"`` (`fields.FIELDS`).
        squash: makes physical quantities of the network's numbers.
        solver: from the field to an `Answer`; exact, without noise.
        oracle: that is trained on; ``SolverOracle(solver)`` if left out.
        measure: further metrics of a field, such as the distance from the truth.
        reference: a value worth reaching, and where it is from.
        truth: the field that is to be found, if there is one.
        level: the value at which a run may stop, if the problem has one (discrepancy principle).
    """

    expensive = True

    def __init__(
        self,
        label: str,
        shape: Shape,
        model: str,
        squash: nn.Module,
        solver: Callable[[Array], Answer],
        *,
        oracle: Oracle | None = None,
        measure: Callable[[Array], dict[str, float]] = lambda values: {},
        reference: Callable[[], Reference] | None = None,
        truth: Array | None = None,
        level: float | None = None,
    ) -> None:
        if model not in FIELDS:
            raise BadArgument(f"model={model!r} is unknown. Use one of {', '.join(FIELDS)}.")
        self.label, self.shape, self.kind = label, shape, model
        self.squash, self.solver, self.level = squash, solver, level
        self._oracle = SolverOracle(solver) if oracle is None else oracle
        self.measure, self.truth = measure, truth
        self._reference = reference

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, lambda: field(self.kind, self.shape))

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        if index is not None:
            raise BadArgument(f"index={index!r}: {self.name!r} has one field and no rows to choose")
        squash = self.squash
        return lambda: squash(model())

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        return self._oracle

    def field(self, model: nn.Module) -> Array:
        """What the model stands for: densities, or logarithms of coefficients, column by column."""
        with torch.no_grad():
            values: Array = self.squash(model()).double().numpy()
        return values

    def metrics(self, model: nn.Module) -> dict[str, float]:
        values = self.field(model)
        if not np.isfinite(values).all():
            return {"loss": math.inf}
        return {"loss": self.solver(values).value, **self.measure(values)}

    def reference(self) -> Reference | None:
        return None if self._reference is None else self._reference()


def checked_size(size: str, sizes: Mapping[str, object]) -> str:
    """``size``, refused unless it is one of these."""
    if size not in sizes:
        raise BadArgument(f"size={size!r} is unknown. Use one of {', '.join(sizes)}.")
    return size
