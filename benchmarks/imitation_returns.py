"""What share of the expert's return the defaults of `to.imitation.train` reach, run by run, on seeds given.

    python benchmarks/imitation_returns.py OUT.jsonl [ENVIRONMENT …] [--seeds 0 1 2 3 4] [--without PART] [--rounds N]

Every run is 50 rounds of 1000 states (``--rounds`` for fewer) and one line of the file, with shares every 5 rounds,
questions, processor time, versions and commit. Runs that are in the file already are left out, so that it may be
stopped and called again. ``--without`` puts one part of the defaults back to what the paper does, to see what it is
worth. ``--show`` prints the table of a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import torch

import targetopt as to

EXPERTS = {
    "Hopper-v5": "sac",
    "Walker2d-v5": "sac",
    "HalfCheetah-v5": "sac",
    "CartPole-v1": "ppo",
    "Catch-v0": "ppo",
}
Mixture, First, Replay = to.imitation.Mixture, to.imitation.First, to.imitation.Replay


def adam(steps: int) -> to.Torch:
    """The default inner solver with so many steps."""
    return to.Torch(lambda p: torch.optim.Adam(p), max_steps=steps)


WITHOUT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "expert first": {"behaviour": Mixture(0.0, learner_noise="little")},
    "little noise": {"behaviour": Mixture(First(1))},
    "old states": {"data": Replay(1000, batch=250, updates=100, average=True)},
    "mean of a round": {"data": Replay("all", batch=250, updates=100)},
    "so many updates": {"data": Replay("all", batch=250, updates=20, average=True)},
    "many updates": {"data": "all"},
    "all of it": {"behaviour": "online", "data": "round", "rule": to.rules.Automatic()},
}
"""What each part is replaced by: the learner drives at once; it draws with its own std, 1; only the round's own
states are learned from; a round ends at its last step; 20 updates a round; one update a round, of 100 Adam steps on all
states; and everything as the paper has it."""


def commit() -> str:
    """The commit that is run, where that can be found out."""
    asked = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def run(environment: str, seed: int, without: str, rounds: int) -> dict[str, Any]:
    """One training with nothing chosen, or all but one part of it."""
    before = time.process_time()
    family = EXPERTS.get(environment, "sac")
    result = to.imitation.train(
        environment, family, seed=seed, rounds=rounds, progress=False, **WITHOUT[without]
    )
    shares = {r.round: r.return_share for r in result.history if r.return_share == r.return_share}
    return {
        "environment": environment,
        "family": family,
        "seed": seed,
        "without": without,
        "shares": shares,
        "best": max(shares.values()),
        "last": list(shares.values())[-1],
        "expert_return": result.expert_return,
        "questions": dict(result.questions),
        "cpu_seconds": time.process_time() - before,
        "updating_seconds": sum(r.updating_time for r in result.history),
        "commit": commit(),
        "versions": {
            "targetopt": to.__version__,
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "mujoco": mujoco.__version__,
        },
    }


def show(runs: list[dict[str, Any]]) -> None:
    """The best and the last share of every environment, seed by seed, and the first round at 95 %."""
    for key in dict.fromkeys((r["environment"], r["without"]) for r in runs):
        mine = sorted(
            (r for r in runs if (r["environment"], r["without"]) == key), key=lambda r: r["seed"]
        )
        first = [
            min((int(t) for t, s in r["shares"].items() if s >= 0.95), default=None) for r in mine
        ]
        print(
            f"{key[0]}, without {key[1]}: seeds {[r['seed'] for r in mine]}, "
            f"best {[round(r['best'], 3) for r in mine]}, last {[round(r['last'], 3) for r in mine]}, "
            f"first at 95 % {first}"
        )


def main() -> None:
    """Do what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("environments", nargs="*", default=list(EXPERTS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--without", choices=WITHOUT, default="nothing")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--show", action="store_true")
    words = parser.parse_args()
    torch.set_num_threads(1)
    lines = words.out.read_text().splitlines() if words.out.exists() else []
    runs = [json.loads(line) for line in lines]
    if words.show:
        show(runs)
        return
    done = {(r["environment"], r["seed"], r["without"]) for r in runs}
    for seed in words.seeds:
        for environment in words.environments:
            if (environment, seed, words.without) not in done:
                found = run(environment, seed, words.without, words.rounds)
                with words.out.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                show([found])


if __name__ == "__main__":
    main()
