"""The first page of published results: six findings, four caveats, a picture, a command, and where the rest is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from targetopt.lab.report.page import duration
from targetopt.lab.run import tuning
from targetopt.lab.statistics import verdicts
from targetopt.lab.statistics.verdicts import JUDGEMENTS, Verdict
from targetopt.lab.store.files import write_whole
from targetopt.lab.studies.paper import figure_page, figures
from targetopt.lab.studies.paper.findings import findings
from targetopt.lab.studies.paper.judging import BEYOND

FIVE = 5
"""How many values the lists of tuned options begin with."""

Facts = Mapping[str, Any]
Judged = Mapping[str, Sequence[Verdict]]

OPENING = "fig2-rcv1"
"""Whose picture the page opens with, if it is there."""
TWINS = "twins"
"""The folder in which the same figures are published as run on synthetic twins."""
AGAIN = ("figA-sgd-constant-logistic", "mushrooms", "full", "SSO m=20", 0)
"""The curve that the page's command redoes: figure, problem, batch size, label, seed."""


def write(folder: Path) -> Path:
    """Write ``README.md`` of all figures that were published to ``folder``, and that of each; returns the first."""
    facts = {
        name: json.loads((folder / name / "facts.json").read_text(encoding="utf-8"))
        for name in figures.names()
        if (folder / name / "facts.json").exists()
    }
    judged = {name: verdicts.read(folder / name) for name in facts}
    for name in facts:
        text = figure_page.written(folder / name, name, facts[name], judged[name])
        write_whole(folder / name / "README.md", text.encode())
    page = folder / "README.md"
    write_whole(page, ("\n".join(_page(folder, facts, judged)) + "\n").encode())
    return page


def _page(folder: Path, facts: Mapping[str, Facts], judged: Judged) -> Iterator[str]:
    if _synthetic(facts):
        yield from _opening_of_twins()
    else:
        yield from _opening(folder, facts, judged)
    yield from _figures(folder, facts, judged)


def _synthetic(facts: Mapping[str, Facts]) -> bool:
    """Whether everything was run on synthetic twins."""
    problems = [options for each in facts.values() for options in each["problems"].values()]
    named = [str(options.get("data", options["name"])) for options in problems]
    return bool(named) and all(name.startswith("synthetic-") for name in named)


def _opening_of_twins() -> Iterator[str]:
    yield "# Results on synthetic twins"
    yield ""
    yield (
        "Every supervised figure at quick scale on the synthetic twins of its data sets. They are generated, so that "
        "anybody can redo every run with nothing to download and compare the digests:"
    )
    yield ""
    yield "    targetopt reproduce supervised --twins --publish mine"
    yield (
        "    python -c \"import json, pathlib; d = lambda p: json.loads(p.read_text())['digests'].items(); "
        "print({p.parent.name: len(d(p) - d(pathlib.Path('mine', p.parent.name, p.name))) "
        "for p in pathlib.Path('results/twins').glob('*/facts.json')})\""
    )
    yield ""
    yield (
        "The second command prints how many runs of each figure differ. Twins resemble the data in size and spectrum, "
        "and are not the data: what the paper claims is judged on [the data](../README.md), with twenty-five times as "
        "many epochs."
    )


def _opening(folder: Path, facts: Mapping[str, Facts], judged: Judged) -> Iterator[str]:
    yield "# Results"
    yield ""
    yield (
        "What `targetopt reproduce` gave. [How claims are judged, what was chosen where the paper leaves a choice, and "
        "how verdicts have changed](../docs/reproduction.md)."
    )
    found = findings(judged)
    if found:
        yield ""
        yield from (f"{place}. {sentence}" for place, sentence in enumerate(found, 1))
    yield ""
    yield "Four things to know before you quote a number:"
    yield ""
    yield from (f"* {caveat}" for caveat in _caveats(folder, facts, judged))
    opening = figure_page.pictures(folder / OPENING)
    if OPENING in facts and opening:
        yield ""
        yield f"![{figures.title(OPENING)}]({OPENING}/{opening[0].name})"
    yield from _one_curve(folder, facts)


