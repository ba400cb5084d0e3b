"""The revealed loss itself, with a proximal term: no linearisation where none is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from targetopt.losses import Loss
from targetopt.rules.base import Proposal, Rule
from targetopt.surrogate import Surrogate
from targetopt.types import MissingCapability, State, TargetPoint


@dataclass(frozen=True)
class ProximalLoss(Surrogate):
    """q(z) = ℓ(z) + (1/2η)‖z − anchor‖², with the loss of every example known; η = ∞ leaves ℓ alone."""

    anchor: Tensor
    loss: Loss
    eta: float

    def value(self, z: Tensor) -> Tensor:
        pull = (z - self.anchor).square().sum() / z.shape[0]
        return self.loss.value(z).mean() + pull / (2.0 * self.eta)

    def gradient(self, z: Tensor) -> Tensor:
        return self.loss.gradient(z) + (z - self.anchor) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        d = after - before
        pull = (d * (0.5 * d + (before - self.anchor))).sum() / (self.eta * d.shape[0])
        return (self.loss.value(after) - self.loss.value(before)).mean() + pull

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self.loss.curve(self.loss.curvature(z), v) + v / self.eta

    def minimiser(self) -> Tensor:
        """There is none in closed form: this is refused, with the way out."""
        raise MissingCapability(
            "Proximal's surrogate has no minimiser in closed form. Use an iterative inner solver such as "
            "to.LBFGS() instead of to.Exact()."
        )


@dataclass(frozen=True)
class Proximal(Rule):
    """z_{t+1} = argmin ℓ(z) + (1/2η)‖z − z_t‖²: for oracles that reveal the loss itself, labels for instance.

    Where the answer to a question reveals the labels, the loss of this batch is known everywhere, and
    nothing forces us to linearise it. What the proximal term still does is to keep one batch from
    pulling the model away from all others. η = ∞ (``lr=float("inf")``) leaves it out: the inner solver then
    takes m steps on the batch loss itself, which is called data echoing. With ``lr=None``, η = 1/(2L).

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.tensor([1.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=1.0, rule=to.Proximal(), inner=to.LBFGS(max_steps=20))
        >>> _ = opt.step(lambda: 1 * w, oracle)
        >>> round(w.item(), 6)  # argmin ½(z − 1)² + ½z²
        0.5

    References: Rockafellar 1976; Asi, Duchi, *Stochastic (approximate) proximal point methods*, 2019; Choi
    et al., *Faster neural network training with data echoing*, 2019.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"revealed"})
    unbounded: ClassVar[bool] = True
    uniform: ClassVar[bool] = False

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        assert point.revealed is not None  # `check` has refused such oracles
        eta = math.inf if lr == math.inf else self.step_size(point, lr, decay)
        return Proposal(ProximalLoss(point.targets, point.revealed, eta), state, eta)
