"""Follow the regularised leader in target space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
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
from targetopt.types import State, TargetPoint, check_entries, is_table


@dataclass(frozen=True)
class FTRL(Rule):
    """q(z) = ⟨Σ_{s≤t} g_s, z⟩ + (1/2η_t)‖z − z_1‖²: all past gradients, one proximal term (paper §4).

    Each example remembers the sum of its gradients and the targets at which it was first seen, per
    data row with ``index=``, else per position (``report.memory`` says which). A row that occurs several
    times in one batch counts once, with the mean of its gradients and targets. The constant makes
    q(z_t) = ℓ(z_t). As the surrogate sums t losses, SSO's weight decay counts t times in it.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.tensor([1.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=0.5, rule=to.FTRL(), inner=to.Exact())
        >>> for _ in range(2):
        ...     _ = opt.step(lambda: 1 * w, oracle)
        >>> w.detach()  # the same as two gradient steps in target space
        tensor([0.7500], dtype=torch.float64)

    Reference: Abernethy et al. 2009; McMahan, *Follow-the-Regularized-Leader*, 2011.
    """

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        eta = self.step_size(point, lr, decay)
        z, rows = point.targets, rows_of(point)
        sums = grown(state.get("gradient_sum"), point)
        starts = grown(state.get("start"), point)
        counts = torch.zeros(starts.shape[0], dtype=torch.long, device=z.device)
        if "count" in state:
            counts[: state["count"].shape[0]] = state["count"]
        new = (counts[rows] == 0).reshape(-1, *([1] * (z.ndim - 1)))
        starts[rows] = torch.where(new, averaged(z, point), starts[rows])
        counts[rows] += 1
        sums[rows] += averaged(point.gradients, point)
        surrogate = Quadratic(starts[rows], sums[rows], z.new_tensor(1.0 / eta), point.loss)
        surrogate = replace(surrogate, constant=2 * point.loss - surrogate.value(z))
        kept = {"gradient_sum": sums, "start": starts, "count": counts}
        check_sums("FTRL", sums[rows])
        summed = float(present().mean(counts[rows].double()))
        return Proposal(surrogate, kept, eta, memory_kind(point), summed)

    def check_targets(self, z: Tensor, index: Tensor | None, state: State) -> None:
        check_memory(type(self).__name__, state.get("gradient_sum"), z, index)

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state)
        sums, known = state.get("gradient_sum"), state.keys() >= {"start", "count"}
        shape = sums.shape if isinstance(sums, Tensor) else None

        def are_counts(value: Any) -> bool:
            whole = isinstance(value, Tensor) and value.dtype == torch.long
            return whole and value.shape == (shape or ())[:1] and bool((value >= 0).all())

        check_entries(
            type(self).__name__,
            state,
            gradient_sum=lambda table: is_table(table) and known,
            start=lambda table: is_table(table) and table.shape == shape,
            count=are_counts,
        )
