"""Verdicts of the study: what was hoped for, and what each problem says; lost cases stand beside won ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from targetopt.lab.statistics.verdicts import Judgement, Verdict
from targetopt.lab.studies.oracles.findings import TaskFindings, changes
from targetopt.lab.studies.oracles.measures import SHARES, middle

TEST = "ratio of median calls over seeds to levels 0.1, 0.01 and 0.001 of the way from the best value to the start"
NEARLY = 0.95
"""A ratio this near to 1 is no difference."""


def judge(found: Sequence[TaskFindings]) -> list[Verdict]:
    """Verdicts on the three aims, on every problem, and on every part of the default."""
    ratios = {task.name: task.middle_ratio("rival") for task in found}
    known = [each for each in ratios.values() if not math.isnan(each)]
    runs = sum(task.runs for task in found)
    aims = []
    if known:
        typical = middle(known)
        often = sum(each >= 5 for each in known) / len(known)
        aims = [
            Verdict(
                "In the median over problems the default needs at least 3 times fewer calls than the best tuned rival.",
                "holds" if typical >= 3 else "does not hold",
                {"median ratio": typical, "problems": float(len(known))},
                runs,
                TEST,
            ),
            Verdict(
                "It needs at least 5 times fewer calls on at least a third of the problems.",
                "holds" if often >= 1 / 3 else "does not hold",
                {"share of problems": often},
                runs,
                TEST,
            ),
            Verdict(
                "On no problem does it need more than 1.25 times the calls of the best tuned rival.",
                "holds" if min(known) >= 0.8 else "does not hold",
                {
                    "smallest ratio": min(known),
                    "there": min(ratios, key=lambda name: _least(ratios[name])),
                },
                runs,
                TEST,
            ),
        ]
    on_problems = sorted(found, key=lambda task: _least(task.middle_ratio("rival")))
    return [*aims, *(_on(task) for task in on_problems), *_parts(found)]


def _least(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _on(task: TaskFindings) -> Verdict:
    """Whether the default wins on a problem, at each of the levels."""
    ratios = [task.ratio(level, "rival") for level in range(len(SHARES))]
    wins = [value > 1 / NEARLY for value, _ in ratios if not math.isnan(value)]
    losses = [value < NEARLY for value, _ in ratios if not math.isnan(value)]
    verdict: Judgement = "mixed"
    if not wins:
        verdict = "not judged"
    elif all(wins):
        verdict = "holds"
    elif all(losses) or not any(wins):
        verdict = "does not hold"
    best = task.best(len(SHARES) - 1, "rival")
    own, other = middle(task.own.lowest), middle(best.lowest) if best else math.nan
    numbers: dict[str, float | str] = {
        f"ratio at {share:g}": f"{bound}{value:.3g}"
        for share, (value, bound) in zip(SHARES, ratios, strict=True)
    }
    numbers |= {"lowest, SSO": own, f"lowest, {best.label if best else 'nobody'}": other}
    tricks = task.best(1, "trick")
    if tricks is not None:
        numbers[f"ratio to {tricks.label} at 0.01"] = f"{task.ratio(1, 'trick')[0]:.3g}"
    return Verdict(
        f"{task.title}: the default needs fewer calls than every tuned rival.",
        verdict,
        numbers,
        task.runs,
        TEST,
    )


COMPARED = {"ablation": "with this change", "rule": "another rule"}


def _parts(found: Sequence[TaskFindings]) -> list[Verdict]:
    """Whether each part of the default helps: fewer calls with it than without, over problems."""
    verdicts = []
    for label, role in changes(found).items():
        gains = [gain for task in found if not math.isnan(gain := task.changed(label))]
        typical = middle(gains)
        better = sum(gain > 1 / NEARLY for gain in gains) / len(gains)
        worse = sum(gain < NEARLY for gain in gains) / len(gains)
        verdict: Judgement = "mixed"
        if typical > 1 / NEARLY and worse <= 0.25:
            verdict = "holds"
        elif typical <= 1 and better <= 0.25:
            verdict = "does not hold"
        verdicts.append(
            Verdict(
                f"The default needs fewer calls than {COMPARED[role]}: {label}.",
                verdict,
                {"median ratio": typical, "better on": better, "worse on": worse},
                len(gains),
                "ratio of median calls to level 0.01, over problems; a level that is missed counts as twice the budget",
            )
        )
    return verdicts
