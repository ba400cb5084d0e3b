"""What a problem is: data, model, loss and metrics, under a name.

The objective, h(θ) = (1/n) Σ ℓ_i(f_i(θ)) + ½ l2 ‖θ‖², and every other number that is plotted is
computed here, in float64, never by the method that is being measured.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.losses import CrossEntropy, Logistic, Loss, Squared
from targetopt.oracle import LossOracle
from targetopt.types import BadArgument, Forward

Array = NDArray[np.float64]
LossClass = type[Squared] | type[Logistic] | type[CrossEntropy]
"""The losses of linear problems, each made with its labels."""


@dataclass(frozen=True)
class LinearData:
    """A linear problem as the compiled driver takes it: targets are ``Xθ`` (+ bias).

    Attributes:
        X: numpy array or scipy CSR, one row per example.
        y: labels: ±1, real numbers, or class numbers.
        loss: class of the loss, made with ``y``.
        bias: whether the model adds a bias to each output.
        l2: weight of ½‖θ‖², bias included.
        outputs: targets per example.
    """

    X: Any
    y: NDArray[Any]
    loss: LossClass
    bias: bool
    l2: float
    outputs: int = 1


@dataclass(frozen=True)
class Reference:
    """The smallest value of an objective, and how well it is known.

    Attributes:
        value: inf h.
        gap: bound or estimate of how far ``value`` is above inf h (0 where it is exact).
        attained: whether some θ has that value. Separable data have inf h = 0, attained nowhere.
        certificate: why to believe it, in words.
        parameters: θ with h(θ) = ``value``; where none attains it, the separating θ.
    """

    value: float
    gap: float
    attained: bool
    certificate: str
    parameters: Array | None = None

    @property
    def resolved(self) -> bool:
        """Whether the infimum is known well enough to subtract: to 1e-12 relative, or exactly."""
        return self.gap <= 1e-12 * self.value


class Problem(ABC):
    """Data, model, loss and metrics. See :func:`targetopt.problems.get`.

    Attributes:
        name: what users type.
        label: what figures show.
        loss: the loss on all examples, in target space.
        l2: weight of ½‖θ‖² in the objective (θ: all parameters, bias included).
        linear: the data of a linear problem for the compiled driver; None for other models.
    """

    name: str
    label: str
    loss: Loss
    l2: float = 0.0
    linear: LinearData | None = None

    @property
    @abstractmethod
    def n(self) -> int:
        """Number of examples."""

    @property
    def largest_batch(self) -> int | None:
        """The most examples that a step can take; None where examples are made anew for every step."""
        return self.n

    @property
    def is_linear(self) -> bool:
        """Whether targets are linear in the parameters, so that surrogates can be solved exactly."""
        return self.linear is not None

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """A new model, float64, initialised as torch does; the same seed gives the same model."""

    @abstractmethod
    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        """A function that gives the targets of the rows ``index`` (None: all of them)."""

    @abstractmethod
    def metrics(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (the objective), ``grad_norm``, and what else this problem can tell."""

    def oracle(self, index: ArrayLike | Tensor | None = None) -> LossOracle:
        """The oracle of the rows ``index`` (None: all of them)."""
        return LossOracle(self.loss if index is None else self.loss.rows(as_rows(index)))

    def reference(self) -> Reference | None:
        """The objective's infimum, where it is known or can be computed; None where it cannot."""
        return None

    @property
    def target_smoothness(self) -> float | None:
        """L: the largest curvature of one example's loss in its targets."""
        return self.loss.smoothness

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ, the smoothness of the objective in θ; None where there is no global one."""
        return None

    def __repr__(self) -> str:
        return f"<problem {self.name!r}: {self.label}, {self.n} examples>"


def as_rows(index: ArrayLike | Tensor) -> Tensor:
    """Row numbers as a tensor."""
    return (
        torch.as_tensor(index) if isinstance(index, Tensor) else torch.from_numpy(np.asarray(index))
    )


def is_sparse(X: Any) -> bool:
    """Whether X is a scipy sparse matrix rather than an array."""
    return bool(sp.issparse(X))


def seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    """A model built with torch's own initialisation under `seed`; global random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double()


def non_negative(name: str, value: float) -> float:
    """The value of an option that must be finite and at least zero."""
    if not (math.isfinite(value) and value >= 0):
        raise BadArgument(f"{name}={value!r} must be finite and at least 0")
    return float(value)


def positive_int(name: str, value: int) -> int:
    """The value of an option that counts something."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadArgument(f"{name}={value!r} must be a whole number, at least 1")
    return value
