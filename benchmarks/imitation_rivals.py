"""Side by side with the package `imitation` (its DAgger): return against questions to the same expert, and time.

    python -m benchmarks.imitation_rivals OUT.jsonl [--environment Hopper-v5] [--family sac] [--seeds 0] [--arms …]
        [--budget 50000]
    python -m benchmarks.imitation_rivals OUT.jsonl --picture docs/images/imitation-rivals.png

Three arms, each a line of the file: ``targetopt`` (the defaults of `to.imitation.train`), ``imitation`` (the defaults
of its ``SimpleDAggerTrainer``) and ``imitation, same network`` (256, 256, relu as ours, all else its defaults). Every
arm may ask the expert about 50 000 states (``--budget``) and a few more, until its round is over. Returns are of the
mean action over the same 10 episodes; the time of measuring them is not counted. ``--picture`` draws what is in the
file, and prints when each run came to 95 % of the expert's return; it needs matplotlib and nothing of the rival.

`imitation` 1.0.1 asks for gymnasium 0.29 and stable-baselines3 2.2, where there is no ``Hopper-v5``. It needs a virtual
environment of its own, and works with those of this project if it is installed without its requirements:

    python -m venv rival && rival/bin/pip install -e '.[rl,expert]' datasets huggingface_sb3 jsonpickle sacred
    rival/bin/pip install --no-deps imitation==1.0.1 seals==0.2.1
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import targetopt as to
from targetopt.imitation.measuring.measure import MEASURED_SEED

EVERY = 2_500
PACKAGES = ("targetopt", "imitation", "stable-baselines3", "gymnasium", "mujoco", "torch")


class Record:
    """Returns against questions, with clocks that stand still while returns are measured."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.rows: list[dict[str, float]] = []
        self.wall, self.cpu = -time.perf_counter(), -time.process_time()

    def look(self, policy: Any, questions: int) -> None:
        """Measure the policy, if it is time."""
        if questions < (self.rows[-1]["questions"] if self.rows else 0) + EVERY:
            return
        self.wall, self.cpu = self.wall + time.perf_counter(), self.cpu + time.process_time()
        found = to.imitation.evaluate(policy, self.environment, episodes=10, seed=MEASURED_SEED)
        row = {"questions": questions, "return": found.mean, "wall": self.wall, "cpu": self.cpu}
        self.rows.append(row)
        print(row, flush=True)
        self.wall, self.cpu = self.wall - time.perf_counter(), self.cpu - time.process_time()


def targetopt(
    environment: str, expert: to.imitation.NetworkExpert, seed: int, budget: int
) -> Record:
    """Ours, with nothing chosen but that the expert plays no episodes of its own."""
    opened = to.imitation.Environment(environment)
    policy = to.imitation.GaussianPolicy(
        opened.observation_size,
        opened.action_size,
        low=opened.low,
        high=opened.high,
        seed=seed,
    )
    record = Record(environment)
    to.imitation.train(
        environment,
        expert,
        learner=policy,
        seed=seed,
        rounds=budget // 1000,
        held_out=0,
        evaluate_every=0,
        progress=False,
        callback=lambda latest: record.look(policy, latest.questions),
    )
    return record


def imitation(
    environment: str, expert: to.imitation.NetworkExpert, seed: int, budget: int, same_network: bool
) -> Record:
    """Theirs, until as many questions are asked."""
    from imitation.algorithms import bc, dagger
    from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
    from stable_baselines3.common.vec_env import DummyVecEnv

    venv = DummyVecEnv([lambda: gymnasium.make(environment)])
    venv.seed(seed)
    torch.manual_seed(seed)
    asked = 0

    class Asked(BasePolicy):
        """The expert as they ask it."""

        def _predict(self, observation: Any, deterministic: bool = False) -> Any:
            nonlocal asked
            asked += len(observation)
            return torch.from_numpy(expert(observation.double().numpy())).float()

    spaces = {"observation_space": venv.observation_space, "action_space": venv.action_space}
    network = {}
    if same_network:
        shape = {"net_arch": [256, 256], "activation_fn": torch.nn.ReLU}
        network = {"policy": ActorCriticPolicy(**spaces, lr_schedule=lambda _: 1e-3, **shape)}
    rng = np.random.default_rng(seed)
    cloning = bc.BC(**spaces, rng=rng, **network)
    record = Record(environment)

    def act(states: Any) -> Any:
        return cloning.policy.predict(states.astype(np.float32), deterministic=True)[0]

    class Watched(dagger.SimpleDAggerTrainer):
        """Looks after each of its rounds."""

        def extend_and_update(self, *arguments: Any) -> Any:
            done = super().extend_and_update(*arguments)
            record.look(act, asked)
            return done

    with tempfile.TemporaryDirectory() as folder:
        trainer = Watched(
            venv=venv,
            scratch_dir=folder,
            expert_policy=Asked(**spaces),
            rng=rng,
            bc_trainer=cloning,
        )
        quiet = {"log_interval": 10**9, "progress_bar": False, "log_rollouts_n_episodes": 0}
        trainer.train(budget, bc_train_kwargs=quiet)
    return record


