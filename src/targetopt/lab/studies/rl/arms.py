"""What is run: arms, environments, lengths and seeds, as ``docs/rl-study.md`` registers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from targetopt.lab.studies.rl.sb3 import AT_KL, LIKE_OURS, TARGET_KL, ZOO, Rival
from targetopt.rl import HeldKL, full_adam, minibatch_adam


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: in files and tables.
        question: which question of the study it serves.
        settings: of `targetopt.rl.train`; None for Stable-Baselines3's PPO.
        rival: how SB3's PPO is run in an environment.
    """

    name: str
    question: str
    settings: Mapping[str, Any] | None
    rival: Callable[[str], Rival] = lambda env: LIKE_OURS


@dataclass(frozen=True)
class Scale:
    """How much of the study is run.

    Attributes:
        lengths: interactions of a run, by environment.
        seeds: how many, by environment: 0, 1, ….
        arms: all of them.
    """

    lengths: Mapping[str, int]
    seeds: Mapping[str, int]
    arms: tuple[Arm, ...]


BY_BATCH = {"scale_advantages": "batch"}
"""What the preset did when the first part was registered."""

HELD = HeldKL(TARGET_KL)
ARMS = (
    Arm("sb3-ppo", "agreement", None),
    Arm("ppo", "agreement", {"preset": "ppo", **BY_BATCH}),
    Arm("ppo-mini", "agreement", {"preset": "ppo"}),
    Arm("linear-held", "surrogate", {"preset": "sso", "step": HELD}),
    Arm("ratio-held", "surrogate", {"preset": "sso", "surrogate": "ratio", "step": HELD}),
    Arm("log-ratio-held", "surrogate", {"preset": "sso", "surrogate": "log-ratio", "step": HELD}),
    Arm(
        "linear-held-m10",
        "inner steps",
        {"preset": "sso", "step": HELD, "inner": full_adam(max_steps=10)},
    ),
    Arm(
        "clipped-epochs3",
        "inner steps",
        {"preset": "ppo", "inner": minibatch_adam(epochs=3), **BY_BATCH},
    ),
)
CONTROLS = (
    Arm("ppo-kl", "controls", None, lambda env: AT_KL),
    Arm("ppo-zoo", "controls", None, ZOO.__getitem__),
)
CLASSIC, RUNNERS = ("CartPole-v1", "Acrobot-v1"), ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")
SCALES: Mapping[str, Scale] = {
    "first": Scale(
        {"CartPole-v1": 30_720, "Acrobot-v1": 30_720, "Hopper-v5": 61_440},
        {"CartPole-v1": 10, "Acrobot-v1": 10, "Hopper-v5": 10},
        ARMS,
    ),
    "full": Scale(
        {**dict.fromkeys(CLASSIC, 102_400), **dict.fromkeys(RUNNERS, 301_056)},
        {**dict.fromkeys(CLASSIC, 15), **dict.fromkeys(RUNNERS, 10)},
        (*ARMS, *CONTROLS),
    ),
}
"""Whole batches of 2048 throughout: 15 and 30 in the first part, 50 and 147 in full."""


def named(name: str) -> Arm:
    """An arm by its name.

    >>> named("ppo").question
    'agreement'
    """
    return next(arm for arm in (*ARMS, *CONTROLS) if arm.name == name)
