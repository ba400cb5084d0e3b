"""What the runs say to the registered questions, by the registered rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.statistics.aggregates import bootstrap, mean
from targetopt.lab.studies.rl.arms import Scale
from targetopt.lab.studies.rl.sb3 import TARGET_KL

RESAMPLES = 10_000
MOST = 1.5
"""No update's KL may be above so many times the target for it to be held."""

DUELS = {
    "surrogate": (("linear-held", "ratio-held"), ("linear-held", "log-ratio-held")),
    "inner steps": (("linear-held", "linear-held-m10"), ("ppo", "clipped-epochs3")),
    "controls": (("linear-held", "ppo-kl"), ("linear-held", "ppo-zoo"), ("ppo", "ppo-zoo")),
}
"""Which arms are compared for which question: whether the first earns more than the second, or less."""

Run = dict[str, Any]
Array = NDArray[np.float64]


def returns(runs: Sequence[Run], arm: str, env: str) -> Array:
    """The final returns of an arm in an environment, by seed."""
    found = {r["seed"]: r["final_return"] for r in runs if (r["arm"], r["env"]) == (arm, env)}
    return np.array([found[seed] for seed in sorted(found)], dtype=np.float64)


def interval(values: Array) -> dict[str, float]:
    """The mean with its 95 % percentile bootstrap interval."""
    found = bootstrap(values, mean, better="higher", resamples=RESAMPLES, seed=0)
    return {"mean": float(found.value), "low": float(found.low), "high": float(found.high)}


def difference(first: Array, second: Array) -> dict[str, float]:
    """mean(first) − mean(second) with its interval, seeds drawn for each by itself."""
    both = np.column_stack([first, second])
    found = bootstrap(
        both,
        lambda v: np.asarray(v[..., 0].mean(axis=-1) - v[..., 1].mean(axis=-1)),
        better="higher",
        resamples=RESAMPLES,
        seed=0,
    )
    return {"mean": float(found.value), "low": float(found.low), "high": float(found.high)}


def judged(runs: Sequence[Run], scale: Scale) -> list[dict[str, Any]]:
    """The verdicts on all questions of which there are runs, in the order of the questions.

    Where seeds are missing the numbers are those so far, and the verdict is "not finished".
    """
    envs = [env for env in scale.lengths if any(run["env"] == env for run in runs)]
    found = [_agreement(runs, arm, env) for arm in ("ppo", "ppo-mini") for env in envs]
    for question, pairs in DUELS.items():
        found += [_duel(runs, question, pair, env) for env in envs for pair in pairs]
    held = dict.fromkeys(run["arm"] for run in runs if "held" in run["arm"])
    found += [_held(runs, arm, env) for arm in held for env in envs]
    told = [verdict for verdict in found if all(verdict["seeds"])]
    for verdict in told:
        if min(verdict["seeds"]) < scale.seeds[verdict["env"]]:
            verdict["verdict"] = "not finished"
    return told


def _agreement(runs: Sequence[Run], own: str, env: str) -> dict[str, Any]:
    ours, theirs = (returns(runs, arm, env) for arm in (own, "sb3-ppo"))
    found: dict[str, Any] = {
        "question": "agreement",
        "env": env,
        "arms": [own, "sb3-ppo"],
        "seeds": [len(ours), len(theirs)],
    }
    if not all(found["seeds"]):
        return found
    a, b = interval(ours), interval(theirs)
    overlap = a["low"] <= b["high"] and b["low"] <= a["high"]
    return {**found, "intervals": [a, b], "verdict": "holds" if overlap else "does not hold"}


def _duel(runs: Sequence[Run], question: str, pair: tuple[str, str], env: str) -> dict[str, Any]:
    values = [returns(runs, arm, env) for arm in pair]
    found: dict[str, Any] = {
        "question": question,
        "env": env,
        "arms": list(pair),
        "seeds": [len(each) for each in values],
    }
    if not all(found["seeds"]):
        return found
    both = min(found["seeds"])
    apart = difference(values[0][:both], values[1][:both])
    verdict = "better" if apart["low"] > 0 else "worse" if apart["high"] < 0 else "not shown"
    return {**found, "difference": apart, "verdict": verdict}


def _held(runs: Sequence[Run], arm: str, env: str) -> dict[str, Any]:
    """Whether the KL of held steps stays below 1.5 times its target, and how many steps were refused."""
    here = [run for run in runs if (run["arm"], run["env"]) == (arm, env)]
    found: dict[str, Any] = {"question": "η", "env": env, "arms": [arm], "seeds": [len(here)]}
    if not here:
        return found
    largest = max(run["largest_kl"] for run in here)
    return {
        **found,
        "largest_kl": largest,
        "mean_kl": float(np.mean([run["mean_kl"] for run in here])),
        "refused": sum(run["refused"] for run in here),
        "verdict": "holds" if largest <= MOST * TARGET_KL else "does not hold",
    }
