"""``python -m targetopt.lab.studies.rl.rates FILE.png``: rates of exact policy steps, measured and of theory."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

from targetopt.distributions import Categorical, KLProximity
from targetopt.divergence import SquaredEuclidean
from targetopt.inner import LBFGS
from targetopt.inner.stopping import Stopping
from targetopt.rl import MDP, ConstantStep, Linear, LogRatio, PolicyStep, Ratio, deep_sea, solve

ETA = 0.5
STEPS = 40
WAYS: dict[str, Callable[[Categorical], PolicyStep]] = {
    "SPMA: log-ratio, forward KL": lambda family: PolicyStep(
        family, LogRatio(), KLProximity(family), ConstantStep(ETA)
    ),
    "MDPO: ratio, reverse KL": lambda family: PolicyStep(
        family, Ratio(), KLProximity(family, reverse=True), ConstantStep(ETA)
    ),
    "policy gradient: linear, Euclidean": lambda family: PolicyStep(
        family, Linear(), SquaredEuclidean(), ConstantStep(ETA)
    ),
}
LIMITS = (lambda gap: 1 - ETA * gap, lambda gap: np.exp(-ETA * gap))
"""What SPMA and MDPO contract by in the limit, from the smallest gap of advantages."""


def smallest_gap(world: MDP) -> float:
    """min |A*(s, a)| over the states of the best way and the actions that leave it."""
    best = world.best_policy()
    leaving = np.where(best > 0.5, np.inf, -world.advantages(best))
    return float(leaving[world.occupancy(best) > 0].min())


def gaps(world: MDP, rule: Callable[[Categorical], PolicyStep]) -> NDArray[np.float64]:
    """J* − J(π_t)."""
    inner = LBFGS(max_steps=60, stopping=Stopping(gradient_tolerance=1e-13))
    return world.best_value() - solve(world, rule, iterations=STEPS, inner=inner).values


def draw(path: Path) -> None:
    """The gaps of two worlds, with the slopes of theory through their last points."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    arms = np.array([[1.0, 0.6, 0.3, -0.5, 0.0]])
    bandit = MDP(np.zeros((1, 5, 1)), arms, np.ones(1), 0.0, "five arms")
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    at = np.arange(STEPS + 1)
    for axis, world in zip(axes, (bandit, deep_sea(3)), strict=True):
        for i, (name, rule) in enumerate(WAYS.items()):
            found = gaps(world, rule)
            seen = found > 1e-6  # below, the inner solver's tolerance is what is left
            axis.semilogy(at[seen], found[seen], color=f"C{i}", label=name)
            if i < len(LIMITS):
                last = int(at[seen][-1])
                line = found[last] * LIMITS[i](smallest_gap(world)) ** (at - last)
                near = (at > last / 3) & (at <= last)
                axis.semilogy(at[near], line[near], "--", color="black", linewidth=0.8)
        axis.set(title=world.name, xlabel="steps", ylabel="J* − J")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m targetopt.lab.studies.rl.rates")
    options.add_argument("file", type=Path, help="the picture")
    draw(options.parse_args().file)
