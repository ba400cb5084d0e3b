"""PPO of Stable-Baselines3: as it comes, stopped at a KL, and with the settings of RL Baselines3 Zoo."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

TARGET_KL = 0.01


@dataclass(frozen=True)
class Rival:
    """How SB3's PPO is run.

    Attributes:
        settings: of ``stable_baselines3.PPO``.
        copies: of the environment.
        scaled: whether observations and rewards are (``VecNormalize``).
    """

    settings: Mapping[str, Any]
    copies: int = 8
    scaled: bool = True


def falling(first: float) -> Callable[[float], float]:
    """A setting that falls from its first value to 0 over the run, which the zoo writes as ``lin_``.

    >>> falling(0.2)(0.5)
    0.1
    """
    return lambda left: left * first


_WIDE = {
    "log_std_init": -2,
    "ortho_init": False,
    "activation_fn": nn.ReLU,
    "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}
LIKE_OURS = Rival({"n_steps": 256, "batch_size": 64})
"""Batches of 2048 of eight copies, and SB3's defaults beside them."""

AT_KL = Rival({**LIKE_OURS.settings, "target_kl": TARGET_KL / 1.5})
"""The same, but an update ends as soon as its KL is above the target of our held steps (SB3 stops at 1.5 target_kl)."""

ZOO: Mapping[str, Rival] = {
    "CartPole-v1": Rival(
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": falling(0.001),
            "clip_range": falling(0.2),
        },
        scaled=False,
    ),
    "Acrobot-v1": Rival(
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4}, copies=16
    ),
    "Hopper-v5": Rival(
        {
            "n_steps": 512,
            "batch_size": 32,
            "gamma": 0.999,
            "learning_rate": 9.80828e-05,
            "ent_coef": 0.00229519,
            "clip_range": 0.2,
            "n_epochs": 5,
            "gae_lambda": 0.99,
            "max_grad_norm": 0.7,
            "vf_coef": 0.835671,
            "policy_kwargs": _WIDE,
        },
        copies=1,
    ),
    "Walker2d-v5": Rival(
        {
            "n_steps": 512,
            "batch_size": 32,
            "gamma": 0.99,
            "learning_rate": 5.05041e-05,
            "ent_coef": 0.000585045,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.95,
            "max_grad_norm": 1,
            "vf_coef": 0.871923,
        },
        copies=1,
    ),
    "HalfCheetah-v5": Rival(
        {
            "n_steps": 512,
            "batch_size": 64,
            "gamma": 0.98,
            "learning_rate": 2.0633e-05,
            "ent_coef": 0.000401762,
            "clip_range": 0.1,
            "n_epochs": 20,
            "gae_lambda": 0.92,
            "max_grad_norm": 0.8,
            "vf_coef": 0.58096,
            "policy_kwargs": _WIDE,
        },
        copies=1,
    ),
}
"""``hyperparams/ppo.yml`` of RL Baselines3 Zoo, read at commit 00128b5. Its runners are version 3 of the same ones."""


def episodes(rival: Rival, env: str, seed: int, steps: int) -> tuple[Any, dict[str, Any]]:
    """(steps done by then, return, length) of every episode, and SB3's own estimate of the mean KL of its updates."""
    sb3: Any = importlib.import_module("stable_baselines3")
    vector: Any = importlib.import_module("stable_baselines3.common.vec_env")
    helper: Any = importlib.import_module("stable_baselines3.common.env_util")
    callbacks: Any = importlib.import_module("stable_baselines3.common.callbacks")
    seen: list[tuple[int, float, int]] = []
    kls: list[float] = []

    class Noting(callbacks.BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            seen.extend((self.num_timesteps, episode["r"], episode["l"]) for episode in ended)
            return True

        def _on_rollout_start(self) -> None:
            last = self.logger.name_to_value.get("train/approx_kl")
            kls.extend([] if last is None else [float(last)])

    copies: Any = helper.make_vec_env(env, n_envs=rival.copies, seed=seed)
    if rival.scaled:
        discount = rival.settings.get("gamma", 0.99)
        copies = vector.VecNormalize(copies, norm_obs=True, norm_reward=True, gamma=discount)
    learner = sb3.PPO("MlpPolicy", copies, seed=seed, device="cpu", **rival.settings)
    learner.learn(steps, callback=Noting())
    copies.close()
    told = {"mean_kl": float(np.mean(kls))} if kls else {}
    return np.array(seen, dtype=np.float64).reshape(-1, 3), told
