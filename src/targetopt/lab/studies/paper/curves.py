"""Published curves: one table a figure with what its runs recorded, written, read back, and recognised by digests.

A table has a row for each recorded step of each run. What the runs are (methods, problems, epochs) stands in
``facts.json`` beside it, so that claims can be judged on what is published, without runs, data or a simulator.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from targetopt.lab.report.payload import thinned
from targetopt.lab.store.directory import Run, is_clock
from targetopt.lab.studies.paper.evidence import NotJudged

FILE, FACTS = "curves.parquet", "facts.json"
RECORDS = 64
"""Rows kept of a supervised run, as evenly in log step as its records are. Of imitation all rounds are kept, since
single rounds say little and means over them are compared."""

_WORDS = (
    "figure", "problem", "loss_function", "batch_size", "method", "label", "panels", "status", "run",
)  # fmt: skip
_COUNTS = (
    "seed", "step", "oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls",
)  # fmt: skip
_NUMBERS = (
    *_COUNTS, "epoch", "loss", "grad_norm", "suboptimality", "margin",
    "best_in_class", "held_out_loss", "mean_return", "gathering_time", "updating_time",
)  # fmt: skip

Columns = Mapping[str, NDArray[Any]]


def written(figure: str, runs: Sequence[Run]) -> bytes:
    """One row per recorded step of every run; words as dictionaries, measurements as float32."""
    words: dict[str, list[str]] = {name: [] for name in _WORDS}
    measured = {name for run in runs for name in run.columns}
    recorded = [name for name in _NUMBERS if name == "seed" or name in measured]
    numbers: dict[str, list[NDArray[Any]]] = {name: [] for name in recorded}
    for run in runs:
        manifest = run.manifest
        kept = _kept(run.columns)
        described = {
            "figure": figure,
            "problem": _problem_key(run),
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
            missing = np.full(len(kept), -1 if name in _COUNTS else np.nan)
            numbers[name].append(missing if column is None else column[kept])
    columns = {name: pa.array(texts).dictionary_encode() for name, texts in words.items()}
    for name, parts in numbers.items():
        columns[name] = pa.array(_stored(name, np.concatenate(parts)))
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


def described(runs: Sequence[Run]) -> dict[str, Any]:
    """What ``facts.json`` says of the runs, so that they can be read back and recognised."""
    problems = {_problem_key(run): run for run in runs}
    return {
        "epochs": sorted({run.manifest["epochs"] for run in runs}),
        "methods": methods_by_label(runs),
        "problems": {key: run.manifest["problem"] for key, run in problems.items()},
        "expert_return": {
            key: found
            for key in problems
            if (found := _expert_return([r for r in runs if _problem_key(r) == key])) is not None
        },
        "digests": {run.manifest["id"]: digest(run.columns) for run in runs},
    }


def methods_by_label(runs: Sequence[Run]) -> dict[str, Any]:
    """The options of each label; where a label means different options on different problems, ``LABEL on PROBLEM``."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        method = run.manifest["method"]
        found.setdefault(method["label"], {})[_problem_key(run)] = method
    methods = {}
    for label, on in found.items():
        first, *others = on.values()
        if all(other == first for other in others):
            methods[label] = first
        else:
            methods |= {_on(label, problem): method for problem, method in on.items()}
    return methods


def _on(label: str, problem: str) -> str:
    return f"{label} on {problem}"


def read(folder: Path, figure: str) -> list[Run]:
    """The runs of a published figure, as far as they are published."""
    path = folder / figure / FILE
    if not path.exists():
        raise NotJudged(f"it needs the results of {figure} in the same directory")
    facts = json.loads((folder / figure / FACTS).read_text(encoding="utf-8"))
    table = pq.read_table(path)
    words = {name: _numbered(table[name]) for name in _WORDS}
    numbers = {n: table[n].to_numpy() for n in table.column_names if n not in _WORDS}
    return [
        _run(facts, {name: texts[which[first]] for name, (texts, which) in words.items()},
             {name: column[first:last] for name, column in numbers.items()})
        for first, last in _blocks(words["run"][1], words["label"][1], numbers["step"])
    ]  # fmt: skip


