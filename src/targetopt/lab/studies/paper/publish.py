"""Results in a form that can be committed: compact curves, small figures, and a page that says what came out.

::

    DIR/README.md                findings, caveats, and where the rest is
    DIR/FIGURE/README.md         what holds and what does not, with numbers
    DIR/FIGURE/curves.parquet    every run of the figure, a row per recorded step
    DIR/FIGURE/inequalities.parquet   of a figure on theory: both sides of what its claims say
    DIR/FIGURE/*.png             the figure as the paper has it, and its further panels
    DIR/FIGURE/spec.toml         what was run; with --only ID it redraws a single curve
    DIR/FIGURE/verdicts.json     the verdicts
    DIR/FIGURE/tuning.json       what tuned methods chose
    DIR/FIGURE/facts.json        scale, data, times, versions, what the runs are, and their digests
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from targetopt.lab.run import tuning
from targetopt.lab.statistics import verdicts
from targetopt.lab.statistics.verdicts import Verdict
from targetopt.lab.store.directory import Run, Store
from targetopt.lab.store.files import explained, write_whole
from targetopt.lab.studies.paper import claims, curves, results_page
from targetopt.lab.studies.paper.reproduce import Reproduction
from targetopt.lab.studies.theory.figure_verdicts import FILE as INEQUALITIES

COLOURS = 256
"""Colours of a published png: lines, bands and letters need no more, and it takes a third of the space."""

FIGURES = (
    "rules-loss", "curves-loss", "curves-suboptimality", "cost-loss", "price-loss-batch-625", "profile-loss",
    "oil-",
)  # fmt: skip
"""How the names of the figures begin that are published; the others are in the reports."""
THE_FIGURE = "curves-loss"
"""The one picture that is published where one is enough."""
OWN = "oil-"
"""Figures with pictures of their own, in the paper's layout, need no others."""


def publish(found: Sequence[Reproduction], to: Path, *, scale: str, few: bool = False) -> Path:
    """Write what came of figures to the folder ``to``; returns the page, which is of all figures there.

    What the folder has of these figures is replaced; other figures in it are left as they are.

    Args:
        found: the figures.
        to: the folder, made if need be.
        scale: the one they were run at.
        few: whether one picture of each figure is enough.
    """
    for done in found:
        folder = to / done.figure
        with explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):
            old.unlink()
        pictures = sorted((done.directory / "figures").glob("*.png"))
        own = [picture for picture in pictures if picture.stem.startswith(OWN)]
        for picture in own or pictures:
            if done.summary is None or (
                picture.stem == THE_FIGURE if few else picture.stem.startswith(FIGURES)
            ):
                write_whole(folder / picture.name, _small(picture))
        for name in ("spec.toml", "verdicts.json", "tuning.json", INEQUALITIES):
            if (done.directory / name).exists():
                shutil.copyfile(done.directory / name, folder / name)
        runs = [] if done.summary is None else Store(done.directory).shown()
        if runs:
            write_whole(folder / curves.FILE, curves.written(done.figure, runs))
        facts = json.dumps(_facts(done, runs, scale), indent=1, ensure_ascii=False)
        write_whole(folder / "facts.json", facts.encode())
    return judge_anew(to)


def judge_anew(folder: Path) -> Path:
    """Judge the claims of all figures in ``folder`` on their published curves, and write all pages; returns the first.

    A claim that needs more than is published keeps the verdict that it was given where it was run, and says so.
    """
    read = lru_cache(curves.read)
    for name in claims.EVERY:
        if (folder / name / curves.FILE).exists():
            before = {verdict.claim: verdict for verdict in verdicts.read(folder / name)}
            found = claims.judge_figure(folder, name, read)
            kept = [_kept(before.get(verdict.claim), verdict) for verdict in found]
            verdicts.write(folder / name, kept)
    return results_page.write(folder)


def _kept(before: Verdict | None, now: Verdict) -> Verdict:
    if now.verdict != "not judged" or before is None or before.verdict == "not judged":
        return now
    said = f"{before.test.partition(WHERE_RUN)[0]}{WHERE_RUN}{now.test}"
    return replace(before, test=said)


WHERE_RUN = "; judged where it was run, and not from the published curves: "


def _facts(done: Reproduction, runs: Sequence[Run], scale: str) -> dict[str, Any]:
    """What the page says of a figure beside its verdicts."""
    store = Store(done.directory)
    choices = tuning.read(done.directory)
    trials = {tried["id"] for choice in choices for tried in choice["tried"]}
    manifests = {run.manifest["id"]: run.manifest for run in runs}
    whole = done.directory / "done.json"  # of a figure without runs, which is done as a whole
    stamps = [json.loads(whole.read_text("utf-8"))] if whole.exists() else list(manifests.values())

    def seconds(manifest: Mapping[str, Any] | None) -> float:
        return float((manifest or {}).get("cpu_time") or 0.0)

    def distinct(key: str) -> list[str]:
        values = Counter(_spelt(stamp.get(key)) for stamp in stamps)
        return [value for value, _ in values.most_common()]

    return {
        "scale": scale,
        "data": list(dict.fromkeys(run.manifest["problem"]["label"] for run in runs)),
        "shown": len(runs),
        "status": {run: manifest["status"] for run, manifest in manifests.items()},
        "cpu_time": {run: seconds(manifest) for run, manifest in manifests.items()},
        "trial_cpu_time": {run: seconds(store.manifest(run)) for run in sorted(trials)},
        "title": _title(done.directory),
        "started": sorted(stamp["started"] for stamp in stamps),
        "as_a_whole": stamps[0]["cpu_time"] if whole.exists() else 0.0,
        **{key: distinct(key) for key in ("commit", "machine", "versions")},
        **curves.described(runs),
    }


def _title(directory: Path) -> str:
    """What was run: the figure, its scale, and which data stood in for others."""
    spec = directory / "spec.toml"
    return str(tomllib.loads(spec.read_text(encoding="utf-8"))["name"]) if spec.exists() else ""


def _spelt(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def _small(picture: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(picture) as image:
        # Not by how many pixels have a colour, which would merge thin lines; then refined, for pale bands.
        few = image.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=3)
        few.save(buffer, "png", optimize=True)
    return buffer.getvalue()
