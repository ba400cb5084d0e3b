"""What a problem is: data, model, loss and metrics, under a name.

The objective, h(θ) = (1/n) Σ ℓ_i(f_i(θ)) + ½ λ ‖θ‖² with λ = ``weight_decay``, and every other number
that is plotted is computed here, in float64, never by the method that is being measured.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.divergence import Divergence
from targetopt.lab.problems.session import Session, TorchSession
from targetopt.losses import CrossEntropy, Logistic, Loss, Squared
from targetopt.oracle import LossOracle, Oracle
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward, MissingCapability

if TYPE_CHECKING:
    from targetopt.lab.spec.config import RunConfig
    from targetopt.lab.spec.methods import MethodSpec

Array = NDArray[np.float64]
BatchSize = int | Literal["full"]
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
        weight_decay: λ of ½λ‖θ‖², bias included.
        outputs: targets per example.
    """

    X: Any
    y: NDArray[Any]
    loss: LossClass
    bias: bool
    weight_decay: float
    outputs: int = 1


class Problem(ABC):
    """Data, model and metrics, and an oracle that knows the loss.

    A subclass has to say four things: :meth:`model`, :meth:`forward`, :meth:`oracle` (unless it has
    a ``loss``, of which the oracle is then made) and :meth:`metrics`. Everything else may be left
    out: where something is not known, the methods that need it are refused with the reason. The
    file ``examples/own_oracle_problem.py`` has a whole one, whose oracle is a black box.

    Attributes:
        name: what users type.
        label: what figures show.
        loss: the loss on all examples, in target space; None if only the oracle knows it.
        weight_decay: λ of ½λ‖θ‖² in the objective (θ: all parameters, bias included).
        linear: the data of a linear problem for the compiled driver; None for other models.
        expensive: whether calls of the oracle are what counts. Then every answer is recorded, and a run is over
            when as many questions were asked as it has steps.
        divergence: by what mirror descent measures steps in target space; None for the squared distance.
        answers_tell: whether the loss of a question about all examples is the objective, as it is unless
            methods may ask easier questions than the problem poses.
        answers_last: whether what the oracle revealed of an example stays true when the model has changed, as labels
            do and attacks on the model do not.
    """

    name: str
    label: str = ""
    loss: Loss | None = None
    weight_decay: float = 0.0
    linear: LinearData | None = None
    expensive: bool = False
    answers_last: bool = True
    divergence: Divergence | None = None
    answers_tell: bool = True

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """A new model, float64, initialised as torch does; the same seed gives the same model."""

    @abstractmethod
    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        """A function that gives the targets of the rows ``index`` (None: all of them)."""

    @abstractmethod
    def metrics(self, model: nn.Module) -> dict[str, float]:
        """``loss`` (the objective), and what else this problem can tell, such as ``grad_norm``."""

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        """The oracle of the rows ``index`` (None: all of them). Making one must cost nothing."""
        if self.loss is None:
            raise MissingCapability(
                f"the problem {self.name!r} has no loss, so its class {type(self).__name__} must "
                "define oracle(index), which returns an object with query(z), such as a "
                "targetopt.GradientOracle."
            )
        return LossOracle(self.loss if index is None else self.loss.rows(as_rows(index)))

    def loss_again(self, model: nn.Module) -> dict[str, float]:
        """What of the metrics is recorded after most calls, where answers do not tell the loss: all of them.

        A problem whose other metrics take long says ``loss`` alone here.
        """
        return self.metrics(model)

    # -- what may be left out ---------------------------------------------------------------------

    @property
    def n(self) -> int | None:
        """Number of examples; None if there are no rows to choose from: every step takes all."""
        return None

    def reference(self) -> Reference | None:
        """The objective's infimum, where it is known or can be computed; None where it cannot."""
        return None

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ, the smoothness of the objective in θ; None where there is no global one."""
        return None

    @property
    def is_linear(self) -> bool:
        """Whether targets are linear in the parameters, so that surrogates can be solved exactly."""
        return self.linear is not None

    @property
    def target_smoothness(self) -> float | None:
        """L: the largest curvature of one example's loss in its targets; None if not known."""
        if self.loss is not None:
            return self.loss.smoothness
        smoothness: float | None = getattr(self.oracle(), "smoothness", None)
        return smoothness

    @property
    def reveals(self) -> frozenset[str]:
        """What the oracle tells beyond gradients: ``"losses"``, and perhaps ``"value"``, ``"curvature"``, …"""
        if self.loss is None:
            oracle = self.oracle()
            names = ("value", "curvature", "revealed", "majoriser")
            offered = {name for name in names if getattr(oracle, name, None) is not None}
            return frozenset({"losses", *offered})
        curved = type(self.loss).curvature is not Loss.curvature
        smooth = self.loss.smoothness is not None
        known = {"losses", "value", "revealed", *(["majoriser"] if smooth else [])}
        return frozenset({*known, "curvature"} if curved else known)

    # -- what the engine asks ---------------------------------------------------------------------

    def session(self, config: RunConfig) -> Session:
        """A run of this problem at its first step; the same on every machine and in every process."""
        return TorchSession(config, self)

    def why_not_compiled(self, method: MethodSpec) -> str | None:
        """Why a run with this method cannot use the compiled driver; None if it can."""
        return f"{self.name!r} is not a linear problem"

    def batches(self, batch_size: BatchSize) -> int:
        """The number of steps that make an epoch."""
        if batch_size == "full" or self.n is None:
            return 1
        return -(-self.n // batch_size)

    def refused_batch(self, batch_size: BatchSize) -> str | None:
        """Why a step cannot take so many examples; None if it can."""
        if batch_size == "full":
            return None
        if self.n is None:
            return f"{self.name!r} has no rows to choose {batch_size} from; use 'full'"
        if batch_size > self.n:
            return f"{batch_size} is more than the {self.n} examples of {self.name!r}; use 'full'"
        return None

    def __repr__(self) -> str:
        size = "" if self.n is None else f", {self.n} examples"
        return f"<problem {self.name!r}: {self.label}{size}>"


def rng_of(question: NDArray[Any], *seeds: int) -> np.random.Generator:
    """Random numbers for the noise of an answer: the same whenever the same question is asked.

    >>> asked = np.array([1.0, 2.0])
    >>> rng_of(asked, 0).normal() == rng_of(asked.copy(), 0).normal() != rng_of(asked, 1).normal()
    True
    """
    digest = hashlib.sha256(question.tobytes()).digest()[:8]
    return np.random.default_rng([*seeds, int.from_bytes(digest, "little")])


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
        torch.manual_seed(checked_seed(seed))
        return build().double()


def checked_seed(seed: int) -> int:
    """A seed that numpy and torch both take."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise BadArgument(f"seed={seed!r} must be a whole number from 0 to 2⁶³ − 1")
    return seed


def non_negative(name: str, value: float) -> float:
    """The value of an option that must be finite and at least zero."""
    if not (math.isfinite(value) and value >= 0):
        raise BadArgument(f"{name}={value!r} must be finite and at least 0")
    return float(value)
