"""η by the share of its promise that a step keeps."""

from __future__ import annotations

from dataclasses import dataclass

from targetopt.rl.steps.base import Landing, StepSize, Verdict
from targetopt.types import BadArgument, State, settle_whole


@dataclass(frozen=True)
class TrustRatio(StepSize):
    """The trust-region rule: η grows where the policy gradient is a good model of the step, and shrinks where not.

    With r = earned / promised, what importance sampling says that the step earns over what the policy gradient
    promises: r < ``accept`` refuses the landing and solves again with ``shrink`` times η, r > ``good`` lets the next
    step begin with ``grow`` times η.

    Args:
        accept: the least r that is kept.
        good: the r from which η grows.
        shrink: factor on η after a refusal.
        grow: factor on η after a good step.
        tries: solves of one step at most; then the step is refused and nothing moves.
        eta: η of the very first step.

    Reference: Conn, Gould, Toint, *Trust-Region Methods*, 2000, ch. 6.
    """

    accept: float = 0.1
    good: float = 0.75
    shrink: float = 0.5
    grow: float = 1.5
    tries: int = 8
    eta: float = 1.0

    def __post_init__(self) -> None:
        settle_whole(self, "tries")
        if not (0 < self.accept < self.good < 1 and 0 < self.shrink < 1 < self.grow < float("inf")):
            raise BadArgument(
                "TrustRatio needs 0 < accept < good < 1 and 0 < shrink < 1 < grow; got "
                f"accept={self.accept!r}, good={self.good!r}, shrink={self.shrink!r}, grow={self.grow!r}"
            )
        if not 0.0 < self.eta < float("inf"):
            raise BadArgument(f"TrustRatio: eta={self.eta!r} must be positive and finite")

    def first(self, state: State) -> float:
        return float(state.get("eta", self.eta))

    def judge(self, seen: Landing, state: State) -> Verdict:
        if seen.promised > 0 and seen.earned >= self.accept * seen.promised:
            good = seen.earned >= self.good * seen.promised
            return Verdict(None, {"eta": seen.eta * (self.grow if good else 1.0)})
        smaller = seen.eta * self.shrink
        again = seen.tries < self.tries
        return Verdict(smaller if again else 0.0, {"eta": smaller})
