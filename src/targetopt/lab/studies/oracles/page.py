"""The study as a page: one picture, six sentences, then every number."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from targetopt.lab.statistics import verdicts
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.oracles import claims, pictures
from targetopt.lab.studies.oracles.findings import TaskFindings, gather
from targetopt.lab.studies.oracles.measures import PRICES, SHARES, middle
from targetopt.lab.studies.oracles.suite import EXTENTS, tasks
from targetopt.types import BadArgument

COMMAND = "targetopt oracles run --scale {scale} && targetopt oracles report --scale {scale} --publish FOLDER"
FINDINGS, CHOICES = "findings.json", "choices.json"

_REHEARSAL = " from two values each, which is a rehearsal and no evidence"


def write(out: Path, to: Path | None = None) -> Path:
    """Judge the study in ``out`` and write README.md, pictures, findings.json and verdicts.json.

    A problem that was published in ``to`` before, at the same scale, and is not in ``out`` stays on the page. So a
    study can be run in sittings on several machines, a few problems in each.

    Args:
        out: the study's directory.
        to: where to write; ``out/report`` by default.
    """
    scale, found = gather(out)
    folder = out / "report" if to is None else to
    folder.mkdir(parents=True, exist_ok=True)
    tuned = {task.name: _json(out / task.name / CHOICES) for task in found}
    if to is not None and (folder / FINDINGS).exists():
        earlier = _published(folder, scale, set(tuned))
        found += earlier
        tuned |= {task.name: _json(folder / CHOICES)[task.name] for task in earlier}
    places = {task.name: place for place, task in enumerate(tasks())}
    found.sort(key=lambda task: places[task.name])
    judged = claims.judge(found)
    verdicts.write(folder, judged)
    pictures.draw(found, folder)
    record = {"scale": scale, "shares": SHARES, "tasks": [task.record() for task in found]}
    write_whole(folder / FINDINGS, json.dumps(record, indent=1, allow_nan=False).encode())
    tuned = {task.name: tuned[task.name] for task in found}
    write_whole(folder / CHOICES, json.dumps(tuned, indent=1).encode())
    page = folder / "README.md"
    write_whole(page, text(scale, found, judged).encode())
    return page


def _published(folder: Path, scale: str, made: Collection[str]) -> list[TaskFindings]:
    """The problems of the suite that a folder has, but for those that were made again."""
    record = _json(folder / FINDINGS)
    if record["scale"] != scale:
        raise BadArgument(
            f"{folder} has the study at scale {record['scale']!r}, and this one is at scale {scale!r}; give another "
            "folder to --publish"
        )
    known = {task.name for task in tasks()} - set(made)
    return [TaskFindings.read(each) for each in record["tasks"] if each["name"] in known]


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def text(
    scale: str,
    found: Sequence[TaskFindings],
    judged: Sequence[Verdict],
) -> str:
    """The page in Markdown."""
    parts = [
        "# Which method needs the fewest oracle calls?",
        "![Calls of the best tuned rival over calls of SSO](overview.png)",
        " ".join(sentences(scale, found)),
        "## Lost cases",
        _lost(found),
        "## Calls to three levels",
        "Median calls over seeds until the loss was within 0.1, 0.01 and 0.001 of the way from the best value that any "
        "method found in half of SSO's budget to the start (Moré and Wild, 2009). A dash means that more than half of "
        "the seeds did not get there within the arm's own budget. *Lowest* is the median of the lowest loss within "
        "SSO's budget, *in the end* within the arm's own. Seconds are of processor time, beside the calls, to level "
        "0.01. Every question counts, the trials of line-searches included.",
        *(_table(task) for task in found),
        "## What a price changes",
        "![Time of the best rival over time of SSO by the price of a call](prices.png)",
        _price_table(found),
    ]
    if any(task.of("ablation") for task in found):
        parts += [
            "## What each part of the default brings, beside other rules",
            "![Ablations](ablations.png)",
        ]
    if len(found) > 1:
        parts += ["## Profiles", "![Performance profiles](profiles.png)"]
    parts += [
        "## Verdicts",
        _verdicts(judged),
        "## How it was made",
        f"    {COMMAND.format(scale=scale)}\n\n{_made(scale)}{_took(found)}{_missing(found)}",
    ]
    return "\n\n".join(parts) + "\n"


def sentences(scale: str, found: Sequence[TaskFindings]) -> list[str]:
    """The six sentences of the first screen."""
    ratios = {task.title: task.middle_ratio("rival") for task in found}
    known = {title: value for title, value in ratios.items() if not math.isnan(value)}
    if not known:
        return ["Neither SSO nor a rival reached any level, so there is nothing to compare yet."]
    won = [title for title, value in known.items() if value > 1]
    best, worst = max(known, key=lambda t: known[t]), min(known, key=lambda t: known[t])
    tricked = [task for task in found if task.of("trick")]
    beaten = [t.title for t in tricked if t.ratio(1, "trick")[0] > 1]
    evens = [task.break_even("rival") for task in found]
    paying = sorted(each for each in evens if math.isfinite(each))
    extent = EXTENTS[scale]
    price = (
        f"half of the {len(paying)} problems where it can pay at all pay from {middle(paying):.2g} seconds a call on"
        if paying
        else "it pays at no price"
    )
    return [
        f"`to.SSO(params)`, with nothing tuned, needs fewer oracle calls than the best of tuned {_rivals(found)} "
        f"on {len(won)} of {len(known)} problems.",
        f"In the median over problems the rival needs {middle(list(known.values())):.2g} times as many calls.",
        f"It gains most on {best} ({known[best]:.2g} times) and least on {worst} ({known[worst]:.2g} times).",
        f"Against what single fields do to save calls it needs fewer on {len(beaten)} of {len(tricked)} problems."
        if tricked
        else "No trick of a single field took part.",
        f"Each step costs more time besides the calls: {price}.",
        f"These are medians over {extent.seeds} seed{'s' * (extent.seeds > 1)} at the {scale} scale, with settings "
        f"chosen on other seeds{_REHEARSAL if extent.tried is not None else ''}.",
    ]


def _lost(found: Sequence[TaskFindings]) -> str:
    """Where a tuned rival needs fewer calls at some level, or ends lower; and where a trick is ahead."""
    lines = []
    for task in found:
        said = []
        for level, share in enumerate(SHARES):
            value, bound = task.ratio(level, "rival")
            best = task.best(level, "rival")
            if value < 1 and best is not None:
                most = "" if not bound else " (SSO did not get there)"
                said.append(
                    f"to level {share:g}, {best.label} needs {best.median_calls(level):.3g} calls and SSO "
                    f"{_calls(task.own.median_calls(level))}{most}"
                )
        lower = min(task.of("rival"), key=lambda arm: middle(arm.lowest), default=None)
        if lower is not None and middle(lower.lowest) < middle(task.own.lowest):
            said.append(
                f"{lower.label} ends lower, at {middle(lower.lowest):.4g} against {middle(task.own.lowest):.4g}"
            )
        later = min(task.of("rival"), key=lambda arm: middle(arm.at_end), default=None)
        if later is not None and middle(later.at_end) < middle(task.own.lowest):
            said.append(
                f"with {task.patience} times the calls, {later.label} ends at {middle(later.at_end):.4g}, where SSO "
                f"had {middle(task.own.lowest):.4g}"
            )
        trick = task.best(1, "trick")
        if trick is not None and task.ratio(1, "trick")[0] < 1:
            said.append(
                f"{trick.label} needs {trick.median_calls(1):.3g} calls to level {SHARES[1]:g}, and SSO "
                f"{_calls(task.own.median_calls(1))}"
            )
        if said:
            lines.append(f"- **{task.title}**: {'; '.join(said)}.")
    return "\n".join(lines) or "There is none."


def _calls(value: float) -> str:
    return "—" if math.isinf(value) else f"{value:.3g}"


def _table(task: TaskFindings) -> str:
    cost = f"A call is {task.oracle}; it took {task.call_seconds:.2g} s here by the clock."
    more = f", {task.patience * task.budget} for the tuned rivals" if task.patience > 1 else ""
    head = f"### {task.title}\n\n{cost} Budget: {task.budget} calls{more}.\n"
    rows = [
        "| arm | setting | "
        + " | ".join(f"{s:g}" for s in SHARES)
        + " | lowest | in the end | seconds besides | ended |"
    ]
    rows.append("|---|---|" + "---:|" * (len(SHARES) + 3) + "---|")
    for arm in task.arms:
        calls = " | ".join(_calls(arm.median_calls(level)) for level in range(len(SHARES)))
        setting = "" if arm.chosen is None else f"{arm.chosen:g}"
        ended = ", ".join(f"{count} {status}" for status, count in sorted(arm.statuses.items()))
        rows.append(
            f"| {arm.label} | {setting} | {calls} | {middle(arm.lowest):.5g} | {middle(arm.at_end):.5g} | "
            f"{_calls(arm.median_beside(1))} | {ended} |"
        )
    return head + "\n" + "\n".join(rows)


def _price_table(found: Sequence[TaskFindings]) -> str:
    rows = [
        "The time of the cheapest rival over that of SSO to level 0.01, with the measured time beside the calls, and "
        "the price above which SSO is the cheapest (∞: it never is; 0: it always is). A rival that did not get there "
        "counts with all that it spent, which is less than it would need.\n",
        "| problem | " + " | ".join(f"{price:g} s" for price in PRICES) + " | break-even, s |",
        "|---|" + "---:|" * (len(PRICES) + 1),
    ]
    for task in found:
        ratios = " | ".join(_short(task.price_ratio(price, "rival")) for price in PRICES)
        even = task.break_even("rival")
        rows.append(f"| {task.title} | {ratios} | {'∞' if math.isinf(even) else f'{even:.2g}'} |")
    return "\n".join(rows)


def _short(value: float) -> str:
    return "—" if math.isnan(value) else f"{value:.2g}"


def _verdicts(judged: Sequence[Verdict]) -> str:
    rows = ["| verdict | claim | numbers |", "|---|---|---|"]
    for verdict in judged:
        numbers = "; ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in verdict.numbers.items()
        )
        rows.append(f"| {verdict.verdict} | {verdict.claim} | {numbers} |")
    return "\n".join(rows)


def _missing(found: Sequence[TaskFindings]) -> str:
    """What has not been run yet, so that a page about a part of the study says so."""
    known = {task.name for task in found}
    left = [task.title for task in tasks() if task.name not in known]
    bare = [task.title for task in found if not task.of("ablation")]
    said = f" Not run yet: {'; '.join(left)}." if left else ""
    if bare and len(bare) < len(found):
        said += f" Without ablations so far: {'; '.join(bare)}."
    return said


def _took(found: Sequence[TaskFindings]) -> str:
    """What all runs took; where problems are from other machines or other code, which ones."""
    stamps = [task.made for task in found if task.made]
    if not stamps:
        return ""
    kinds: dict[tuple[str, str], list[str]] = {}
    for task in found:
        processor = task.made["machine"].get("processor", "an unknown processor")
        commits = ", ".join(commit[:10] for commit in task.made["commits"])
        kinds.setdefault((processor, commits), []).append(task.title)
    runs, minutes = (sum(stamp[name] for stamp in stamps) for name in ("runs", "processor_minutes"))
    whole = f" All {runs} runs, trials included, took {minutes:.0f} minutes of processor time"
    if len(kinds) == 1:
        [(processor, commits)] = kinds
        return f"{whole} ({processor}), with the code of {commits}."
    parts = "; ".join(
        f"{', '.join(titles)} ({processor}, code of {commits})"
        for (processor, commits), titles in kinds.items()
    )
    return f"{whole}, in sittings: {parts}."


def _made(scale: str) -> str:
    extent = EXTENTS[scale]
    lists = (
        "two values of each setting were tried"
        if extent.tried is not None
        else "lists of seven values were extended until the best lay inside, and coarse ones refined"
    )
    fewer = (
        f" Other rules and ablations of SSO are shown with the first {extent.fewer} seeds, and compared with the "
        "default on these."
        if extent.fewer is not None
        else ""
    )
    return (
        f"Settings were chosen on {extent.tuning_seeds} other seed{'s' * (extent.tuning_seeds > 1)} by the mean log "
        f"calls to the three levels; {lists}. SSO's default was told that a call costs {extent.price:g} inner steps, "
        f"which decides m, so that no run depends on how busy the machine was.{fewer} `choices.json` has every value "
        "that was tried, `findings.json` every number of this page, `verdicts.json` the verdicts."
    )


def _rivals(found: Sequence[TaskFindings]) -> str:
    """The names of the tuned rivals, and on how many problems those took part that did not everywhere."""
    counts = Counter(arm.label for task in found for arm in task.of("rival"))
    names = [
        label if count == len(found) else f"{label} (on {count} of {len(found)} problems)"
        for label, count in counts.items()
    ]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
