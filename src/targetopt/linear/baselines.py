"""SSO's rivals for `linear.fit`: the same updates as torch's and ``targetopt.baselines``, compiled.

Each is a frozen dataclass, given to ``fit(..., baseline=)``; its step is ``fit``'s ``lr`` times the
schedule (for SLS: the step that was found, times the schedule).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from targetopt.linear.spec import (
    ADAGRAD_KIND,
    ADAGRAD_NORM_KIND,
    ADAM_KIND,
    SGD_KIND,
    SLS_KIND,
    SLS_RESETS,
    SVRG_KIND,
    BaselineSpec,
)
from targetopt.types import BadArgument

_NOTHING = BaselineSpec(SGD_KIND, 0.0, 0.0, 0, 1.0, 0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Baseline:
    """A parameter-space method that `linear.fit` can run instead of SSO."""

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        """The numbers its kernel takes."""
        raise NotImplementedError

    def initial_numbers(self) -> list[float]:
        """Its own numbers before the first step: last step (nan: none), b², steps made."""
        return [float("nan"), 0.0, 0.0]

    def initial_memory(self) -> float:
        """What its tables are filled with before the first step."""
        return 0.0


@dataclass(frozen=True)
class SGD(Baseline):
    """θ ← θ − lr·g, g = ∇f_B(θ) + l2·θ."""

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        return _NOTHING


@dataclass(frozen=True)
class SLS(Baseline):
    """SGD with an Armijo line-search on the same batch; ``lr`` is the largest step tried.

    Options as in `targetopt.baselines.SLS`, which see.
    """

    c: float = 0.1
    shrink: float = 0.7
    reset: Literal["keep", "restart", "grow"] = "grow"
    growth: float = 2.0
    max_backtracks: int = 400

    def __post_init__(self) -> None:
        if not (0 < self.c < 1 and 0 < self.shrink < 1 <= self.growth):
            raise BadArgument(
                "SLS needs 0 < c < 1 and 0 < shrink < 1 ≤ growth; got "
                f"c={self.c!r}, shrink={self.shrink!r}, growth={self.growth!r}"
            )
        if self.reset not in SLS_RESETS or self.max_backtracks < 0:
            raise BadArgument(
                "SLS needs reset 'keep' (the last step), 'restart' (at lr) or 'grow' (the last step a "
                f"little) and max_backtracks ≥ 0; got reset={self.reset!r}, "
                f"max_backtracks={self.max_backtracks!r}"
            )

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        return _NOTHING._replace(
            kind=SLS_KIND,
            c=self.c,
            shrink=self.shrink,
            reset=SLS_RESETS.index(self.reset),
            growth=self.growth ** (1.0 / batches_per_epoch),
            max_backtracks=self.max_backtracks,
        )


@dataclass(frozen=True)
class AdaGradNorm(Baseline):
    """b² ← b² + ‖g‖², θ ← θ − (lr/b)·g, from b = ``initial``."""

    initial: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.initial < float("inf"):
            raise BadArgument(f"AdaGradNorm: initial={self.initial!r} must be ≥ 0 and finite")

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        return _NOTHING._replace(kind=ADAGRAD_NORM_KIND)

    def initial_numbers(self) -> list[float]:
        return [float("nan"), self.initial**2, 0.0]


@dataclass(frozen=True)
class SVRG(Baseline):
    """θ ← θ − lr·(∇f_B(θ) − ∇f_B(θ̃) + ∇f(θ̃) + l2·θ); a snapshot θ̃ as each epoch begins."""

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        return _NOTHING._replace(kind=SVRG_KIND)


@dataclass(frozen=True)
class Adam(Baseline):
    """torch's Adam (its ``weight_decay``, too: l2·θ joins the gradient)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not (all(0 <= beta < 1 for beta in self.betas) and self.eps >= 0):
            raise BadArgument(
                f"Adam needs 0 ≤ betas < 1 and eps ≥ 0; got betas={self.betas!r}, eps={self.eps!r}"
            )

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        beta1, beta2 = self.betas
        return _NOTHING._replace(kind=ADAM_KIND, beta1=beta1, beta2=beta2, eps=self.eps)


@dataclass(frozen=True)
class Adagrad(Baseline):
    """torch's Adagrad, from the sums ``initial_accumulator_value``."""

    eps: float = 1e-10
    initial_accumulator_value: float = 0.0

    def __post_init__(self) -> None:
        if not (self.eps >= 0 and self.initial_accumulator_value >= 0):
            raise BadArgument(
                "Adagrad needs eps ≥ 0 and initial_accumulator_value ≥ 0; got "
                f"eps={self.eps!r}, initial_accumulator_value={self.initial_accumulator_value!r}"
            )

    def spec(self, batches_per_epoch: int) -> BaselineSpec:
        return _NOTHING._replace(kind=ADAGRAD_KIND, eps=self.eps)

    def initial_memory(self) -> float:
        return self.initial_accumulator_value
