"""SSO's rivals for `linear.fit`: torch's own, and those of ``targetopt.baselines``.

Each is a frozen dataclass, given to ``fit(..., baseline=)``; its step is ``fit``'s ``lr`` times the
schedule (for SLS: the step that was found, times the schedule). ``fit`` runs exactly these classes in
compiled loops; any other baseline, and any without numba, runs as the torch optimiser that it makes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from targetopt import baselines
from targetopt.baselines.sls import Search
from targetopt.schedules import Schedule
from targetopt.types import BadArgument


@dataclass(frozen=True)
class Baseline:
    """A parameter-space method that `linear.fit` can run instead of SSO.

    A new one needs ``optimiser``.
    """

    evaluates: ClassVar[bool] = False
    """Whether the optimiser's ``step`` takes a plain closure and differentiates it itself."""
    schedules: ClassVar[bool] = False
    """Whether the optimiser applies the schedule; if not, its lr is set before each step."""
    snapshots: ClassVar[bool] = False
    """Whether the optimiser takes a snapshot of all data as each epoch begins."""

    def optimiser(
        self,
        params: list[Tensor],
        *,
        lr: float,
        weight_decay: float,
        batches_per_epoch: int,
        schedule: Schedule,
    ) -> torch.optim.Optimizer:
        """The torch optimiser that makes the steps."""
        raise NotImplementedError


@dataclass(frozen=True)
class SGD(Baseline):
    """θ ← θ − lr·g, g = ∇f_B(θ) + weight_decay·θ."""

    def optimiser(
        self, params: list[Tensor], *, lr: float, weight_decay: float, **run: Any
    ) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay)


@dataclass(frozen=True)
class SLS(Search, Baseline):
    """SGD with an Armijo line-search on the same batch; ``lr`` is the largest step tried.

    Options and defaults are those of `targetopt.baselines.SLS`, which see.
    """

    evaluates: ClassVar[bool] = True
    schedules: ClassVar[bool] = True

    def optimiser(
        self,
        params: list[Tensor],
        *,
        lr: float,
        weight_decay: float,
        batches_per_epoch: int,
        schedule: Schedule,
    ) -> torch.optim.Optimizer:
        return baselines.SLS(
            params,
            lr=lr,
            **asdict(self),
            batches_per_epoch=batches_per_epoch,
            weight_decay=weight_decay,
            schedule=schedule,
        )


@dataclass(frozen=True)
class AdaGradNorm(Baseline):
    """b² ← b² + ‖g‖², θ ← θ − (lr/b)·g, from b = ``initial``."""

    initial: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.initial < float("inf"):
            raise BadArgument(f"AdaGradNorm: initial={self.initial!r} must be ≥ 0 and finite")

    def optimiser(
        self, params: list[Tensor], *, lr: float, weight_decay: float, **run: Any
    ) -> torch.optim.Optimizer:
        return baselines.AdaGradNorm(params, lr=lr, initial=self.initial, weight_decay=weight_decay)


@dataclass(frozen=True)
class SVRG(Baseline):
    """θ ← θ − lr·(∇f_B(θ) − ∇f_B(θ̃) + ∇f(θ̃) + weight_decay·θ); a snapshot θ̃ as each epoch begins."""

    evaluates: ClassVar[bool] = True
    snapshots: ClassVar[bool] = True

    def optimiser(
        self, params: list[Tensor], *, lr: float, weight_decay: float, **run: Any
    ) -> torch.optim.Optimizer:
        return baselines.SVRG(params, lr=lr, weight_decay=weight_decay)


@dataclass(frozen=True)
class Adam(Baseline):
    """torch's Adam (its ``weight_decay``, too: weight_decay·θ joins the gradient)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not (all(0 <= beta < 1 for beta in self.betas) and self.eps >= 0):
            raise BadArgument(
                f"Adam needs 0 ≤ betas < 1 and eps ≥ 0; got betas={self.betas!r}, eps={self.eps!r}"
            )

    def optimiser(
        self, params: list[Tensor], *, lr: float, weight_decay: float, **run: Any
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            params, lr=lr, betas=self.betas, eps=self.eps, weight_decay=weight_decay
        )


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

    def optimiser(
        self, params: list[Tensor], *, lr: float, weight_decay: float, **run: Any
    ) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(params, lr=lr, weight_decay=weight_decay, **asdict(self))
