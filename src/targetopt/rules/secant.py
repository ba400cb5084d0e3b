"""A metric in target space that is learned from past answers: where the gradient changed, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.surrogate import Surrogate
from targetopt.types import State, settle_whole


def inner(a: Tensor, b: Tensor) -> Tensor:
    """⟨a, b⟩ in the mean convention; leading axes of ``a`` beyond those of ``b`` are kept."""
    return present().average(a.reshape(-1, b.numel()) @ b.reshape(-1), b.shape[0])


class LowRank(NamedTuple):
    """B v = scale · v + Uᵀ core U v, with the rows of U as a ``(k, n, …)`` tensor."""

    scale: float
    basis: Tensor
    core: Tensor

    def divided(self, by: float) -> LowRank:
        return LowRank(self.scale / by, self.basis, self.core / by)

    def product(self, v: Tensor) -> Tensor:
        weights = self.core @ inner(self.basis, v)
        flat = weights @ self.basis.reshape(self.basis.shape[0], -1)
        return torch.add(flat.view_as(v), v, alpha=self.scale)


@dataclass(frozen=True)
class LowRankQuadratic(Surrogate):
    """q(z) = constant + ⟨linear, z − anchor⟩ + ½⟨z − anchor, B(z − anchor)⟩, B of low rank plus a multiple of I."""

    anchor: Tensor
    linear: Tensor
    metric: LowRank
    constant: Tensor

    from_slopes: ClassVar[bool] = True  # a product with B passes over all pairs

    def value(self, z: Tensor) -> Tensor:
        d = z - self.anchor
        return self.constant + present().mean(d * (self.linear + 0.5 * self.metric.product(d)))

    def gradient(self, z: Tensor) -> Tensor:
        return self.linear + self.metric.product(z - self.anchor)

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        d = after - before
        return present().mean(d * (gradient_before + 0.5 * self.metric.product(d)))

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self.metric.product(v)

    def minimiser(self) -> Tensor:
        scale, basis, core = self.metric
        flat = basis.reshape(basis.shape[0], -1)
        gram = present().average(flat @ flat.T, self.anchor.shape[0])
        # Woodbury: (sI + UᵀCU)⁻¹g = (g − Uᵀ(s + C UUᵀ)⁻¹ C U g)/s
        small = scale * torch.eye(len(flat), dtype=flat.dtype, device=flat.device) + core @ gram
        weights = torch.linalg.solve(small, core @ inner(basis, self.linear))
        step: Tensor = (self.linear - (weights @ flat).view_as(self.linear)) / scale
        return self.anchor - step


@dataclass(frozen=True)
class Secant:
    """B with B s_j = y_j for the last pairs s = z − z', y = g − g' of steps and changes of the gradient.

    Of all matrices that do this, with curvature γ outside the span of the steps,

        B = γ (I − S (SᵀS)⁻¹ Sᵀ) + Y H⁻¹ Yᵀ,      H = SᵀY made symmetric,

    is the multi-secant BFGS matrix. Directions in which H is not clearly positive (a non-convex loss,
    or noise) are left out, so B is always positive definite. γ is the
    geometric mean of ⟨s, y⟩/⟨s, s⟩ over the last two pairs.
    On a quadratic loss of rank r, B is its Hessian on everything seen, and r + 1 steps of a model that can
    reach its targets end at the minimum.

    Args:
        pairs: how many are kept; each is two arrays like the targets.

    Example:
        >>> step, change = torch.tensor([1.0, 0.0]), torch.tensor([4.0, 0.0])
        >>> state = Secant().remember({}, step, change)
        >>> Secant().metric(state, step).product(step)  # B s = y
        tensor([4., 0.])

    References: Schnabel, *Quasi-Newton methods using multiple secant equations*, 1983; Gratton, Malmedy,
    Toint, *Quasi-Newton updates with weighted secant equations*, 2015.
    """

    pairs: int = 40

    FLATTEST = 1e-8
    """Directions whose share of H's largest (normalised) eigenvalue is smaller are left out."""

    RECENT = 2
    """Pairs whose curvature stands for directions that no pair has seen."""

    def __post_init__(self) -> None:
        settle_whole(self, "pairs")

    def remember(self, state: State, step: Tensor, change: Tensor) -> State:
        """``state`` with one more pair; pairs without positive curvature are no use and not kept."""
        if not float(inner(step, change)) > 0:
            return state
        kept = {}
        for name, new in (("steps", step), ("changes", change)):
            old = state.get(name)
            rows = new.unsqueeze(0) if old is None else torch.cat([old, new.unsqueeze(0)])
            kept[name] = rows[-self.pairs :]
        return {**state, **kept}

    def metric(self, state: State, like: Tensor) -> LowRank:
        """B from the pairs in ``state``, of which there must be one."""
        steps, changes = state["steps"], state["changes"]
        world = present()
        k, n = steps.shape[0], world.rows(like.shape[0])
        S, Y = steps.reshape(k, -1).double(), changes.reshape(k, -1).double()
        met = world.sums((S * Y)[-self.RECENT :].sum(1)) / world.sums(
            (S * S)[-self.RECENT :].sum(1)
        )
        usual = float(met.log().mean().exp())
        # pairs of early steps are longer by orders of magnitude
        lengths = world.lengths(S.norm(dim=1)).unsqueeze(1)
        S, Y = S / lengths, Y / lengths
        # In the basis of H's eigenvectors each direction is its own secant pair, and bad ones drop out. Steps that are
        # nearly parallel leave few digits in the small eigenvalues; scaled by them, a second pass has all digits.
        for _ in range(2):
            H = world.sums(S @ Y.T)
            values, vectors = map(world.first, torch.linalg.eigh(0.5 * (H + H.T)))
            good = values > self.FLATTEST * values[-1]
            T = vectors[:, good].T / values[good].sqrt().unsqueeze(1)
            S, Y = T @ S, T @ Y
        overlap = world.first(torch.linalg.pinv(world.sums(S @ S.T), hermitian=True))
        zero = torch.zeros_like(overlap)
        core = n * torch.cat(
            [
                torch.cat([-usual * overlap, zero], dim=1),
                torch.cat([zero, torch.eye(len(zero)).to(zero)], dim=1),
            ]
        )
        basis = torch.cat([S, Y]).to(like.dtype).reshape(-1, *like.shape)
        return LowRank(usual, basis, core.to(like.dtype))
