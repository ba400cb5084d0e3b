"""All that past answers say of a convex loss: the largest of their tangents, and a proximal term."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.rules.base import Proposal, Rule
from targetopt.rules.parts.evidence import SPAN, first_step, same_rows
from targetopt.surrogate import Surrogate
from targetopt.types import (
    BadArgument,
    MissingCapability,
    State,
    TargetPoint,
    check_entries,
    is_positive,
    is_table,
    settle_whole,
)

ROUNDING = 10.0
"""Units in the loss's last place by which decreases may be off before they decide anything."""


@dataclass(frozen=True)
class Cuts(Surrogate):
    """q(z) = τ log Σ_j exp(c_j(z)/τ) − τ log J + (1/2η)‖z − anchor‖², c_j(z) = ℓ_j + ⟨g_j, z − z_j⟩.

    The soft maximum lies between the largest cut minus τ log J and the largest cut, so that it never exceeds a
    convex loss, and is smooth: any inner solver can minimise it.

    Attributes:
        anchor: the centre of the proximal term, the last accepted targets.
        slopes: g_j, one row per cut.
        offsets: c_j at the anchor.
        eta: η.
        smoothing: τ, in units of the loss.
    """

    anchor: Tensor
    slopes: Tensor
    offsets: Tensor
    eta: float
    smoothing: float

    def _heights(self, z: Tensor) -> Tensor:
        """c_j(z)/τ."""
        flat = self.slopes.reshape(self.slopes.shape[0], -1)
        inner = flat @ (z - self.anchor).reshape(-1)
        return (self.offsets + present().average(inner, z.shape[0])) / self.smoothing

    def _weights(self, z: Tensor) -> Tensor:
        return torch.softmax(self._heights(z), dim=0)

    def _mixed(self, weights: Tensor) -> Tensor:
        return (weights @ self.slopes.reshape(len(weights), -1)).view_as(self.anchor)

    def value(self, z: Tensor) -> Tensor:
        heights = self._heights(z)
        largest = torch.logsumexp(heights, dim=0) - math.log(heights.shape[0])
        pull = present().mean((z - self.anchor).square())
        return self.smoothing * largest + pull / (2.0 * self.eta)

    def gradient(self, z: Tensor) -> Tensor:
        return self._mixed(self._weights(z)) + (z - self.anchor) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        # log Σ w_j exp(h'_j − h_j), with w the weights before: no cancellation of large heights
        old, new = self._heights(before), self._heights(after)
        rise = torch.logsumexp(torch.log_softmax(old, dim=0) + (new - old), dim=0)
        d = after - before
        pull = present().mean(d * (0.5 * d + (before - self.anchor))) / self.eta
        return self.smoothing * rise + pull

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        weights = self._weights(z)
        flat = self.slopes.reshape(len(weights), -1)
        along = present().average(flat @ v.reshape(-1), v.shape[0])
        spread = weights * (along - weights @ along)
        return self._mixed(spread) / self.smoothing + v / self.eta

    def minimiser(self) -> Tensor:
        """There is none in closed form: this is refused, with the way out."""
        raise MissingCapability(
            "Bundle's surrogate has no minimiser in closed form. Use an iterative inner solver such as "
            "to.LBFGS() instead of to.Exact()."
        )


