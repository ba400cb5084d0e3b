"""``python -m targetopt.lab.studies.rl.page RUNS results/rl``: runs, verdicts, a picture and a page, published."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.lab.report.multiples import Place, save
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.rl.arms import ARMS, CLASSIC, CONTROLS, RUNNERS, SCALES, Scale
from targetopt.lab.studies.rl.verdicts import Run, interval, judged, returns

HUES = {
    "agreement": "#7a7a7a",
    "surrogate": "#0072b2",
    "inner steps": "#56a4d6",
    "controls": "#b25d00",
}
QUESTIONS = {
    "agreement": "Does the preset `ppo` earn what PPO of Stable-Baselines3 earns, at the same settings?",
    "surrogate": "At the same KL, divergence and inner solver: does the linear surrogate earn more than the others?",
    "inner steps": "What do fewer inner steps do, with a divergence and without one?",
    "controls": "Against PPO that is stopped at the same KL, and PPO with the zoo's settings.",
    "η": "Does `HeldKL(0.01)` hold its KL, and how many steps are refused?",
}


def read(folder: Path) -> list[Run]:
    """All runs of a folder, by arm, environment and seed."""
    arms, envs = [arm.name for arm in (*ARMS, *CONTROLS)], [*CLASSIC, *RUNNERS]
    runs = [json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")]
    return sorted(runs, key=lambda r: (arms.index(r["arm"]), envs.index(r["env"]), r["seed"]))


def publish(runs: Sequence[Run], scale: Scale, folder: Path) -> None:
    """Write ``runs.json``, ``verdicts.json``, ``returns.png`` and ``README.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    stamps = [run["provenance"] for run in runs]
    made = {
        "commits": dict(Counter(stamp["commit"] for stamp in stamps)),
        "versions": stamps[-1]["versions"],
        "machine": stamps[-1]["machine"],
    }
    plain = [{key: value for key, value in run.items() if key != "provenance"} for run in runs]
    lines = ",\n".join(json.dumps(run) for run in plain)
    text = f'{{"provenance": {json.dumps(made)},\n"runs": [\n{lines}\n]}}\n'
    write_whole(folder / "runs.json", text.encode())
    found = judged(runs, scale)
    listed = ",\n".join(json.dumps(verdict, ensure_ascii=False) for verdict in found)
    write_whole(folder / "verdicts.json", f"[\n{listed}\n]\n".encode())
    draw(runs, folder / "returns")
    write_whole(folder / "README.md", page(runs, found).encode())


def _envs(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["env"] for run in runs))


def _arms(runs: Sequence[Run]) -> list[str]:
    there = {run["arm"] for run in runs}
    return [arm.name for arm in (*ARMS, *CONTROLS) if arm.name in there]


def draw(runs: Sequence[Run], path: Path) -> None:
    """A panel for every environment: each run a dot, each arm's mean and interval."""
    envs, arms = _envs(runs), _arms(runs)
    colours = {arm.name: HUES[arm.question] for arm in (*ARMS, *CONTROLS)}
    places = [Place(row=0, column=i, title=env) for i, env in enumerate(envs)]

    def paint(ax: Any, place: Place) -> tuple[str, str]:
        env = envs[place.column]
        for i, arm in enumerate(reversed(arms)):
            values = returns(runs, arm, env)
            if not len(values):
                continue
            end = interval(values)
            ax.plot(
                values,
                np.full(len(values), i - 0.22),
                "o",
                color=colours[arm],
                alpha=0.35,
                ms=2.4,
                mew=0,
            )
            ax.plot(
                [end["low"], end["high"]], [i, i], color=colours[arm], lw=2.2, solid_capstyle="butt"
            )
            ax.plot([end["mean"]], [i], "D", color=colours[arm], ms=4.2)
        ax.set_yticks(range(len(arms)), list(reversed(arms)))
        if place.column:
            ax.set_yticklabels([])
        ax.set_ylim(-0.6, len(arms) - 0.4)
        return "return at the end", ""

    size, room = (2.2, 0.3 * len(arms)), 0.2 + 0.065 * max(map(len, arms))
    save(path, places, [""], [""] * len(envs), [], paint, size=size, room=room)


