"""How far a policy goes from the last one, measured by KL: mirror descent on policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.distributions.base import Family
from targetopt.divergence import Divergence
from targetopt.surrogate import Surrogate
from targetopt.types import BadForward, MissingCapability, TargetPoint


@dataclass(frozen=True)
class ProximalPolicy(Surrogate):
    """q(z) = constant + ⟨g, z − a⟩ + (1/η) mean KL(π_{a_i} ‖ π_{z_i}), or with the two exchanged."""

    anchor: Tensor
    linear: Tensor
    eta: float
    constant: Tensor
    divergence: KLProximity

    def rows(self, index: Tensor | slice) -> ProximalPolicy:
        return replace(self, anchor=self.anchor[index], linear=self.linear[index])

    def _divergences(self, z: Tensor) -> Tensor:
        return self.divergence.value(z, self.anchor)

    def value(self, z: Tensor) -> Tensor:
        linear = present().mean((z - self.anchor) * self.linear)
        return self.constant + linear + present().mean(self._divergences(z)) / self.eta

    def gradient(self, z: Tensor) -> Tensor:
        return self.linear + self.divergence.gradient(z, self.anchor) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        linear = present().mean((after - before) * self.linear)
        moved = self._divergences(after) - self._divergences(before)
        return linear + present().mean(moved) / self.eta

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self.divergence.curvature_product(z, self.anchor, v) / self.eta

    def minimiser(self) -> Tensor:
        """There is none in closed form: this is refused, with the way out."""
        raise MissingCapability(
            "KLProximity has no minimiser in closed form. Use an iterative inner solver such as to.LBFGS() instead of "
            "to.Exact()."
        )


@dataclass(frozen=True)
class KLProximity(Divergence):
    """D(z, z') = KL(π_{z'} ‖ π_z), or KL(π_z ‖ π_{z'}) with ``reverse=True``: the same for every way to write a policy.

    For logits, D is the Bregman divergence of log Σ exp: mirror descent in natural parameters. For
    `Probabilities` with ``reverse=True`` it is that of the negative entropy. For a Gaussian of fixed σ it is
    ‖z − z'‖²/2σ², which makes the step a natural gradient.

    Args:
        family: how targets are read.
        reverse: whether the new policy is the first argument of KL, as in mirror descent policy optimisation.

    Example:
        >>> import targetopt as to
        >>> from targetopt.distributions import Categorical
        >>> rule = to.MirrorDescent(KLProximity(Categorical(2)))
        >>> logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.CrossEntropy(torch.tensor([0])))
        >>> opt = to.SSO([logits], lr=0.5, rule=rule, inner=to.LBFGS(max_steps=50))
        >>> _ = opt.step(lambda: 1 * logits, oracle)
        >>> logits.softmax(1).detach()  # π − ηg = (½ + ½·½, ½ − ½·½)
        tensor([[0.7500, 0.2500]], dtype=torch.float64)

    Reference: Vaswani et al., *A general class of surrogate functions for stable and efficient reinforcement
    learning*, AISTATS 2022; Tomar et al., *Mirror descent policy optimization*, ICLR 2022; paper, App. B.2.
    """

    family: Family
    reverse: bool = False

    def surrogate(self, point: TargetPoint, eta: float) -> ProximalPolicy:
        self.check(point.targets)
        return ProximalPolicy(point.targets, point.gradients, eta, point.loss, self)

    def value(self, z: Tensor, reference: Tensor) -> Tensor:
        first: Any = self.family.from_targets(reference)
        second: Any = self.family.from_targets(z)
        kl: Tensor = second.kl(first) if self.reverse else first.kl(second)
        return kl

    def gradient(self, z: Tensor, reference: Tensor) -> Tensor:
        last = self.family.from_targets(reference)
        if self.reverse:
            return self.family.divergence_gradient(z, last)
        return self.family.cross_entropy_gradient(z, self.family.moments(last))

    def curvature_product(self, z: Tensor, reference: Tensor, v: Tensor) -> Tensor:
        last = self.family.from_targets(reference)
        curvature = (
            self.family.divergence_curvature(z, last)
            if self.reverse
            else self.family.cross_entropy_curvature(z, self.family.moments(last))
        )
        if curvature.ndim == v.ndim:
            return curvature * v
        found: Tensor = torch.einsum("nij,nj->ni", curvature, v)
        return found

    def check(self, z: Tensor) -> None:
        if z.ndim != 2 or z.shape[1] != self.family.size:
            raise BadForward(
                f"KLProximity reads targets of shape (n, {self.family.size}), the {self.family.noun}; the forward "
                f"gives {tuple(z.shape)}"
            )
