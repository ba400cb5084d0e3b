"""What gathering costs beside a plain Gymnasium loop, and what SSO's inner steps add to a round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import targetopt as to
from benchmarks.harness import in_turns, one_thread, save, table, verdict
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array
from targetopt.imitation.update import SsoUpdate, TorchUpdate, Update

STATES = 1000
INNER_STEPS = 100


def learner(environment: im.Environment) -> im.GaussianPolicy:
    """The paper's: 256, 256, relu, unit standard deviation."""
    return im.GaussianPolicy(
        environment.observation_size,
        environment.action_size,
        low=environment.low,
        high=environment.high,
    )


def gathering() -> list[dict[str, object]]:
    """CPU time of 1000 labelled states: one environment in a loop against batched copies.

    The same numpy policy drives both, and both label their states in one call.
    """
    rows: list[dict[str, object]] = []
    for name in ("Hopper-v5", "Walker2d-v5"):
        expert = im.load_expert(name)
        for driver in ("cloning", "online"):
            policy = learner(im.Environment(name))
            behaviour = im.mixture(driver).at(1, policy, expert)
            plain = im.make_gatherer(name, copies=1, fast=False, burn_in=0)
            fast = im.make_gatherer(name, fast=True, burn_in=100)
            times = in_turns(
                {
                    "plain": lambda g=plain, b=behaviour, e=expert: g.gather(STATES, b, e),
                    "fast": lambda g=fast, b=behaviour, e=expert: g.gather(STATES, b, e),
                }
            )
            rows.append(
                {
                    "environment": name,
                    "driver": "expert" if driver == "cloning" else "learner, sampled",
                    "plain_ms": 1e3 * times["plain"],
                    "fast_ms": 1e3 * times["fast"],
                    "states_per_second": STATES / times["fast"],
                    "ratio": times["fast"] / times["plain"],
                    "limit": 1 / 1.7,
                }
            )
    return rows


def torch_behaviour(policy: im.GaussianPolicy) -> im.Behaviour:
    """The paper's kind of driver: the torch module itself, asked state by state."""
    std = torch.from_numpy(policy.std).float()

    def behaviour(states: Array, rng: np.random.Generator) -> Array:
        with torch.no_grad():
            mean = policy(torch.as_tensor(states, dtype=torch.float32))
            action = torch.distributions.Normal(mean, std).sample()
        return action.numpy().astype(np.float64)

    return behaviour


def round_of(update: Callable[[im.GaussianPolicy], Update], paper: bool) -> Callable[[], object]:
    """One optimisation step on Hopper: gather 1000 states with the learner, update it."""
    environment = im.Environment("Hopper-v5")
    expert = im.load_expert("Hopper-v5")
    policy = learner(environment)
    apply = update(policy)
    if paper:
        gatherer = im.make_gatherer(environment, copies=1, fast=False, burn_in=0)
    else:
        gatherer = im.make_gatherer(environment, fast=True, burn_in=100)

    def step() -> None:
        online = torch_behaviour(policy) if paper else im.mixture("online").at(1, policy, expert)
        apply(gatherer.gather(STATES, online, expert))

    return step


def steps() -> list[dict[str, object]]:
    """CPU time of one optimisation step, gathering included, as a ratio to SGD's."""
    sgd = lambda policy: TorchUpdate(policy, lambda p: torch.optim.SGD(p, lr=1e-2))  # noqa: E731
    inner = to.Armijo(max_steps=INNER_STEPS)
    sso = lambda policy: SsoUpdate(policy, None, to.GradientStep(), inner)  # noqa: E731
    rows: list[dict[str, object]] = []
    for gatherer, paper, limit in (
        ("batched copies", False, 8.0),
        ("torch policy in a loop", True, 3.0),
    ):
        times = in_turns({"sgd": round_of(sgd, paper), "sso": round_of(sso, paper)})
        rows.append(
            {
                "gatherer": gatherer,
                "sgd_ms": 1e3 * times["sgd"],
                "sso_ms": 1e3 * times["sso"],
                "ratio": times["sso"] / times["sgd"],
                "limit": limit,
            }
        )
    return rows


def main() -> None:
    one_thread()
    gathered = gathering()
    print(f"CPU time of {STATES} labelled states (MLP 256-256 policy, numpy on both sides):")
    table(
        ["environment", "driver", "plain loop ms", "batched ms", "states/s", "times faster", "≥ 1.7"],
        [
            [r["environment"], r["driver"], f"{r['plain_ms']:.0f}", f"{r['fast_ms']:.0f}",
             f"{r['states_per_second']:.0f}", f"{1 / float(str(r['ratio'])):.2f}",
             "yes" if float(str(r["ratio"])) <= float(str(r["limit"])) else "NO"]
            for r in gathered
        ],
    )  # fmt: skip
    costs = steps()
    print(
        f"One step on Hopper-v5, {STATES} states, MLP 256-256: SSO with m = {INNER_STEPS} against SGD:"
    )
    table(
        ["gatherer", "SGD ms", "SSO ms", "ratio", "target"],
        [
            [r["gatherer"], f"{r['sgd_ms']:.0f}", f"{r['sso_ms']:.0f}", f"{r['ratio']:.2f}",
             verdict(float(str(r["ratio"])), float(str(r["limit"])))]
            for r in costs
        ],
    )  # fmt: skip
    written = save("imitation", {"gathering": gathered, "steps": costs}, "gymnasium", "mujoco")
    print("written to", written)


if __name__ == "__main__":
    main()
