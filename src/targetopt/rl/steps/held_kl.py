"""η held at a target KL."""

from __future__ import annotations

import math
from dataclasses import dataclass

from targetopt.rl.steps.base import Landing, StepSize, Verdict
from targetopt.types import BadArgument, State, as_number, settle_whole

LARGEST_CHANGE = 10.0
"""No solve changes η by more than this factor: KL ∝ η² holds for short steps only."""

SPAN = 1e12
"""η stays within this factor of the first one, so that 1/η is a number of every type."""


@dataclass(frozen=True)
class HeldKL(StepSize):
    """η such that mean KL(π_t ‖ π_{t+1}) comes out at ``target``; a step that goes further is solved again.

    For short steps KL ∝ η², so that the η which would have been right is η·√(target/KL). A landing with a KL above
    ``most`` times the target is solved again with that η, from z_t and without a new interaction; so is one below
    ``least`` times the target, where ``least`` is not 0. After ``tries`` solves a step that is still too far is
    refused: the policy stays, and the next step begins with the smaller η. The next η
    begins where this one should have been.

    Args:
        target: the KL to be held.
        most: how many times the target is still accepted.
        least: which share of the target is far enough; 0 accepts every short step.
        tries: solves of one step at most.
        eta: η of the very first step.

    Example:
        >>> step = HeldKL(0.01)
        >>> far = Landing(eta=1.0, tries=1, kl=0.04, promised=1.0, earned=1.0)
        >>> step.judge(far, {}).eta
        0.5
        >>> step.judge(Landing(0.5, 2, 0.01, 1.0, 1.0), {})
        Verdict(eta=None, state={'eta': 0.5})

    Reference: Schulman et al., 2015 (a KL that is held) and 2017, §4 (a penalty that adapts).
    """

    target: float = 0.01
    most: float = 1.5
    least: float = 0.0
    tries: int = 8
    eta: float = 1.0

    def __post_init__(self) -> None:
        settle_whole(self, "tries")
        if not (
            0.0 < as_number(self.target) < math.inf
            and 0.0 <= self.least < 1.0 < self.most < math.inf
            and 0.0 < as_number(self.eta) < math.inf
        ):
            raise BadArgument(
                "HeldKL needs target > 0, 0 ≤ least < 1 < most and eta > 0, all finite; got "
                f"target={self.target!r}, least={self.least!r}, most={self.most!r}, eta={self.eta!r}"
            )

    def first(self, state: State) -> float:
        return float(state.get("eta", self.eta))

    def judge(self, seen: Landing, state: State) -> Verdict:
        kl = seen.kl if math.isfinite(seen.kl) else math.inf
        factor = LARGEST_CHANGE if kl <= 0.0 else math.sqrt(self.target / kl)
        fitting = seen.eta * min(max(factor, 1.0 / LARGEST_CHANGE), LARGEST_CHANGE)
        fitting = min(max(fitting, self.eta / SPAN), self.eta * SPAN)
        kept: State = {"eta": fitting}
        too_far = kl > self.most * self.target
        too_short = kl < self.least * self.target
        if not (too_far or too_short):
            return Verdict(None, kept)
        if seen.tries < self.tries:
            return Verdict(fitting, kept)
        return Verdict(0.0 if too_far else None, kept)
