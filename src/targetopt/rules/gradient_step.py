"""The target smoothness surrogate: the paper's SSO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.types import State, TargetPoint


@dataclass(frozen=True)
class GradientStep(Rule):
    """q(z) = ℓ(z_t) + ⟨g, z − z_t⟩ + (1/2η)‖z − z_t‖², minimised at z_t − ηg (paper §3, §4).

    For η ≤ 1/L it is an upper bound of the loss, so any decrease of q decreases the loss. With a step for each row
    (``opt.step(…, scales=s)``) the last term is mean_i ‖z_i − z_t,i‖²/(2ηs_i), minimised at z_t,i − ηs_i g_i.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> y = torch.tensor([2.0], dtype=torch.float64)
        >>> opt = to.SSO([w], lr=1.0, rule=to.GradientStep(), inner=to.Exact())
        >>> _ = opt.step(lambda: 3 * w, to.LossOracle(to.losses.Squared(y)))
        >>> torch.allclose(3 * w, y)
        True

    Reference: Lavington et al., *Target-based Surrogates for Stochastic Optimization*, ICML 2023.
    """

    monotone: ClassVar[bool] = True

    @property
    def weighted(self) -> bool:
        return True

    @property
    def scaled(self) -> bool:
        return True

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        eta = self.step_size(point, lr, decay)
        return Proposal(SquaredEuclidean().surrogate(point, eta), state, eta)