def _said(verdict: dict[str, Any]) -> str:
    names = " and ".join(f"`{arm}`" for arm in verdict["arms"])
    if verdict["question"] == "agreement":
        ends = ", ".join(_between(each) for each in verdict["intervals"])
        return f"| {verdict['env']} | {names} | {ends} | {verdict['verdict']} |"
    if verdict["question"] == "η":
        told = f"largest {verdict['largest_kl']:.4f}, mean {verdict['mean_kl']:.4f}, {verdict['refused']} steps refused"
        return f"| {verdict['env']} | {names} | {told} | {verdict['verdict']} |"
    return (
        f"| {verdict['env']} | {names} | {_between(verdict['difference'])} | {verdict['verdict']} |"
    )


def _between(end: dict[str, float]) -> str:
    return f"{end['mean']:.1f} [{end['low']:.1f}, {end['high']:.1f}]"


def tables(found: Sequence[dict[str, Any]]) -> str:
    """The verdicts in Markdown, question by question."""
    parts = []
    for question, asked in QUESTIONS.items():
        rows = [_said(verdict) for verdict in found if verdict["question"] == question]
        if rows:
            what = {"agreement": "means", "η": "KL of an update"}.get(question, "first − second")
            head = f"| environment | arms | {what} | verdict |\n|---|---|---|---|\n"
            named = question if question == "η" else question.capitalize()
            parts.append(f"**{named}.** {asked}\n\n{head}" + "\n".join(rows))
    return "\n\n".join(parts)


def numbers(runs: Sequence[Run]) -> str:
    """Every arm in every environment: return, seeds, KL, processor seconds."""
    head = (
        "| environment | arm | seeds | return at the end | lowest, highest | mean KL | processor seconds a run |\n"
        "|---|---|---:|---|---|---:|---:|\n"
    )
    rows = []
    for env in _envs(runs):
        for arm in _arms(runs):
            here = [run for run in runs if (run["arm"], run["env"]) == (arm, env)]
            if not here:
                continue
            values = returns(runs, arm, env)
            kls = [run["mean_kl"] for run in here if "mean_kl" in run]
            together = Counter(run.get("side_by_side", 1) for run in here).most_common(1)[0][0]
            seconds = np.median(
                [r["cpu_seconds"] for r in here if r.get("side_by_side", 1) == together]
            )
            told = f"{seconds:.0f}" + (f" ({together} side by side)" if together > 1 else "")
            kl = f"{np.mean(kls):.4f}" if kls else ""
            rows.append(
                f"| {env} | `{arm}` | {len(here)} | {_between(interval(values))} | {values.min():.1f}, "
                f"{values.max():.1f} | {kl} | {told} |"
            )
    return head + "\n".join(rows)


TEXT = """# Reinforcement learning: what was run, and what it shows

![Mean return of the episodes that ended in the last tenth of a run, by arm and environment](returns.png)

Questions, arms and the rule of the verdicts were registered before the runs ([the study](../../docs/rl-study.md)).
Interactions of a run: {lengths}. Every dot is a run, and bars are 95 % bootstrap intervals of the mean. Grey is PPO,
dark blue are arms that are held at one KL, by surrogate, and light blue are those with fewer inner steps.

## Verdicts

{verdicts}

*Agreement* holds if the two intervals overlap. *Better* and *worse* say that the interval of the difference lies on one
side of 0. The KL is held if no update is above 1.5 times its target of 0.01. *Not finished* are comparisons of which
seeds are missing.

## Every number

{numbers}

Processor seconds were taken beside other work. Where seeds were trained side by side, they are a share.
`python benchmarks/rl.py` compares in turns.

## How it was made

    python -m targetopt.lab.studies.rl RUNS
    python -m targetopt.lab.studies.rl.page RUNS results/rl

`runs.json` has every run and `verdicts.json` the verdicts; `tests/test_rl_study.py` computes them again.
"""


def page(runs: Sequence[Run], found: Sequence[dict[str, Any]]) -> str:
    """The page in Markdown."""
    lengths = {run["env"]: run["steps"] for run in runs}
    said = ", ".join(f"{env} {steps:,}".replace(",", " ") for env, steps in lengths.items())
    return TEXT.format(lengths=said, verdicts=tables(found), numbers=numbers(runs))


if __name__ == "__main__":
    options = argparse.ArgumentParser(prog="python -m targetopt.lab.studies.rl.page")
    options.add_argument("runs", type=Path, help="the folder with one file for each run")
    options.add_argument("results", type=Path, help="where the page goes")
    options.add_argument("--scale", choices=tuple(SCALES), default="first", help="of the runs")
    chosen = options.parse_args()
    publish(read(chosen.runs), SCALES[chosen.scale], chosen.results)
