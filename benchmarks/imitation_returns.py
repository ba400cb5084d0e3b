"""What share of the expert's return the defaults of `to.imitation.train` reach, run by run, on seeds given.

    python benchmarks/imitation_returns.py OUT.jsonl [ENVIRONMENT …] [--family sac] [--seeds 0 1 2 3 4]

Every run is 50 rounds of 1000 states and one line of the file, with shares every 5 rounds, questions, processor time
and versions. Runs that are in the file already are left out, so that it may be stopped and called again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import torch

import targetopt as to

ENVIRONMENTS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")


def run(environment: str, family: str, seed: int) -> dict[str, Any]:
    """One training with nothing chosen."""
    before = time.process_time()
    result = to.imitation.train(environment, family, seed=seed, progress=False)
    shares = {r.round: r.return_share for r in result.history if r.return_share == r.return_share}
    return {
        "environment": environment,
        "family": family,
        "seed": seed,
        "shares": shares,
        "best": max(shares.values()),
        "last": list(shares.values())[-1],
        "expert_return": result.expert_return,
        "questions": result.questions,
        "cpu_seconds": time.process_time() - before,
        "versions": {
            "targetopt": to.__version__,
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "mujoco": mujoco.__version__,
        },
    }


def main() -> None:
    """Do what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("environments", nargs="*", default=ENVIRONMENTS)
    parser.add_argument("--family", default="sac")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    words = parser.parse_args()
    torch.set_num_threads(1)
    lines = words.out.read_text().splitlines() if words.out.exists() else []
    done = {(r["environment"], r["family"], r["seed"]) for r in map(json.loads, lines)}
    for seed in words.seeds:
        for environment in words.environments:
            if (environment, words.family, seed) not in done:
                found = run(environment, words.family, seed)
                with words.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                print(
                    f"{environment} {words.family} seed {seed}: best {found['best']:.0%}, last {found['last']:.0%}"
                )


if __name__ == "__main__":
    main()
