"""Results in a form that can be committed: compact curves, small figures, and a page that says what came out.

::

    DIR/README.md                what holds and what does not, with numbers, times and versions
    DIR/FIGURE/curves.parquet    every run of the figure, a row per recorded step
    DIR/FIGURE/*.png             the figure as the paper has it, and its further panels
    DIR/FIGURE/spec.toml         what was run; with --only ID it redraws a single curve
    DIR/FIGURE/verdicts.json     the verdicts
    DIR/FIGURE/tuning.json       what tuned methods chose
"""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from targetopt.bench import tuning
from targetopt.bench.files import explained, write_whole
from targetopt.bench.payload import thinned
from targetopt.bench.report import duration, number
from targetopt.bench.store import Run, Store
from targetopt.bench.verdicts import JUDGEMENTS
from targetopt.paper import figures
from targetopt.paper.reproduce import Reproduction

RECORDS = 64
"""Rows kept of each run, as evenly in log step as its records are."""
SHRUNK, COLOURS = 0.65, 64
"""Size and colours of a published png: small, and still to be read."""

FIGURES = ("curves-loss", "curves-suboptimality", "cost-loss", "price-loss", "oil-")
"""How the names of the figures begin that are published; the others are in the reports."""


def publish(found: Sequence[Reproduction], to: Path, *, scale: str) -> Path:
    """Write what came of figures to the folder ``to``; returns the page.

    Files of the same names are replaced, others are left alone.
    """
    with explained(to):
        to.mkdir(parents=True, exist_ok=True)
    runs = {}
    for done in found:
        folder = to / done.figure
        with explained(folder):
            folder.mkdir(exist_ok=True)
        for picture in sorted((done.directory / "figures").glob("*.png")):
            if done.summary is None or picture.stem.startswith(FIGURES):
                write_whole(folder / picture.name, _small(picture))
        for name in ("spec.toml", "verdicts.json", "tuning.json"):
            if (done.directory / name).exists():
                shutil.copyfile(done.directory / name, folder / name)
        if done.summary is not None:
            shown = Store(done.directory).shown()
            write_whole(folder / "curves.parquet", _curves(done.figure, shown))
            runs[done.figure] = shown
    page = to / "README.md"
    write_whole(page, "\n".join(_page(found, runs, to, scale)).encode())
    return page


def _small(picture: Path) -> bytes:
    buffer = io.BytesIO()
    with Image.open(picture) as image:
        size = [round(SHRUNK * side) for side in image.size]
        small = image.convert("RGB").resize((size[0], size[1]), Image.Resampling.LANCZOS)
        small.quantize(COLOURS).save(buffer, "png", optimize=True)
    return buffer.getvalue()


def _curves(figure: str, runs: Sequence[Run]) -> bytes:
    """One row per recorded step of every run; words as dictionaries, measurements as float32."""
    words: dict[str, list[str]] = {name: [] for name in _WORDS}
    measured = {name for run in runs for name in run.columns}
    recorded = [name for name in _NUMBERS if name == "seed" or name in measured]
    numbers: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in recorded}
    for run in runs:
        manifest = run.manifest
        kept = thinned(run.columns["step"], RECORDS)
        rounds = manifest["problem"]["name"] == "imitation"  # whose name does not say which
        described = {
            "figure": figure,
            "problem": manifest["problem"]["label" if rounds else "name"],
            "loss_function": manifest["problem"].get("loss", ""),
            "batch_size": str(manifest["batch_size"]),
            "method": manifest["method"]["name"],
            "label": manifest["method"]["label"],
            "panels": ", ".join(manifest["panels"]),
            "status": manifest["status"],
            "run": manifest["id"],
        }
        for name, text in described.items():
            words[name] += [text] * len(kept)
        numbers["seed"].append(np.full(len(kept), manifest["seed"]))
        for name in recorded[1:]:
            column = run.columns.get(name)
            missing = np.full(len(kept), np.nan)
            numbers[name].append(missing if column is None else column[kept])
    columns = {name: pa.array(texts).dictionary_encode() for name, texts in words.items()}
    for name, parts in numbers.items():
        kind = pa.int64() if name in _COUNTS else pa.float32()
        columns[name] = pa.array(np.concatenate(parts).astype(kind.to_pandas_dtype()), kind)
    buffer = pa.BufferOutputStream()
    # Whole numbers and words repeat from run to run; measurements do not, so their bytes are split.
    floats = [name for name in recorded if name not in _COUNTS]
    pq.write_table(
        pa.table(columns),
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in columns if name not in floats],
        use_byte_stream_split=floats,
    )
    return bytes(buffer.getvalue())


_WORDS = (
    "figure", "problem", "loss_function", "batch_size", "method", "label", "panels", "status", "run",
)  # fmt: skip
_COUNTS = ("seed", "step", "oracle_calls", "value_calls", "inner_steps")
_NUMBERS = (
    *_COUNTS, "epoch", "loss", "grad_norm", "suboptimality",
    "best_in_class", "held_out_loss", "return", "gathering_time", "updating_time",
)  # fmt: skip


