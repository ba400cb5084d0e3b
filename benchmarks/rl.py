"""Processor time of PPO: ours, ten seeds of ours side by side, and Stable-Baselines3's, in turns in one process.

    python benchmarks/rl.py [STEPS] [ROUNDS]

All have eight copies, batches of 2048, ten passes in mini-batches of 64, networks of (64, 64), scaled observations and
rewards, and one thread. Every round runs each once, so that whatever else the machine does meets all; ratios are of the
sums. "alone" is one run of `to.rl.train`; "of ten" is a tenth of `to.rl.train_many` with ten seeds, whose numbers are
those of single runs, bit by bit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from targetopt.files import write_atomically
from targetopt.lab.store.provenance import commit, machine, versions
from targetopt.lab.studies.rl.arms import named
from targetopt.lab.studies.rl.runs import run
from targetopt.rl import train_many

SEEDS = 10
OUT = Path(__file__).parent / "results" / "rl.json"


def _alone(arm: str) -> Callable[[str, int, int], float]:
    return lambda env, seed, steps: float(run(named(arm), env, seed, steps)["cpu_seconds"])


def _of_ten(arm: str) -> Callable[[str, int, int], float]:
    def spent(env: str, seed: int, steps: int) -> float:
        settings = named(arm).settings
        assert settings is not None
        seeds = range(SEEDS * seed, SEEDS * (seed + 1))
        begin = time.process_time()
        train_many(env, steps=steps, seeds=seeds, progress=False, **settings)
        return (time.process_time() - begin) / SEEDS

    return spent


WAYS = {
    "sb3-ppo": _alone("sb3-ppo"),
    "ppo alone": _alone("ppo"),
    "ppo of ten": _of_ten("ppo"),
    "linear-held alone": _alone("linear-held"),
    "linear-held of ten": _of_ten("linear-held"),
}


def main(steps: int = 8192, rounds: int = 3) -> None:
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for env in ("Hopper-v5", "CartPole-v1", "Acrobot-v1"):
        spent: dict[str, list[float]] = {name: [] for name in WAYS}
        for way in WAYS.values():
            way(env, 0, 2048)  # what is imported and compiled at first
        for seed in range(rounds):
            for name, way in WAYS.items():
                spent[name].append(way(env, seed, steps))
        total = {name: sum(seconds) for name, seconds in spent.items()}
        ratios = {
            name: total["sb3-ppo"] / each for name, each in total.items() if name != "sb3-ppo"
        }
        found[env] = {"steps": steps, "cpu_seconds": spent, "sb3-ppo over": ratios}
        print(env, json.dumps(found[env]), flush=True)
    found["provenance"] = {"commit": commit(), "versions": versions(), "machine": machine()}
    write_atomically(OUT, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
