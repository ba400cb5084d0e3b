"""The page of one published figure: its pictures, its claims with their numbers, its tuning, how to redo it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from targetopt.lab.report.page import duration, number
from targetopt.lab.run import tuning
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.studies.paper import figures
from targetopt.lab.studies.paper.judging import BEYOND

Facts = Mapping[str, Any]


def written(folder: Path, name: str, facts: Facts, judged: Sequence[Verdict]) -> str:
    """``FIGURE/README.md`` from what lies in the figure's folder."""
    return "\n".join(_page(folder, name, facts, judged)) + "\n"


def pictures(folder: Path) -> list[Path]:
    """The pictures of a figure, the one that the paper has first."""
    return sorted(
        folder.glob("*.png"),
        key=lambda path: (
            not path.stem.startswith("rules-"),
            path.stem != "curves-loss",
            path.stem,
        ),
    )


def _page(folder: Path, name: str, facts: Facts, judged: Sequence[Verdict]) -> Iterator[str]:
    yield f"# {name}"
    yield ""
    yield f"{facts['title'] or figures.title(name)}. [All figures](../README.md)."
    yield ""
    yield from _redo(name, facts)
    yield from _changed(folder, name)
    shown = pictures(folder)
    for picture in shown[:1]:
        yield ""
        yield f"![{picture.stem}]({picture.name})"
    if shown[1:]:
        yield ""
        yield "Further pictures: " + ", ".join(f"[{p.stem}]({p.name})" for p in shown[1:]) + "."
    ours = [verdict for verdict in judged if verdict.claim.startswith(BEYOND)]
    theirs = [verdict for verdict in judged if verdict not in ours]
    decided = [verdict for verdict in judged if verdict.verdict != "not judged"]
    tests = list(dict.fromkeys(verdict.test for verdict in decided))
    for title, some in (("What the paper says", theirs), ("Beyond the paper", ours)):
        if some:
            yield ""
            yield f"## {title}"
            yield ""
            yield from _table([verdict for verdict in some if verdict in decided], tests)
            for verdict in some:
                if verdict not in decided:
                    yield ""
                    yield f"Not judged: {verdict.claim}, since {verdict.test}."
    yield ""
    yield "## Tests"
    yield ""
    yield from (f"{place}. {test}" for place, test in enumerate(tests, 1))
    yield ""
    if any(verdict.asked for verdict in judged):
        yield "`verdicts.json` has each test as data, too, under `asked`."
    yield from _tuned(folder)


def _redo(name: str, facts: Facts) -> Iterator[str]:
    if not facts["shown"]:
        took = duration(facts["as_a_whole"])
        yield f"* Redraw: `targetopt reproduce {name} --scale {facts['scale']}`; it took {took} of processor time."
        yield f"* On {'; '.join(facts['machine'])}."
        yield f"* Commit {', '.join(facts['commit'])}; {'; '.join(facts['versions'])}."
        return
    busy = duration(sum(facts["cpu_time"].values()))
    yield f"* Data: {'; '.join(facts['data'])}."
    yield f"* {len(facts['cpu_time'])} runs, {busy} of processor time, on {'; '.join(facts['machine'])}."
    yield f"* Commit {', '.join(facts['commit'])}; {'; '.join(facts['versions'])}."
    yield (
        f"* Redo with just these data: `targetopt run {name}/spec.toml --out redo && targetopt report redo`; with the "
        f"data the paper names, if they can be had: `targetopt reproduce {name} --scale {facts['scale']}`."
    )
    imitates = any("environment" in problem for problem in facts["problems"].values())
    yield (
        "* `facts.json` has a digest of what is published of every run. A run that is redone "
        f"{NEAR_ENOUGH[imitates]}."
    )


NEAR_ENOUGH = {
    False: "should give the same digest on another processor, unless L-BFGS or an exact solution is inside",
    True: "differs by per cents on another processor: simulators and networks are chaotic",
}
"""What to expect elsewhere, of linear models and of imitation."""


def _changed(folder: Path, name: str) -> Iterator[str]:
    """Where the figure's specification has changed since it was run."""
    path = folder / "spec.toml"
    if not path.exists():
        return
    ran = _methods(tomllib.loads(path.read_text(encoding="utf-8"))["methods"])
    now = _methods(figures.specification(name)["methods"])
    added, gone = [m for m in now if m not in ran], [m for m in ran if m not in now]
    if added or gone:
        yield ""
        yield (
            "**These results are of an earlier specification**, which is `spec.toml` here. The present one"
            + (f" adds {'; '.join(f'`{each}`' for each in added)}" if added else "")
            + (" and" if added and gone else "")
            + (f" lacks {'; '.join(f'`{each}`' for each in gone)}" if gone else "")
            + ". What it adds has not been run at this scale."
        )


def _methods(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Methods in a line each, comparable; numbers as Python spells them."""
    shown = []
    for each in tables:
        options = {key: value for key, value in each.items() if key not in ("on", "name")}
        shown.append(" ".join([each["name"], *(f"{k}={v}" for k, v in sorted(options.items()))]))
    return shown


def _table(judged: Sequence[Verdict], tests: Sequence[str]) -> Iterator[str]:
    yield "| verdict | claim | numbers | n | test |"
    yield "|---|---|---|---|---|"
    for verdict in judged:
        numbers = "; ".join(
            f"{key}: {number(value) if isinstance(value, float | int) else value}"
            for key, value in verdict.numbers.items()
        )
        yield (
            f"| **{verdict.verdict}** | {_cell(verdict.claim.removeprefix(BEYOND))} | {_cell(numbers)} "
            f"| {verdict.n} | {tests.index(verdict.test) + 1} |"
        )


def _tuned(folder: Path) -> Iterator[str]:
    choices = tuning.read(folder)
    if not choices:
        return
    edges = sum(bool(choice["at_edge"]) for choice in choices)
    first = choices[0]
    yield ""
    yield "## Tuning"
    yield ""
    yield (
        f"Step sizes were chosen {len(choices)} times, by the final {first['metric']} after "
        f"{first['epochs']} epochs with seed {first['seed']}. **{edges} choices lie at the edge** of their list, where "
        "a better value may lie beyond it. [All of them](tuning.json)."
    )


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
