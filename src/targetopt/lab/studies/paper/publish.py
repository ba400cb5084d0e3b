"""Results in a form that can be committed: compact curves, small figures, and a page that says what came out.

::

    DIR/README.md                what holds and what does not, with numbers, times and versions
    DIR/FIGURE/curves.parquet    every run of the figure, a row per recorded step
    DIR/FIGURE/*.png             the figure as the paper has it, and its further panels
    DIR/FIGURE/spec.toml         what was run; with --only ID it redraws a single curve
    DIR/FIGURE/verdicts.json     the verdicts
    DIR/FIGURE/tuning.json       what tuned methods chose
    DIR/FIGURE/facts.json        scale, data, times, versions
"""

from __future__ import annotations

import io
import json
import shutil
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from targetopt.lab.report.payload import thinned
from targetopt.lab.run import tuning
from targetopt.lab.store.directory import Run, Store
from targetopt.lab.store.files import explained, write_whole
from targetopt.lab.studies.paper import results_page
from targetopt.lab.studies.paper.reproduce import Reproduction

RECORDS = 64
"""Rows kept of each run, as evenly in log step as its records are."""
COLOURS = 256
"""Colours of a published png: lines, bands and letters need no more, and it takes a third of the space."""

FIGURES = (
    "rules-loss", "curves-loss", "curves-suboptimality", "cost-loss", "price-loss-batch-625", "profile-loss",
    "oil-",
)  # fmt: skip
"""How the names of the figures begin that are published; the others are in the reports."""
OWN = "oil-"
"""Figures with pictures of their own, in the paper's layout, need no others."""


def publish(found: Sequence[Reproduction], to: Path, *, scale: str) -> Path:
    """Write what came of figures to the folder ``to``; returns the page, which is of all figures there.

    What the folder has of these figures is replaced; other figures in it are left as they are.
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
            if done.summary is None or picture.stem.startswith(FIGURES):
                write_whole(folder / picture.name, _small(picture))
        for name in ("spec.toml", "verdicts.json", "tuning.json"):
            if (done.directory / name).exists():
                shutil.copyfile(done.directory / name, folder / name)
        runs = [] if done.summary is None else Store(done.directory).shown()
        if runs:
            write_whole(folder / "curves.parquet", _curves(done.figure, runs))
        facts = json.dumps(_facts(done, runs, scale), indent=1, ensure_ascii=False)
        write_whole(folder / "facts.json", facts.encode())
    page = to / "README.md"
    write_whole(page, results_page.written(to).encode())
    return page


def _facts(done: Reproduction, runs: Sequence[Run], scale: str) -> dict[str, Any]:
    """What the page says of a figure beside its verdicts."""
    store = Store(done.directory)
    choices = tuning.read(done.directory)
    trials = {tried["id"] for choice in choices for tried in choice["tried"]}
    manifests = {run.manifest["id"]: run.manifest for run in runs}

    def seconds(manifest: Mapping[str, Any] | None) -> float:
        return float((manifest or {}).get("cpu_time") or 0.0)

    def distinct(key: str) -> list[str]:
        values = Counter(_spelt(manifest.get(key)) for manifest in manifests.values())
        return [value for value, _ in values.most_common()]

    return {
        "scale": scale,
        "data": list(dict.fromkeys(run.manifest["problem"]["label"] for run in runs)),
        "shown": len(runs),
        "status": {run: manifest["status"] for run, manifest in manifests.items()},
        "cpu_time": {run: seconds(manifest) for run, manifest in manifests.items()},
        "trial_cpu_time": {run: seconds(store.manifest(run)) for run in sorted(trials)},
        "title": _title(done.directory),
        "started": sorted(manifest["started"] for manifest in manifests.values()),
        **{key: distinct(key) for key in ("commit", "machine", "versions")},
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
        with np.errstate(over="ignore"):  # a diverging loss may be infinite a few steps earlier
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
    "best_in_class", "held_out_loss", "mean_return", "gathering_time", "updating_time",
)  # fmt: skip
