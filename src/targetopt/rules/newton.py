"""SSO-Newton: the metric is the loss's own curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.rules.base import Proposal, Rule
from targetopt.surrogate import Quadratic
from targetopt.types import BadAnswer, BadArgument, State, TargetPoint


@dataclass(frozen=True)
class Newton(Rule):
    """W_i = max(∇²ℓ_i(z_t), floor)/η, evaluated at z_t and held fixed (paper App. B.1).

    For logistic loss p(1 − p). Where each example has a curvature matrix (softmax), its eigenvalues
    are floored. ``lr=None`` means 1, the full Newton step.

    Args:
        floor: smallest curvature used. A confident mistake has a gradient near 1 and hardly any
            curvature, and would move by 1/floor. On the full batch a small floor (1e-4) is faster,
            on mini-batches it diverges. The default is one of five values tried on one problem
            (breast_cancer, batch 64 and full, one seed); larger m may still need 0.1 or a smaller lr.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Logistic(torch.tensor([1.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], rule=to.Newton(), inner=to.Exact())
        >>> _ = opt.step(lambda: 1 * w, oracle)
        >>> w.detach()  # −g/p(1−p) = 0.5/0.25
        tensor([2.], dtype=torch.float64)

    Reference: paper App. B.1.
    """

    floor: float = 0.03

    needs: ClassVar[frozenset[str]] = frozenset({"curvature"})
    natural_lr: ClassVar[float | None] = 1.0
    uniform: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.floor < float("inf"):
            raise BadArgument(f"Newton: floor={self.floor!r} must be positive and finite")

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        assert point.curvature is not None  # `check` has refused such oracles
        eta = self.step_size(point, lr, decay)
        metric = self._floored(point.curvature(), point.targets) / eta
        return Proposal(Quadratic(point.targets, point.gradients, metric, point.loss), state, eta)

    def _floored(self, curvature: Tensor, z: Tensor) -> Tensor:
        if not torch.isfinite(curvature).all():
            raise BadAnswer("the oracle's curvature has entries that are not finite")
        if curvature.shape == z.shape:
            return curvature.clamp_min(self.floor)
        if z.ndim == 2 and curvature.shape == (*z.shape, z.shape[1]):
            values, vectors = torch.linalg.eigh(curvature)
            floored: Tensor = (vectors * values.clamp_min(self.floor).unsqueeze(1)) @ vectors.mT
            return floored
        raise BadAnswer(
            f"the oracle's curvature has shape {tuple(curvature.shape)}; targets of shape {tuple(z.shape)} "
            f"need {tuple(z.shape)} (diagonal) or one matrix per example"
        )
