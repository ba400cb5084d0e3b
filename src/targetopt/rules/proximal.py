"""The revealed loss itself, with a proximal term: no linearisation where none is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from targetopt.distributed.world import present
from targetopt.losses import Loss
from targetopt.rules.base import Proposal, Rule
from targetopt.rules.parts.evidence import (
    WEIGHED_GAIN,
    adapted,
    anchored,
    evidence,
    first_step,
    same_rows,
)
from targetopt.surrogate import Surrogate
from targetopt.types import (
    MissingCapability,
    State,
    TargetPoint,
    check_entries,
    is_positive,
    is_table,
)

SHORT = 1e-3
"""Steps of targets over which Simpson's rule is as exact as rounding: its error goes with the fifth power."""

REPEATS = 2
"""After so many repetitions, and nothing else, the rows are taken to be the whole problem."""


@dataclass(frozen=True)
class ProximalLoss(Surrogate):
    """q(z) = ℓ(z) + (1/2η)‖z − anchor‖², with the loss of every example known; η = ∞ leaves ℓ alone."""

    anchor: Tensor
    loss: Loss
    eta: float

    def value(self, z: Tensor) -> Tensor:
        pull = present().mean((z - self.anchor).square())
        return present().mean(self.loss.value(z)) + pull / (2.0 * self.eta)

    def gradient(self, z: Tensor) -> Tensor:
        return self.loss.gradient(z) + (z - self.anchor) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        d = after - before
        pull = present().mean(d * (0.5 * d + (before - self.anchor))) / self.eta
        return self._change_of_loss(before, after, d) + pull

    def _change_of_loss(self, before: Tensor, after: Tensor, d: Tensor) -> Tensor:
        """By values; over short steps, where these agree in most digits, by Simpson's rule along the gradient."""
        if bool((d.abs() > SHORT).any()):
            return present().mean(self.loss.value(after) - self.loss.value(before))
        slope = self.loss.gradient
        return present().mean(
            d * (slope(before) + 4.0 * slope(before + 0.5 * d) + slope(after)) / 6.0
        )

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self.loss.curve(self.loss.evaluate(z).metric, v) + v / self.eta

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
    pulling the model away from all others. How far one batch can be trusted depends on the data: on noisy data
    a short η is best, on data that the model can fit a long one, by orders of magnitude.

    With ``lr=None`` η begins at 1/L, or at |ℓ|/‖g‖² where L is not known, and then follows what fresh rows
    say: η ← η · exp(−⟨g, δ⟩ / max(‖g‖‖δ‖, s)) compares how the last step moved rows that it has not seen, δ, with where
    they want to go, −g, and s is the mean of ‖g‖‖δ‖ over the last answers, so that batches which are fitted already
    have little say. That costs one forward per step and no oracle call. Where every
    question so far was about the same rows they are all there is: η is infinite from the third one on, and
    the loss is minimised as it stands.

    With ``lr=`` η is what is given. ``lr=float("inf")`` leaves the proximal term out: the inner solver takes
    m steps on the batch loss itself, which is called data echoing.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        >>> oracle = to.LossOracle(to.losses.Squared(torch.tensor([1.0], dtype=torch.float64)))
        >>> opt = to.SSO([w], lr=1.0, rule=to.Proximal(), inner=to.LBFGS(max_steps=20))
        >>> _ = opt.step(lambda: 1 * w, oracle)
        >>> round(w.item(), 6)  # argmin ½(z − 1)² + ½z²
        0.5

    References: Rockafellar 1976; Asi, Duchi, *Stochastic (approximate) proximal point methods*, 2019; Choi
    et al., *Faster neural network training with data echoing*, 2019; Baydin et al., *Online learning rate
    adaptation with hypergradient descent*, 2018.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"revealed"})
    unbounded: ClassVar[bool] = True
    uniform: ClassVar[bool] = False
    looks_back: ClassVar[bool] = True

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        assert point.revealed is not None  # `check` has refused such oracles
        if lr is not None:
            eta = math.inf if lr == math.inf else self.representable(lr * decay, point)
            return Proposal(ProximalLoss(point.targets, point.revealed, eta), {}, eta)
        kept = {**self._adapted(point, state), **anchored(point)}
        whole = kept["repeats"] >= REPEATS
        eta = math.inf if whole else self.representable(kept["eta"] * decay, point)
        return Proposal(ProximalLoss(point.targets, point.revealed, eta), kept, eta)

    @staticmethod
    def _adapted(point: TargetPoint, state: State) -> State:
        if "eta" not in state:
            first = 1.0 / point.smoothness if point.smoothness else first_step(point)
            return {"eta": first, "first": first, "usual": 0.0, "repeats": 0}
        kept = {name: state[name] for name in ("eta", "first", "repeats")}
        kept["usual"] = state.get("usual", 0.0)  # states that were saved before it was kept
        if same_rows(point, state.get("targets"), state.get("index")):
            return {**kept, "repeats": kept["repeats"] + (kept["repeats"] >= 0)}
        said = evidence(point, float(state["penalty"]))
        usual = said.averaged(kept["usual"])
        eta = adapted(kept["eta"], said.beside(usual), kept["first"], WEIGHED_GAIN)
        return {**kept, "eta": eta, "usual": usual, "repeats": -1}

    def check_state(self, state: State) -> None:
        check_entries(
            "Proximal",
            state,
            eta=is_positive,
            first=is_positive,
            usual=lambda size: isinstance(size, float) and 0.0 <= size < math.inf,
            targets=is_table,
            repeats=lambda count: isinstance(count, int) and count >= -1,
        )

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the first answer gives the first η
