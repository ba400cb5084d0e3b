"""What the runs say to the registered questions, by the registered rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.lab.statistics.aggregates import bootstrap, mean
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


def judged(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """All verdicts that these runs allow, in the order of the questions."""
    envs = list(dict.fromkeys(run["env"] for run in runs))
    found: list[dict[str, Any]] = []
    for env in envs:
        ours, theirs = (returns(runs, arm, env) for arm in ("ppo", "sb3-ppo"))
        if len(ours) and len(theirs):
            a, b = interval(ours), interval(theirs)
            overlap = a["low"] <= b["high"] and b["low"] <= a["high"]
            found.append(
                {
                    "question": "agreement",
                    "env": env,
                    "arms": ["ppo", "sb3-ppo"],
                    "seeds": [len(ours), len(theirs)],
                    "intervals": [a, b],
                    "verdict": "holds" if overlap else "does not hold",
                }
            )
    for question, pairs in DUELS.items():
        for env in envs:
            for pair in pairs:
                first, second = (returns(runs, arm, env) for arm in pair)
                if not len(first) or len(first) != len(second):
                    continue
                apart = difference(first, second)
                verdict = (
                    "better" if apart["low"] > 0 else "worse" if apart["high"] < 0 else "not shown"
                )
                found.append(
                    {
                        "question": question,
                        "env": env,
                        "arms": list(pair),
                        "seeds": [len(first), len(second)],
                        "difference": apart,
                        "verdict": verdict,
                    }
                )
    return found + _held(runs, envs)


def _held(runs: Sequence[Run], envs: Sequence[str]) -> list[dict[str, Any]]:
    """Whether the KL of held steps stays below 1.5 times its target, and how many steps were refused."""
    found = []
    for arm in dict.fromkeys(run["arm"] for run in runs if "held" in run["arm"]):
        for env in envs:
            here = [run for run in runs if (run["arm"], run["env"]) == (arm, env)]
            if here:
                largest = max(run["largest_kl"] for run in here)
                found.append(
                    {
                        "question": "η",
                        "env": env,
                        "arms": [arm],
                        "seeds": [len(here)],
                        "largest_kl": largest,
                        "mean_kl": float(np.mean([run["mean_kl"] for run in here])),
                        "refused": sum(run["refused"] for run in here),
                        "verdict": "holds" if largest <= MOST * TARGET_KL else "does not hold",
                    }
                )
    return found
