"""The upper bound that the oracle itself reveals: no step size at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from targetopt.distributed.world import present
from targetopt.rules.base import Proposal, Rule
from targetopt.surrogate import Surrogate
from targetopt.types import BadAnswer, State, TargetPoint

TOUCHES = 2.0 / 3.0
"""A majoriser's value at z_t may be off by ε to this power, relatively: what rounding does to a solver."""


@dataclass(frozen=True)
class Majoriser(Rule):
    """q_t is what the oracle revealed: an upper bound of ℓ that touches it at z_t (majorise, then minimise).

    Some oracles know more than a gradient at z_t: a function q_t of the targets with q_t(z) ≥ ℓ(z)
    everywhere and equality at z_t, given as a `Surrogate` (`TargetPoint.majoriser`). Minimising it needs no
    step size, and the loss of a full batch never rises, however few inner steps are taken. Examples are
    the compliance of a structure, by its complementary energy
    (``targetopt.lab.problems.physics.compliance``), and every loss with a finite L, whose quadratic
    bound makes this rule `GradientStep` with η = 1/L.

    ``lr`` is left out; if it is given, (1/2η)‖z − z_t‖² is added, which still bounds ℓ from above.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.tensor([1.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], rule=to.Majoriser(), inner=to.LBFGS(max_steps=20))
        >>> _ = opt.step(lambda: 1 * w, oracle)
        >>> round(w.item(), 6)  # a quadratic is its own bound
        1.0

    Reference: Lange, *MM Optimization Algorithms*, 2016; Mairal, *Optimization with first-order surrogate
    functions*, ICML 2013.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"losses", "majoriser"})
    monotone: ClassVar[bool] = True
    unbounded: ClassVar[bool] = True
    uniform: ClassVar[bool] = False
    natural_lr: ClassVar[float | None] = math.inf

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        bound = point.majoriser
        assert bound is not None  # `check` has refused such oracles
        self._check_touching(bound, point)
        eta = self.resolved(lr, None) * decay
        if eta == math.inf:
            return Proposal(bound, state, eta)
        return Proposal(bound.damped(self.representable(eta, point)), state, eta)

    def _check_touching(self, bound: Surrogate, point: TargetPoint) -> None:
        """Refuse a function that is not the loss at z_t: it bounds something else."""
        if present().size > 1:  # a bound of the user's may know the loss of one rank's rows alone
            return
        there, loss = float(bound.value(point.targets)), float(point.loss)
        allowed = torch.finfo(point.targets.dtype).eps ** TOUCHES * (abs(loss) + 1e-300)
        if not abs(there - loss) <= allowed:
            raise BadAnswer(
                f"Majoriser: the oracle's majoriser is {there:g} at the targets that were asked about, and the loss "
                f"there is {loss:g}. They must be equal: return a Surrogate whose value(z) at z_t is the mean "
                "loss (for a scalar loss, the loss itself)."
            )
