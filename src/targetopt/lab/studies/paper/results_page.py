"""The page of published results: which claims hold, with numbers, from what lies in the folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from targetopt.lab.report.page import duration, number
from targetopt.lab.run import tuning
from targetopt.lab.statistics import verdicts
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.studies.paper import figures
from targetopt.lab.studies.paper.judging import BEYOND

Facts = Mapping[str, Any]


def written(folder: Path) -> str:
    """The page of all figures that were published to ``folder``, in Markdown."""
    facts = {
        name: json.loads((folder / name / "facts.json").read_text(encoding="utf-8"))
        for name in figures.names()
        if (folder / name / "facts.json").exists()
    }
    judged = {name: verdicts.read(folder / name) for name in facts}
    return "\n".join(_page(folder, facts, judged)) + "\n"


def _page(
    folder: Path, facts: Mapping[str, Facts], judged: Mapping[str, list[Verdict]]
) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield (
        "What `targetopt reproduce` gave, written by `--publish`. "
        "[How claims are judged, and what was chosen where the paper leaves a choice]"
        "(../docs/reproduction.md)."
    )
    yield ""
    yield "| figure | the paper's claims: hold / mixed / do not / not judged | beyond the paper |"
    yield "|---|---|---|"
    for name, found in judged.items():
        ours = [verdict for verdict in found if verdict.claim.startswith(BEYOND)]
        theirs = [verdict for verdict in found if verdict not in ours]
        link = f"[{name}](#{name.lower()})"
        yield f"| {link} {figures.title(name)} | {_counted(theirs)} | {_counted(ours)} |"
    yield ""
    yield from _economy(list(facts.values()))
    yield ""
    yield "## Claims and verdicts"
    for name in facts:
        yield from _figure(folder / name, name, facts[name], judged[name])
    yield ""
    yield "## From a curve to its run"
    yield ""
    yield (
        "`FIGURE/curves.parquet` has a row per recorded step, with the id of its run: at most 64 records a run, "
        "measurements as float32. This finds the runs of a line, and does one of them again, alone:"
    )
    yield ""
    yield "    python -c \"import pandas as pd; t = pd.read_parquet('FIGURE/curves.parquet'); \\"
    yield "        print(t[['problem', 'batch_size', 'label', 'seed', 'run']].drop_duplicates().to_string())\""
    yield "    targetopt run FIGURE/spec.toml --only ID --out redo"
    yield ""
    yield (
        "Its numbers are the same, bit for bit, each time it is done with the same versions on the same machine."
    )


def _counted(found: list[Verdict]) -> str:
    counts = Counter[str](verdict.verdict for verdict in found)
    order = ("holds", "mixed", "does not hold", "not judged")
    return " / ".join(str(counts[verdict]) for verdict in order) if found else "–"


def _economy(facts: list[Facts]) -> Iterator[str]:
    """What it took, runs that figures share counted once."""
    status: dict[str, str] = {}
    shown: dict[str, float] = {}
    trials: dict[str, float] = {}
    for each in facts:
        status |= each["status"]
        shown |= each["cpu_time"]
        trials |= each["trial_cpu_time"]
    ended = ", ".join(f"{count} {word}" for word, count in Counter(status.values()).most_common())
    yield "| | |"
    yield "|---|---|"
    yield f"| runs shown | {len(shown)} ({ended}), {duration(sum(shown.values()))} of processor time |"
    if trials:
        took = duration(sum(trials.values()))
        yield f"| runs that step sizes were chosen by | {len(trials)}, {took} of processor time |"
    started = [moment for each in facts for moment in each.get("started", [])]
    if started:
        yield f"| begun | {min(started)} to {max(started)} |"
    for key in ("commit", "machine", "versions"):
        values = dict.fromkeys(value for each in facts for value in each[key])
        yield f"| {key} | {'; '.join(values)} |"


def _figure(folder: Path, name: str, facts: Facts, judged: list[Verdict]) -> Iterator[str]:
    yield ""
    yield f"### {name}"
    yield ""
    yield f"{facts['title'] or figures.title(name)}."
    if facts["shown"]:
        busy = duration(sum(facts["cpu_time"].values()))
        yield (
            f"Data: {'; '.join(facts['data'])}. {len(facts['cpu_time'])} runs, {busy} of processor time. "
            f"Redraw, with just these data: `targetopt run {name}/spec.toml --out redo && targetopt report redo`; "
            f"with the data the paper names, if they can be had: "
            f"`targetopt reproduce {name} --scale {facts['scale']}`."
        )
    else:
        yield f"Redraw: `targetopt reproduce {name} --scale {facts['scale']}`."
    yield ""
    pictures = sorted(
        folder.glob("*.png"),
        key=lambda path: (
            not path.stem.startswith("rules-"),
            path.stem != "curves-loss",
            path.stem,
        ),
    )
    for picture in pictures[:1]:
        yield f"![{picture.stem}]({name}/{picture.name})"
        yield ""
    if pictures[1:]:
        yield "Further: " + ", ".join(f"[{p.stem}]({name}/{p.name})" for p in pictures[1:]) + "."
        yield ""
    yield "| verdict | claim | numbers | n | test |"
    yield "|---|---|---|---|---|"
    for verdict in judged:
        numbers = "; ".join(
            f"{key}: {number(value) if isinstance(value, float | int) else value}"
            for key, value in verdict.numbers.items()
        )
        yield (
            f"| **{verdict.verdict}** | {_cell(verdict.claim)} | {_cell(numbers)} | {verdict.n} "
            f"| {_cell(verdict.test)} |"
        )
    choices = tuning.read(folder)
    if choices:
        edges = sum(bool(choice["at_edge"]) for choice in choices)
        first = choices[0]
        yield ""
        yield (
            f"Step sizes were chosen {len(choices)} times, by the final {first['metric']} after "
            f"{first['epochs']} epochs with seed {first['seed']}; {edges} choices lie at the end of their "
            f"list. [All of them]({name}/tuning.json)."
        )


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
