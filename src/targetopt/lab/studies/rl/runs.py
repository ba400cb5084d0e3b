"""One run of one arm: what it earned at the end, and what it cost."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
import torch

from targetopt.lab.studies.rl.arms import STEPS, Arm
from targetopt.rl import train

SHARE = 0.1
"""The metric: the mean return of the episodes that ended in this last share of the interactions."""


def run(arm: Arm, env: str, seed: int, steps: int | None = None) -> dict[str, Any]:
    """A run in this process, on one thread.

    Args:
        arm: how to train.
        env: where.
        seed: of everything random.
        steps: interactions; those that are registered by default.
    """
    torch.set_num_threads(1)
    length = STEPS[env] if steps is None else steps
    begin = time.process_time()
    episodes, more = (
        _ours(arm, env, seed, length) if arm.settings is not None else _sb3(env, seed, length)
    )
    seconds = time.process_time() - begin
    late = episodes[:, 0] > (1.0 - SHARE) * length
    return {
        "arm": arm.name,
        "env": env,
        "seed": seed,
        "steps": length,
        "final_return": float(episodes[late, 1].mean()) if late.any() else None,
        "episodes": len(episodes),
        "cpu_seconds": seconds,
        **more,
    }


def _ours(arm: Arm, env: str, seed: int, steps: int) -> tuple[Any, dict[str, Any]]:
    assert arm.settings is not None
    found = train(env, steps=steps, seed=seed, progress=False, **arm.settings)
    columns = found.columns()
    told = {
        "mean_kl": float(columns["kl"].mean()),
        "largest_kl": float(columns["kl"].max()),
        "refused": int(columns["refused"].sum()),
        "solves": int(columns["solves"].sum()),
        "inner_steps": found.counts.inner_steps,
    }
    return found.episodes, told


def _sb3(env: str, seed: int, steps: int) -> tuple[Any, dict[str, Any]]:
    """PPO of Stable-Baselines3 with its own defaults, eight copies, batches of 2048, and scales as ours has them."""
    sb3: Any = importlib.import_module("stable_baselines3")
    vector: Any = importlib.import_module("stable_baselines3.common.vec_env")
    helper: Any = importlib.import_module("stable_baselines3.common.env_util")
    callbacks: Any = importlib.import_module("stable_baselines3.common.callbacks")
    seen: list[tuple[int, float, int]] = []

    class Noting(callbacks.BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
            seen.extend((self.num_timesteps, episode["r"], episode["l"]) for episode in ended)
            return True

    copies = helper.make_vec_env(env, n_envs=8, seed=seed)
    scaled = vector.VecNormalize(copies, norm_obs=True, norm_reward=True, gamma=0.99)
    learner = sb3.PPO("MlpPolicy", scaled, n_steps=256, batch_size=64, seed=seed, device="cpu")
    learner.learn(steps, callback=Noting())
    scaled.close()
    return np.array(seen, dtype=np.float64).reshape(-1, 3), {}