def _page(
    found: Sequence[Reproduction], runs: Mapping[str, list[Run]], to: Path, scale: str
) -> Iterator[str]:
    every = {run.manifest["id"]: run.manifest for shown in runs.values() for run in shown}
    judged: Counter[str] = Counter(verdict.verdict for done in found for verdict in done.verdicts)
    yield "# Results"
    yield ""
    yield (
        f"What `targetopt reproduce` gave at {scale} scale; this page is written by it. "
        "[How claims are judged, and what was chosen where the paper leaves a choice]"
        "(../docs/reproduction.md)."
    )
    yield ""
    yield ", ".join(f"**{judged[verdict]} {_said(verdict)}**" for verdict in JUDGEMENTS) + "."
    yield ""
    yield from _facts(list(every.values()), found)
    yield ""
    yield "## Claims and verdicts"
    for done in found:
        yield from _figure(done, runs.get(done.figure), to, scale)
    yield ""
    yield "## From a curve to its run"
    yield ""
    yield (
        "`FIGURE/curves.parquet` has a row per recorded step, with the id of its run. Redo that run alone with"
    )
    yield ""
    yield "    targetopt run results/FIGURE/spec.toml --only ID --out redo"
    yield ""
    yield (
        f"At most {RECORDS} records a run are kept here, measurements as float32. The numbers of a run are "
        "the same, bit for bit, each time it is done with the same versions on the same machine."
    )
    yield ""


def _said(verdict: str) -> str:
    return {"holds": "hold", "does not hold": "do not hold", "mixed": "are mixed"}[verdict]


def _facts(manifests: list[dict[str, Any]], found: Sequence[Reproduction]) -> Iterator[str]:
    if not manifests:
        return
    busy = sum(float(m.get("cpu_time") or 0.0) for m in manifests)
    statuses = Counter(m["status"] for m in manifests)
    shown = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    trials = {
        tried["id"]
        for done in found
        for choice in tuning.read(done.directory)
        for tried in choice["tried"]
    }
    yield "| | |"
    yield "|---|---|"
    yield f"| distinct runs shown | {len(manifests)} ({shown}) |"
    yield f"| runs that step sizes were chosen by | {len(trials)} |"
    yield f"| processor time of the runs shown | {duration(busy)} |"
    stores = {done.directory: Store(done.directory) for done in found if done.summary is not None}
    store = next(iter(stores.values()))
    by_trials = sum(float((store.manifest(run) or {}).get("cpu_time") or 0.0) for run in trials)
    yield f"| processor time of the others | {duration(by_trials)} |"
    for name, of in (("commit", "commit"), ("machine", "machine"), ("versions", "versions")):
        values = Counter(_spelt(m.get(of)) for m in manifests)
        yield f"| {name} | {'; '.join(value for value, _ in values.most_common())} |"


def _spelt(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def _figure(done: Reproduction, runs: list[Run] | None, to: Path, scale: str) -> Iterator[str]:
    yield ""
    yield f"### {done.figure}"
    yield ""
    yield figures.title(done.figure) + "."
    if runs is not None:
        sets = dict.fromkeys(run.manifest["problem"]["label"] for run in runs)
        busy = sum(float(run.manifest.get("cpu_time") or 0.0) for run in runs)
        yield f"Data: {'; '.join(sets)}. {len(runs)} runs, {duration(busy)} of processor time."
    yield f"Redraw: `targetopt reproduce {done.figure} --scale {scale}`."
    yield ""
    for picture in sorted((to / done.figure).glob("*.png")):
        yield f"[{picture.stem}]({done.figure}/{picture.name})"
    yield ""
    yield "| verdict | claim | numbers | n | test |"
    yield "|---|---|---|---|---|"
    for verdict in done.verdicts:
        numbers = "; ".join(
            f"{name}: {number(value) if isinstance(value, float | int) else value}"
            for name, value in verdict.numbers.items()
        )
        yield (
            f"| **{verdict.verdict}** | {_cell(verdict.claim)} | {_cell(numbers)} | {verdict.n} "
            f"| {_cell(verdict.test)} |"
        )
    for claim, reason in done.left_open:
        yield f"| not judged | {_cell(claim)} | | | {_cell(reason)} |"
    choices = tuning.read(done.directory)
    if choices:
        edges = sum(bool(choice["at_edge"]) for choice in choices)
        yield ""
        yield (
            f"Step sizes were chosen {len(choices)} times, by the final {choices[0]['metric']} after "
            f"{choices[0]['epochs']} epochs with seed {choices[0]['seed']}; {edges} choices lie at the end of "
            f"their list. [All of them]({done.figure}/tuning.json)."
        )


def _cell(text: str) -> str:
    """Text inside a table of Markdown."""
    return text.replace("|", "\\|").replace("\n", " ")
