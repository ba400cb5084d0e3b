"""η by backtracking: the largest that keeps a share of its promise."""

from __future__ import annotations

from dataclasses import dataclass

from targetopt.rl.steps.base import Landing, StepSize, Verdict
from targetopt.types import BadArgument, State, settle_whole


@dataclass(frozen=True)
class ArmijoStep(StepSize):
    """Backtracking in target space: the first η with earned ≥ c · promised, from ``grow`` times the last one down.

    What a step earns is measured by importance sampling in the visited states, and what it promises is the policy
    gradient's. Each trial is an inner solve and no interaction.

    Args:
        c: the share of the promise that must be kept.
        shrink: factor on η after a trial that is not accepted.
        grow: factor on the last accepted η at the next step's first trial.
        tries: solves of one step at most; then the step is refused and nothing moves.
        eta: where the very first search begins.

    Reference: Armijo, 1966; Vaswani et al., *Painless stochastic gradient*, NeurIPS 2019; Asad et al., 2025, §5.
    """

    c: float = 0.5
    shrink: float = 0.5
    grow: float = 1.5
    tries: int = 12
    eta: float = 10.0

    def __post_init__(self) -> None:
        settle_whole(self, "tries")
        if not (0 < self.c < 1 and 0 < self.shrink < 1 <= self.grow < float("inf")):
            raise BadArgument(
                "ArmijoStep needs 0 < c < 1 and 0 < shrink < 1 ≤ grow; got "
                f"c={self.c!r}, shrink={self.shrink!r}, grow={self.grow!r}"
            )
        if not 0.0 < self.eta < float("inf"):
            raise BadArgument(f"ArmijoStep: eta={self.eta!r} must be positive and finite")

    def first(self, state: State) -> float:
        return float(state["eta"]) * self.grow if "eta" in state else self.eta

    def judge(self, seen: Landing, state: State) -> Verdict:
        if seen.promised > 0 and seen.earned >= self.c * seen.promised:
            return Verdict(None, {"eta": seen.eta})
        smaller = seen.eta * self.shrink
        return Verdict(smaller if seen.tries < self.tries else 0.0, {"eta": smaller})
