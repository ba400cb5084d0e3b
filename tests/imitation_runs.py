"""A training in a process of its own, to be killed: ``python imitation_runs.py CHECKPOINT ROUNDS POLICY``."""

import sys
from pathlib import Path

import torch

import targetopt as to


def main(checkpoint: str, rounds: str, policy: str) -> None:
    torch.set_num_threads(1)
    environment = to.imitation.Environment("Hopper-v5")
    expert = to.imitation.GaussianPolicy(11, 3, hidden=(32, 32), seed=7).numpy()
    result = to.imitation.train(
        "Hopper-v5",
        expert,
        learner=to.imitation.GaussianPolicy(
            11, 3, hidden=(32, 32), low=environment.low, high=environment.high
        ),
        behaviour="dagger",
        rule=to.LineSearch(),
        inner=to.Torch(lambda p: torch.optim.Adam(p, lr=1e-3), max_steps=5),
        rounds=int(rounds),
        states_per_round=110,
        copies=4,
        evaluate_every=3,
        evaluation_episodes=2,
        checkpoint=checkpoint,
        progress=False,
        callback=lambda latest: print(latest.round, flush=True),
    )
    result.policy.save(Path(policy))


if __name__ == "__main__":
    main(*sys.argv[1:])