@dataclass(frozen=True)
class Bundle(Rule):
    """z_{t+1} ≈ argmin max_j {ℓ_j + ⟨g_j, z − z_j⟩} + (1/2η)‖z − ẑ‖²: a proximal bundle of cuts.

    It is for *convex* losses with kinks, of which each answer gives a value and a subgradient: decisions
    made by a solver (SPO+), worst cases, robust losses. Every answer is a cut below the loss, and stays one:
    nothing that was paid for is thrown away. A new point becomes the centre ẑ if it brought a fair share of the
    decrease that the cuts promised (a serious step); otherwise only its cut is added (a null step), the
    parameters go back to ẑ and the surrogate is now better there. η grows after serious steps that went
    well, and shrinks after null steps.

    It compares answers about the same rows: full batches, or a `ScalarOracle`. On other rows the bundle begins anew.
    The first η is ``lr`` if it is given, else |ℓ|/‖g‖².

    Args:
        cuts: how many answers are kept; the oldest goes first, but for that of the centre.
        accept: share of the promised decrease that makes a step serious.
        smoothing: the maximum is smoothed on the scale of this share of the decrease that was last promised.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
        >>> opt = to.SSO([w], rule=to.Bundle(), inner=to.LBFGS(max_steps=50))
        >>> oracle = to.ScalarOracle(lambda z: z.abs().sum(), autograd=True)
        >>> for _ in range(20):
        ...     _ = opt.step(lambda: 1 * w, oracle)
        >>> opt.rewind()
        >>> bool(w.abs().sum() < 1e-3)
        True

    References: Lemaréchal 1978; Kiwiel, *Proximity control in bundle methods*, 1990; Bonnans et al., *Numerical
    Optimization*, 2006, ch. 10.
    """

    cuts: int = 40
    accept: float = 0.1
    smoothing: float = 0.01

    uniform: ClassVar[bool] = False
    searches: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"losses"})
    looks_back: ClassVar[bool] = True

    GROW = 2.0
    SHRINK = 0.8

    def __post_init__(self) -> None:
        settle_whole(self, "cuts", least=2)
        if not (0 < self.accept < 1 and 0 < self.smoothing < 1):
            raise BadArgument(
                f"Bundle needs 0 < accept < 1 and 0 < smoothing < 1; got accept={self.accept!r}, "
                f"smoothing={self.smoothing!r}"
            )

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        cut = self._cut(point)
        if not same_rows(point, state.get("centre"), state.get("index")):
            eta = lr or (float(state["eta"]) if "eta" in state else first_step(point))
            promised = max(0.5 * eta * point.gradient_norm_squared, torch.finfo(torch.float64).tiny)
            kept: State = {
                **cut,
                "eta": eta,
                "first": state.get("first", eta),
                "promised": promised,
            }
            return self._proposed(point, decay, kept)
        noise = ROUNDING * torch.finfo(point.targets.dtype).eps * abs(float(point.loss))
        lighter = float(state["penalty"]) - point.penalty  # weight decay counts in both
        height = float(state["height"])
        promised = height - self._largest(state, point.targets) + lighter + noise
        decrease = height - float(point.loss) + lighter + noise
        share = decrease / promised if promised > 0 else math.copysign(math.inf, decrease)
        serious = share >= self.accept and decrease > 0
        kept = self._joined(state, cut, centre_moves=serious)
        factor = self.GROW if share > 0.5 else 1.0 if serious else self.SHRINK
        first = float(state["first"])
        eta = min(max(float(state["eta"]) * factor, first / SPAN), first * SPAN)
        kept |= {"eta": eta, "first": first, "promised": max(promised, noise)}
        if serious:
            return self._proposed(point, decay, kept, share)
        centre = TargetPoint(
            state["centre"],
            point.targets.new_full(point.targets.shape[:1], float(state["height"])),
            state["slopes"][int(state["own"])],
            index=point.index,
            penalty=float(state["penalty"]),
        )
        return self._proposed(centre, decay, kept, share, returned=True)

    def _cut(self, point: TargetPoint) -> State:
        """The first cut of a bundle: the answer's value at zero, and its subgradient."""
        return {
            "slopes": point.gradients.unsqueeze(0),
            "values": self._at_zero(point).reshape(1),
            "own": 0,
        }

    @staticmethod
    def _at_zero(point: TargetPoint) -> Tensor:
        """ℓ_j − ⟨g_j, z_j⟩: a cut is this plus ⟨g_j, z⟩."""
        inner = present().mean((point.gradients * point.targets).double())
        return point.loss.double() - inner

    @staticmethod
    def _largest(state: State, z: Tensor) -> float:
        """max_j c_j(z): what the cuts so far say of these targets at least."""
        flat = state["slopes"].reshape(len(state["values"]), -1).double()
        inner = present().average(flat @ z.reshape(-1).double(), z.shape[0])
        return float((state["values"] + inner).max())

    def _joined(self, state: State, cut: State, *, centre_moves: bool) -> State:
        slopes = torch.cat([state["slopes"], cut["slopes"]])
        values = torch.cat([state["values"], cut["values"]])
        own = len(values) - 1 if centre_moves else int(state["own"])
        if len(values) > self.cuts:
            oldest = 1 if own == 0 else 0
            keep = torch.tensor([j for j in range(len(values)) if j != oldest])
            slopes, values, own = slopes[keep], values[keep], own - (oldest < own)
        return {"slopes": slopes, "values": values, "own": own}

    def _proposed(
        self,
        centre: TargetPoint,
        decay: float,
        kept: State,
        share: float = math.nan,
        *,
        returned: bool = False,
    ) -> Proposal:
        eta = self.representable(float(kept["eta"]) * decay, centre)
        z = centre.targets
        flat = kept["slopes"].reshape(len(kept["values"]), -1).double()
        inner = present().average(flat @ z.reshape(-1).double(), z.shape[0])
        offsets = (kept["values"] + inner).to(z.dtype)
        scale = abs(float(centre.loss)) * torch.finfo(z.dtype).eps ** 0.75
        smoothing = max(self.smoothing * float(kept["promised"]), scale, torch.finfo(z.dtype).tiny)
        surrogate = Cuts(z, kept["slopes"], offsets, eta, smoothing)
        about: State = {
            "centre": z,
            "height": float(centre.loss),
            "penalty": centre.penalty,
        }
        if centre.index is not None:
            about["index"] = centre.index
        return Proposal(surrogate, {**kept, **about}, eta, ratio=share, returned=returned)

    def check_state(self, state: State) -> None:
        check_entries(
            "Bundle",
            state,
            eta=is_positive,
            first=is_positive,
            promised=is_positive,
            slopes=is_table,
            values=is_table,
            centre=is_table,
            own=lambda place: isinstance(place, int) and 0 <= place < len(state["values"]),
        )

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the first answer gives the first η
