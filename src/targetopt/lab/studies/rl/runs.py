"""One run of one arm: what it earned at the end, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from targetopt.lab.studies.rl import sb3
from targetopt.lab.studies.rl.arms import Arm
from targetopt.rl import Result, SeedsFailed, train, train_many
from targetopt.types import TargetoptError

SHARE = 0.1
"""The metric: the mean return of the episodes that ended in this last share of the interactions."""


def run(arm: Arm, env: str, seed: int, steps: int) -> dict[str, Any]:
    """A run in this process, on one thread.

    Args:
        arm: how to train.
        env: where.
        seed: of everything random.
        steps: interactions.
    """
    torch.set_num_threads(1)
    begin = time.process_time()
    if arm.settings is None:
        episodes, more = sb3.episodes(arm.rival(env), env, seed, steps)
    else:
        result = train(env, steps=steps, seed=seed, progress=False, **arm.settings)
        episodes, more = result.episodes, _told(result)
    spent = {"cpu_seconds": time.process_time() - begin, "side_by_side": 1}
    return _found(arm, env, seed, steps, episodes, spent | more)


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