def _figures(folder: Path, facts: Mapping[str, Facts], judged: Judged) -> Iterator[str]:
    yield ""
    yield "## Figures"
    yield ""
    words = " / ".join(JUDGEMENTS)
    yield f"Counts are of claims: {words}."
    yield ""
    yield "| figure | the paper's claims | beyond the paper |"
    yield "|---|---|---|"
    for name, each in judged.items():
        ours = [verdict for verdict in each if verdict.claim.startswith(BEYOND)]
        theirs = [verdict for verdict in each if verdict not in ours]
        link = f"[{name}]({name}/README.md)"
        yield f"| {link} {figures.title(name)} | {_counted(theirs)} | {_counted(ours)} |"
    missing = [name for name in figures.names() if name not in facts]
    if missing and not _synthetic(facts):
        yield ""
        yield f"Not published: {', '.join(missing)}."
    if (folder / TWINS).is_dir():
        yield ""
        yield (
            f"[Every supervised figure on synthetic twins]({TWINS}/README.md) at quick scale, for whoever has no data: "
            "its runs can be redone anywhere, with nothing to download, and their digests compared."
        )
    yield ""
    yield "## What it took"
    yield ""
    yield from _economy(list(facts.values()))
    yield ""
    yield "## From a curve to its run"
    yield ""
    yield (
        "`FIGURE/curves.parquet` has a row per recorded step, with the id of its run; measurements are float32. This "
        "finds the runs of a line, and does one of them again, alone:"
    )
    yield ""
    yield "    python -c \"import pandas as pd; t = pd.read_parquet('FIGURE/curves.parquet'); \\"
    yield "        print(t[['problem', 'batch_size', 'label', 'seed', 'run']].drop_duplicates().to_string())\""
    yield "    targetopt run FIGURE/spec.toml --only ID --out redo"
    yield ""
    yield (
        "Its numbers are the same, bit for bit, each time it is done with the same versions on the same machine (with "
        "L-BFGS inside only since the last bits of a sum stopped depending on where in memory it lies: figures of "
        "commits before that can differ in them). On "
        "another processor, expect the same published digits of linear models, except with L-BFGS or exact solutions "
        "inside and with tuned steps so long that a run is chaotic (732 runs were done on two: of plain methods 439 of "
        "468 are the same, with L-BFGS 42 of 144, with exact solutions 88 of 120); per cents of imitation, whose "
        "simulators and networks are chaotic. "
        "`FIGURE/facts.json` has a digest of what is published of every run."
    )
    yield ""
    yield (
        "`targetopt judge results` judges all claims anew from the published curves and writes these pages. "
        "`python results/recompute.py` does the judging with code of its own, in numpy and pandas; it judges the "
        "claims on theory, too, from both sides of every inequality, which are published in `inequalities.parquet`."
    )


def _caveats(folder: Path, facts: Mapping[str, Facts], judged: Judged) -> Iterator[str]:
    numbers = [key for each in judged.values() for verdict in each for key in verdict.numbers]
    measured = any(key.startswith("median margin") for key in numbers)
    margins = "and margins are" if measured else "are"
    yield (
        "**Three data sets, three seeds.** Intervals say what varies with the seed; nothing is claimed about other "
        "data. Two of the three (mushrooms, RCV1) are separable: there the logistic loss falls for ever as the weights "
        f"grow, so its final value measures how far a method has gone. Gradient norms {margins} shown beside it"
        f"{'.' if measured else '; margins were not recorded.'}"
    )
    yield (
        "**RCV1 is another subset** of the same collection (RCV1-v2), since LIBSVM's file was not to be had. Without "
        "that file `targetopt reproduce` takes the synthetic twin, which gives other numbers."
    )
    choices = [choice for name in facts for choice in tuning.read(folder / name)]
    edges = sum(bool(choice["at_edge"]) for choice in choices)
    longest = max((len(choice["tried"]) for choice in choices), default=0)
    means = (
        f"the best of five to {longest} values**: lists are extended until the best lies inside, up to a limit"
        if longest > FIVE
        else "the best of five values**"
    )
    yield (
        f'**"Tuned" means {means}, and {edges} of {len(choices)} choices lie at the edge of their list: a longer list '
        "would tune them further. Pages say which."
    )
    yield (
        "**Some settings decide verdicts**: the floor of SSO-Newton, the cap of SLS, where line-searches begin, how "
        '"on par" is read. The pages name them, and so do the verdicts.'
    )


def _one_curve(folder: Path, facts: Mapping[str, Facts]) -> Iterator[str]:
    figure, *line = AGAIN
    if figure not in facts:
        return
    import pyarrow.parquet as pq

    table = pq.read_table(
        folder / figure / "curves.parquet",
        columns=["problem", "batch_size", "label", "seed", "run"],
    )
    rows = {tuple(row.values())[:-1]: row["run"] for row in table.to_pylist()}
    run = rows.get(tuple(line))
    if run is None:
        return
    took = duration(facts[figure]["cpu_time"][run])
    yield ""
    yield f"Redo one curve ({line[2]} on {line[0]}, full batch, {took} of processor time here):"
    yield ""
    yield f"    targetopt run results/{figure}/spec.toml --only {run} --out redo"


def _counted(found: Sequence[Verdict]) -> str:
    counts = Counter[str](verdict.verdict for verdict in found)
    return " / ".join(str(counts[word]) for word in JUDGEMENTS) if found else "–"


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
