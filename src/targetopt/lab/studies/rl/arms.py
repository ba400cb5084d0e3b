"""What is run: arms, environments, lengths and seeds, as ``docs/rl-study.md`` registers them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from targetopt.rl import HeldKL, full_adam, minibatch_adam

STEPS: Mapping[str, int] = {"CartPole-v1": 30_720, "Acrobot-v1": 30_720, "Hopper-v5": 61_440}
"""Interactions of a run: 15 batches of 2048 on classic control, 30 on Hopper."""

SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: in files and tables.
        question: which question of the study it serves.
        settings: of `targetopt.rl.train`; None for Stable-Baselines3's PPO.
    """

    name: str
    question: str
    settings: Mapping[str, Any] | None


HELD = HeldKL(0.01)
ARMS = (
    Arm("sb3-ppo", "agreement", None),
    Arm("ppo", "agreement", {"preset": "ppo"}),
    Arm("linear-held", "surrogate", {"preset": "sso", "step": HELD}),
    Arm("ratio-held", "surrogate", {"preset": "sso", "surrogate": "ratio", "step": HELD}),
    Arm("log-ratio-held", "surrogate", {"preset": "sso", "surrogate": "log-ratio", "step": HELD}),
    Arm(
        "linear-held-m10",
        "inner steps",
        {"preset": "sso", "step": HELD, "inner": full_adam(max_steps=10)},
    ),
    Arm("clipped-epochs3", "inner steps", {"preset": "ppo", "inner": minibatch_adam(epochs=3)}),
)


def named(name: str) -> Arm:
    """An arm by its name.

    >>> named("ppo").question
    'agreement'
    """
    return next(arm for arm in ARMS if arm.name == name)
