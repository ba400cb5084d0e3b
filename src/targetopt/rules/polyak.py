"""The target step from a known lower bound of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.types import BadArgument, State, TargetPoint


@dataclass(frozen=True)
class Polyak(Rule):
    """η_t = (ℓ(z_t) − floor)/‖g_t‖²: the step at which the linear model reaches the floor.

    It suits losses whose smallest value is known, such as 0 for a model that can fit everything. No
    smoothness and no step size is needed, and no value calls are made. ``lr`` bounds η from above if
    it is given; a schedule multiplies η. Where the loss is at (or below) the floor nothing moves.

    Args:
        floor: a lower bound of the mean loss. Too high a floor stops the run early; too low a floor
            makes steps too long.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.ones(2, dtype=torch.float64)))
        >>> opt = to.SSO([w], rule=to.Polyak(), inner=to.Exact())
        >>> opt.step(lambda: 1 * w, oracle).eta  # (½ − 0)/1
        0.5

    Reference: Polyak, *Introduction to Optimization*, 1987, §5.3.2; Loizou et al., *Stochastic Polyak
    Step-size for SGD*, AISTATS 2021.
    """

    floor: float = 0.0

    needs: ClassVar[frozenset[str]] = frozenset({"losses"})

    def __post_init__(self) -> None:
        if not math.isfinite(self.floor):
            raise BadArgument(
                f"Polyak: floor={self.floor!r} must be finite: it bounds the loss from below"
            )

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        squared = float(point.gradient_norm_squared)
        above = float(point.loss) - self.floor
        if squared == 0.0 or above <= 0.0:
            return Proposal.nowhere(point, state)
        eta = min(above / squared, math.inf if lr is None else lr) * decay
        eta = self.representable(eta, point)
        return Proposal(SquaredEuclidean().surrogate(point, eta), state, eta)

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the floor takes its place
