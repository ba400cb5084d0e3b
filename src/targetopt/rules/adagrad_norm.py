"""AdaGrad-Norm in target space: one adaptive step for all examples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.types import (
    BadAnswer,
    BadArgument,
    State,
    TargetPoint,
    check_entries,
    is_positive,
)


@dataclass(frozen=True)
class AdaGradNorm(Rule):
    """b_t² = b_{t−1}² + ‖g_t‖², η_t = lr/b_t; the surrogate is GradientStep's (paper App. E.3).

    ‖·‖ is the mean norm, so duplicating examples changes nothing. ``lr=None`` means 1.

    Args:
        initial: b_0, a floor under the first steps.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.tensor([4.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=2.0, rule=to.AdaGradNorm(), inner=to.Exact())
        >>> opt.step(lambda: 1 * w, oracle).eta
        0.5

    Reference: Ward, Wu, Bottou, *AdaGrad Stepsizes*, JMLR 2020.
    """

    initial: float = 0.0

    natural_lr: ClassVar[float | None] = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.initial < math.inf:
            raise BadArgument(f"AdaGradNorm: initial={self.initial!r} must be ≥ 0 and finite")

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        total = state.get("sum_squares", self.initial**2) + point.gradient_norm_squared
        if not total < math.inf:
            raise BadAnswer(
                f"AdaGradNorm: the sum of squared gradients is {total}, beyond the largest number there is. The "
                "oracle's gradients are far too large: scale the loss (and its gradients) down."
            )
        step = self.step_size(point, lr, decay)
        eta = self.representable(step / math.sqrt(total) if total > 0 else step, point)
        return Proposal(SquaredEuclidean().surrogate(point, eta), {"sum_squares": total}, eta)

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, sum_squares=lambda b: b == 0.0 or is_positive(b))
