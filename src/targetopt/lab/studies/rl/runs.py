"""One run of one arm: what it earned at the end, and what it cost."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from targetopt.lab.studies.rl.arms import STEPS, Arm
from targetopt.rl import Result, SeedsFailed, train, train_many
from targetopt.types import TargetoptError

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
    if arm.settings is None:
        episodes, more = _sb3(env, seed, length), {}
    else:
        result = train(env, steps=length, seed=seed, progress=False, **arm.settings)
        episodes, more = result.episodes, _told(result)
    spent = {"cpu_seconds": time.process_time() - begin, "side_by_side": 1}
    return _found(arm, env, seed, length, episodes, spent | more)


def run_beside(
    arm: Arm, env: str, seeds: Sequence[int], steps: int, checkpoint: Path
) -> tuple[list[dict[str, Any]], dict[int, TargetoptError]]:
    """Several seeds of one of our arms, side by side, with the numbers of each alone.

    ``cpu_seconds`` is a share: what all of them took in gathering and updating, divided by how many there were, which
    ``side_by_side`` says.

    Args:
        arm: how to train, by `targetopt.rl.train_many`.
        env: where.
        seeds: one run each.
        steps: interactions of each.
        checkpoint: a folder from which they go on.

    Returns:
        the runs that came to their end, and by seed why others did not.
    """
    assert arm.settings is not None
    torch.set_num_threads(1)
    options = {"steps": steps, "checkpoint": checkpoint, "progress": False, **arm.settings}
    errors: dict[int, TargetoptError] = {}
    try:
        results = dict(zip(seeds, train_many(env, seeds=seeds, **options), strict=True))
    except SeedsFailed as error:
        results, errors = error.results, error.errors
    found = []
    for seed in (each for each in seeds if each not in errors):
        columns = results[seed].columns()
        share = float((columns["gathering_time"] + columns["updating_time"]).sum())
        more = {"cpu_seconds": share, "side_by_side": len(seeds), **_told(results[seed])}
        found.append(_found(arm, env, seed, steps, results[seed].episodes, more))
    return found, errors


def _found(
    arm: Arm, env: str, seed: int, steps: int, episodes: Any, more: dict[str, Any]
) -> dict[str, Any]:
    late = episodes[:, 0] > (1.0 - SHARE) * steps
    return {
        "arm": arm.name,
        "env": env,
        "seed": seed,
        "steps": steps,
        "final_return": float(episodes[late, 1].mean()) if late.any() else None,
        "episodes": len(episodes),
        **more,
    }


def _told(result: Result) -> dict[str, Any]:
    columns = result.columns()
    return {
        "mean_kl": float(columns["kl"].mean()),
        "largest_kl": float(columns["kl"].max()),
        "refused": int(columns["refused"].sum()),
        "solves": int(columns["solves"].sum()),
        "inner_steps": result.counts.inner_steps,
    }


def _sb3(env: str, seed: int, steps: int) -> Any:
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
    return np.array(seen, dtype=np.float64).reshape(-1, 3)
