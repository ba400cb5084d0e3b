"""SSO-SLS: the target step found by backtracking in target space."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from targetopt.distributed.world import present
from targetopt.divergence import SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.types import (
    BadArgument,
    State,
    TargetPoint,
    check_entries,
    is_positive,
    settle_whole,
)

ROUNDING = 8.0
"""Units in the loss's last place by which the comparison may be off. Without them, ties (η = 1/L at c = ½
on a squared loss) are decided by rounding, and no step is ever found where the loss is flat."""


@dataclass(frozen=True)
class LineSearch(Rule):
    """Armijo in target space: the first η with ℓ(z − ηg) ≤ ℓ(z) − c·η·‖g‖² (paper §5, SSO-SLS).

    The search begins at ``grow`` times the last accepted step, never above ``lr`` if one is given;
    the first begins at ``lr``, or at 1/L, or at 1. A schedule multiplies the accepted step. Each
    trial is one *value* call of the oracle, counted apart from gradient calls.

    Args:
        c: share of the linear decrease that must be realised; ½ accepts 1/L.
        shrink: factor after a rejected trial.
        grow: factor on the last accepted step at the next step's first trial. On mini-batches of data that
            cannot be fitted, 2 ** (b / n) is safer: the step then doubles in an epoch, as SLS lets it.
        max_backtracks: trials after the first. Then η = 2(1 − c)/L is taken, which the condition
            accepts wherever it is (the last η, if it is smaller). Where L is not known no step is taken:
            the targets stay where they are (``report.eta`` is 0), so the loss never rises, and the next
            search goes on from the η this one came down to; afresh, if rounding swallowed even that.

    Where the gradient is zero every η would do: none is tried, and the last one is remembered.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> y = torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> opt = to.SSO([w], rule=to.LineSearch(), inner=to.Exact())
        >>> report = opt.step(lambda: x @ w, to.LossOracle(to.losses.Logistic(y)))
        >>> report.eta, report.oracle_calls, report.value_calls
        (4.0, 1, 1)

    Reference: Vaswani et al., *Painless Stochastic Gradient*, NeurIPS 2019; paper §5.
    """

    c: float = 0.5
    shrink: float = 0.5
    grow: float = 2.0
    max_backtracks: int = 60

    needs: ClassVar[frozenset[str]] = frozenset({"losses", "value"})
    searches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (0 < self.c < 1 and 0 < self.shrink < 1 <= self.grow):
            raise BadArgument(
                "LineSearch needs 0 < c < 1 and 0 < shrink < 1 ≤ grow; got "
                f"c={self.c!r}, shrink={self.shrink!r}, grow={self.grow!r}"
            )
        settle_whole(self, "max_backtracks", least=0)

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        assert point.value is not None  # `check` has refused such oracles
        loss, slope = float(point.loss), point.gradient_norm_squared
        if slope == 0.0:
            # η must not grow here: after many such batches no search would take it back.
            used = self._first_trial(point, lr, state, grow=1.0) * decay
            return Proposal(SquaredEuclidean().surrogate(point, used), state, used)
        eta = self._first_trial(point, lr, state, self.grow)
        allowance = ROUNDING * torch.finfo(point.targets.dtype).eps * abs(loss)
        for _ in range(self.max_backtracks + 1):
            trial = present().mean(point.value(point.targets - eta * point.gradients))
            if float(trial) <= loss - self.c * eta * slope + allowance:
                break
            eta *= self.shrink
        else:
            if point.smoothness is None:
                swallowed = present().all(
                    torch.equal(point.targets - eta * point.gradients, point.targets)
                )
                return Proposal.nowhere(point, {} if swallowed else {"eta": eta / self.grow})
            # Where losses vanish, η grows by orders of magnitude that no search takes back on a batch
            # that is not fitted yet.
            eta = min(eta, self.safe_step(point.smoothness))
        used = eta * decay
        if not used * torch.finfo(point.targets.dtype).max > 1.0:  # 1/η would not be a number
            return Proposal.nowhere(point, {})
        return Proposal(SquaredEuclidean().surrogate(point, used), {"eta": eta}, used)

    def check_state(self, state: State) -> None:
        check_entries(type(self).__name__, state, eta=is_positive)

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # it finds its own η

    def safe_step(self, smoothness: float | None) -> float:
        """The largest η that the condition accepts on every L-smooth loss: 2(1 − c)/L.

        >>> LineSearch(c=0.5).safe_step(0.25)
        4.0
        """
        return math.inf if smoothness is None else 2.0 * (1.0 - self.c) / smoothness

    def _first_trial(
        self, point: TargetPoint, lr: float | None, state: State, grow: float
    ) -> float:
        if "eta" in state:
            # where every step is accepted (a loss that falls for ever), η would leave the numbers
            largest = 1.0 / torch.finfo(point.targets.dtype).tiny
            grown = min(float(state["eta"]) * grow, largest)
            return grown if lr is None else min(grown, lr)
        return self.first_step(lr, point.smoothness)

    @staticmethod
    def first_step(lr: float | None, smoothness: float | None) -> float:
        """Where the very first search begins: at lr, or 1/L, or 1.

        >>> LineSearch.first_step(None, 0.25)
        4.0
        """
        if lr is not None:
            return lr
        return 1.0 if smoothness is None else 1.0 / smoothness
