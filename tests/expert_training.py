"""A very small training of an expert, killed on the way if asked: run by test_experts_training.py."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from targetopt.imitation.expert import NetworkExpert
from targetopt.imitation.experts.recipes import PPO, SAC
from targetopt.imitation.experts.training import train_expert

RECIPES = {
    # a ring of 250 transitions, which the training runs round before and after it is killed
    "sac": SAC(hidden=(16, 16), batch_size=16, learning_starts=100, replay_size=250),
    "ppo": PPO(hidden=(8, 8), environments=4, rollout=32, batch_size=32, epochs=2),
}


def small_training(
    algorithm: str, out: Path, *, steps: int = 600, kill_at: int | None = None
) -> NetworkExpert:
    def watch(doing: str, done: int, total: int, note: str) -> None:
        if kill_at is not None and done >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    return train_expert(
        "Hopper-v5",
        algorithm=algorithm,
        out=out,
        steps=steps,
        evaluate_every=200,
        recipe=RECIPES[algorithm],
        watch=watch,
    )


if __name__ == "__main__":
    algorithm, out, steps, kill_at = sys.argv[1:]
    small_training(algorithm, Path(out), steps=int(steps), kill_at=int(kill_at))
