"""Processor time of a run of PPO: ours and that of Stable-Baselines3, in turns in one process, on one thread.

    python benchmarks/rl.py [STEPS] [ROUNDS]

Both have eight copies, batches of 2048, ten passes in mini-batches of 64, networks of (64, 64), and scaled observations
and rewards. Every round runs each once, so that whatever else the machine does meets both; the ratio is of the sums.
"""

from __future__ import annotations

import json
import sys

import torch

from targetopt.lab.store.provenance import commit, machine, versions
from targetopt.lab.studies.rl.arms import named
from targetopt.lab.studies.rl.runs import run


def main(steps: int = 8192, rounds: int = 3) -> None:
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for env in ("Hopper-v5", "CartPole-v1"):
        spent: dict[str, list[float]] = {name: [] for name in ("sb3-ppo", "ppo", "linear-held")}
        for name in spent:
            run(named(name), env, seed=0, steps=2048)  # what is imported and compiled at first
        for seed in range(rounds):
            for name, seconds in spent.items():
                seconds.append(run(named(name), env, seed, steps)["cpu_seconds"])
        total = {name: sum(seconds) for name, seconds in spent.items()}
        found[env] = {
            "steps": steps,
            "cpu_seconds": spent,
            "sb3 / ppo": total["sb3-ppo"] / total["ppo"],
            "sb3 / linear-held": total["sb3-ppo"] / total["linear-held"],
        }
        print(env, json.dumps(found[env]), flush=True)
    found["provenance"] = {"commit": commit(), "versions": versions(), "machine": machine()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