def _numbered(column: pa.ChunkedArray) -> tuple[list[str], NDArray[Any]]:
    """The different texts of a column, and which of them each row has: rows are many, texts are few."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    return whole.dictionary.to_pylist(), whole.indices.to_numpy()


def digest(columns: Columns) -> str:
    """Fingerprint of what is published of a run, times left out.

    A run that is done again gives the same digest if, and only if, every number that is published of it is the same.

    >>> columns = {"step": np.arange(3), "loss": np.array([1.0, 0.5, 0.25])}
    >>> digest(columns) == digest({**columns, "wall_time": np.ones(3)})
    True
    >>> digest(columns) == digest({**columns, "loss": np.array([1.0, 0.5, 0.26])})
    False
    """
    kept = _kept(columns)
    content = hashlib.sha256()
    for name in _DIGESTED:
        if name in columns:
            content.update(name.encode() + b"\0" + _stored(name, columns[name][kept]).tobytes())
    return content.hexdigest()[:16]


# Suboptimalities are losses less a constant, and older tables lack the counts of passes.
_DIGESTED = tuple(
    name
    for name in _NUMBERS
    if not is_clock(name) and name not in ("seed", "suboptimality", "forward_calls", "backward_calls")
)  # fmt: skip


def _kept(columns: Columns) -> NDArray[Any]:
    """The records that are published."""
    if "held_out_loss" in columns:  # imitation
        return np.arange(len(columns["step"]))
    return np.asarray(thinned(columns["step"], RECORDS))


def _stored(name: str, values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # a diverging loss may be infinite a few steps earlier
        return values.astype(np.int64 if name in _COUNTS else np.float32)


def _problem_key(run: Run) -> str:
    """What the table calls the problem: its name, or its label where all have one name."""
    problem = run.manifest["problem"]
    return str(problem["label" if problem["name"] in ("imitation", "probabilities") else "name"])


def _expert_return(runs: Sequence[Run]) -> float | None:
    """The expert's return, of which ``return_share`` is the learner's share."""
    for run in runs:
        if "return_share" in run.columns and run.manifest["status"] == "done":
            earned, share = run.columns["mean_return"], run.columns["return_share"]
            known = np.isfinite(earned) & np.isfinite(share) & (share != 0)
            if known.any():
                return float(np.median(earned[known] / share[known]))
    return None


def _blocks(runs: NDArray[Any], labels: NDArray[Any], steps: NDArray[Any]) -> list[tuple[int, int]]:
    """First and last row (exclusive) of every run as it is shown; one may be shown under two labels."""
    new = (runs[1:] != runs[:-1]) | (labels[1:] != labels[:-1]) | (steps[1:] <= steps[:-1])
    edges = [0, *(np.flatnonzero(new) + 1).tolist(), len(runs)]
    return list(itertools.pairwise(edges))


def _run(facts: Mapping[str, Any], words: Mapping[str, str], numbers: Columns) -> Run:
    problem = facts["problems"][words["problem"]]
    size = words["batch_size"]
    batch_size = size if size == "full" else int(size)
    [epochs], methods = facts["epochs"], facts["methods"]
    options = {key: value for key, value in problem.items() if key != "label"}
    manifest = {
        "id": words["run"],
        "status": words["status"],
        "panels": words["panels"].split(", "),
        "problem": problem,
        "method": methods.get(_on(words["label"], words["problem"])) or methods[words["label"]],
        "seed": int(numbers["seed"][0]),
        "batch_size": batch_size,
        "epochs": epochs,
        "config": {"problem": options, "epochs": epochs},
    }
    columns = {
        name: column if name in _COUNTS else column.astype(np.float64)
        for name, column in numbers.items()
        if name != "seed" and not _absent(name, column)
    }
    expert = facts["expert_return"].get(words["problem"])
    if expert is not None and "mean_return" in columns:
        columns["return_share"] = columns["mean_return"] / expert
    return Run(manifest, columns)


def _absent(name: str, column: NDArray[Any]) -> bool:
    """Whether a run has not recorded what the others have."""
    return bool((column < 0).all() if name in _COUNTS else np.isnan(column).all())