ARMS: dict[str, Callable[[str, Any, int, int], Record]] = {
    "targetopt": targetopt,
    "imitation, same network": lambda *these: imitation(*these, same_network=True),
    "imitation": lambda *these: imitation(*these, same_network=False),
}


COLOURS = {"targetopt": "#0072B2", "imitation, same network": "#D55E00", "imitation": "#999999"}
"""Okabe and Ito's, told apart with any colour vision."""


def picture(runs: list[dict[str, Any]], path: Path) -> None:
    """The share of the expert's return against questions and against wall time, a line for each run."""
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(run["environment"] for run in runs))
    figure = Figure(figsize=(4.0 * len(environments), 5.2), dpi=110, layout="constrained")
    panels = figure.subplots(2, len(environments), sharey=True, squeeze=False)
    for column, environment in enumerate(environments):
        mine = [run for run in runs if run["environment"] == environment]
        for row, (axis, label) in enumerate(
            (("questions", "questions to the expert"), ("wall", "seconds, by the clock"))
        ):
            panel = panels[row, column]
            for run in mine:
                along = [0.0, *(at[axis] for at in run["rows"])]
                share = [0.0, *(at["return"] / run["expert_return"] for at in run["rows"])]
                name = run["arm"] if run["seed"] == min(r["seed"] for r in mine) else None
                panel.plot(along, share, color=COLOURS[run["arm"]], label=name, marker=".")
            panel.axhline(0.95, color="black", linestyle=":", linewidth=0.8)
            panel.set(xlabel=label, ylim=(-0.03, 1.08))
            panel.grid(color="#e6e6e6")
            panel.spines[["top", "right"]].set_visible(False)
        panels[0, column].set_title(environment)
    for row in range(2):
        panels[row, 0].set_ylabel("share of the expert's return")
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def reached(run: dict[str, Any]) -> str:
    """When a run came to 95 % of the expert's return first."""
    there = [at for at in run["rows"] if at["return"] >= 0.95 * run["expert_return"]]
    if not there:
        return f"not within {run['rows'][-1]['questions']} questions"
    return f"{there[0]['questions']} questions, {there[0]['cpu']:.0f} processor seconds"


def main() -> None:
    """Do what is missing in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--environment", default="Hopper-v5")
    parser.add_argument("--family", default="sac")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--budget", type=int, default=50_000)
    parser.add_argument("--picture", type=Path)
    words = parser.parse_args()
    if words.picture is not None:
        runs = [json.loads(line) for line in words.out.read_text().splitlines()]
        picture(runs, words.picture)
        for run in runs:
            print(f"{run['environment']}, {run['arm']}, seed {run['seed']}: {reached(run)}")
        return
    torch.set_num_threads(1)
    expert = to.imitation.load_expert(words.environment, words.family)
    lines = words.out.read_text().splitlines() if words.out.exists() else []
    done = {(r["environment"], r["arm"], r["seed"]) for r in map(json.loads, lines)}
    for seed in words.seeds:
        for arm in words.arms:
            if (words.environment, arm, seed) in done:
                continue
            record = ARMS[arm](words.environment, expert, seed, words.budget)
            line = {
                "environment": words.environment,
                "family": words.family,
                "arm": arm,
                "seed": seed,
                "budget": words.budget,
                "expert_return": to.imitation.evaluate(
                    expert, words.environment, episodes=10, seed=MEASURED_SEED
                ).mean,
                "rows": record.rows,
                "versions": {name: metadata.version(name) for name in PACKAGES},
            }
            with words.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
