"""AdaGrad in target space, one adaptive step per example and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from targetopt.distributed.world import present
from targetopt.rules.base import Proposal, Rule
from targetopt.rules.tables import (
    averaged,
    check_memory,
    check_sums,
    grown,
    memory_kind,
    rows_of,
)
from targetopt.surrogate import Quadratic
from targetopt.types import BadArgument, State, TargetPoint, check_entries, is_table


@dataclass(frozen=True)
class AdaGrad(Rule):
    """G_ij ← G_ij + g_ij², metric W_ij = (√G_ij + eps)/lr; half-step z − lr·g/(√G + eps) (App. E.3).

    With ``step(..., index=rows)`` every data row has its own memory. Without it the memory is per
    position in the batch, which is right for the full batch only; ``report.memory`` says which. A row
    that occurs several times in one batch remembers the mean of its g². ``lr=None`` means 1. The memory
    is copied once per outer step (that keeps a step atomic).

    Args:
        eps: keeps the metric positive where no gradient was seen.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(
        ...     to.losses.Squared(torch.tensor([3.0, -5.0], dtype=torch.float64))
        ... )
        >>> opt = to.SSO([w], lr=1.0, rule=to.AdaGrad(), inner=to.Exact())
        >>> opt.step(lambda: 1 * w, oracle).memory
        'per position'
        >>> w.detach().round()
        tensor([ 1., -1.], dtype=torch.float64)

    Reference: Duchi, Hazan, Singer, *Adaptive Subgradient Methods*, JMLR 2011.
    """

    eps: float = 1e-10

    natural_lr: ClassVar[float | None] = 1.0
    uniform: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.eps < float("inf"):
            raise BadArgument(f"AdaGrad: eps={self.eps!r} must be positive and finite")

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        table = grown(state.get("sum_squares"), point)
        rows = rows_of(point)
        table[rows] += averaged(point.gradients.square(), point)
        check_sums("AdaGrad", table[rows])
        step = self.step_size(point, lr, decay)
        metric = (table[rows].sqrt() + self.eps) / step
        surrogate = Quadratic(point.targets, point.gradients, metric, point.loss)
        eta = float(present().average(metric.reciprocal().sum(), metric.numel()))
        return Proposal(surrogate, {"sum_squares": table}, eta, memory_kind(point))

    def check_targets(self, z: Tensor, index: Tensor | None, state: State) -> None:
        check_memory(type(self).__name__, state.get("sum_squares"), z, index)

    def check_state(self, state: State) -> None:
        check_entries(
            type(self).__name__,
            state,
            sum_squares=lambda table: is_table(table) and bool((table >= 0).all()),
        )
