"""Three sets of episodes with no seed in common, and what is said of one.

During a training short evaluations (``WATCH``) propose candidates; longer ones (``CHOOSE``) choose
among them; fresh ones (``REPORT``) say how good the chosen one is, so that the number on a model card
is not the luck of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from targetopt.imitation.expert import Expert
from targetopt.imitation.measuring.evaluate import Evaluation, evaluate


@dataclass(frozen=True)
class Episodes:
    """Which episodes: ``evaluate(..., seed=seed, episodes=count)``."""

    seed: int
    count: int

    def play(self, policy: Expert, environment: str) -> Evaluation:
        """By the mean action, in the simulator if there is a fast path: it gives the same bits."""
        return evaluate(policy, environment, seed=self.seed, episodes=self.count)


WATCH = Episodes(seed=1, count=5)
CHOOSE = Episodes(seed=2, count=20)
REPORT = Episodes(seed=3, count=100)


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """Returns and lengths in a few numbers; the deviation is that between episodes."""
    returns, lengths = evaluation.returns, evaluation.lengths
    return {
        "episodes": len(returns),
        "mean_return": evaluation.mean,
        "std_return": evaluation.std,
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "min_length": int(lengths.min()),
        "max_length": int(lengths.max()),
    }
