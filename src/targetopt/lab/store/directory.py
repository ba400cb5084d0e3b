"""A directory of results: one parquet of metrics and one JSON manifest per run.

::

    DIR/spec.toml             what was asked for, last
    DIR/plan.json             the runs that makes: id, and how each is shown: problem, method, seed, …
    DIR/tuning.json           what tuned methods chose, and from what
    DIR/store.json            where the rest lies, if not here: several specifications can share it
    DIR/runs/<id>.parquet     metrics, one row per recorded step
    DIR/runs/<id>.json        the manifest, written last: a run with a manifest has ended
    DIR/checkpoints/<id>.pt   where a run that has not ended goes on
    DIR/locks/<id>            locked by the process that is working on the run

Every file appears whole, by a rename. Any number of processes may read and write the directory.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from targetopt.files import common_name
from targetopt.lab.spec.panels import MAIN
from targetopt.lab.store.files import StoreError, explained, write_in_order, write_whole
from targetopt.lab.store.locks import Locks
from targetopt.lab.store.records import (
    Manifest,
    checked_name,
    read_json,
    read_manifest,
    read_plan,
)

COUNTS = ("oracle_calls", "value_calls", "inner_steps", "forward_calls", "backward_calls")
"""What was paid for, exactly; integer columns of every metrics file."""

AXES = ("step", *COUNTS, "epoch", "wall_time")
"""The columns that say when; every other column is a metric of the problem."""

VALUE_PRICE = 0.5
"""What a loss without its gradient costs, in oracle calls: a gradient by an adjoint or by backpropagation costs
about as much again as the value that comes with it."""

Row = Mapping[str, float | int]


def is_clock(name: str) -> bool:
    """Whether a column holds times: no metric of the problem, and never the same twice.

    >>> is_clock("wall_time"), is_clock("gathering_time"), is_clock("loss")
    (True, True, False)
    """
    return name.endswith("_time")


def priced_calls(
    columns: Mapping[str, NDArray[Any]], value_price: float = VALUE_PRICE
) -> NDArray[np.float64]:
    """Oracle calls at each recorded step, values without gradients counted at their price.

    >>> priced_calls({"oracle_calls": np.array([1, 2]), "value_calls": np.array([3, 4])})
    array([2.5, 4. ])
    """
    return np.asarray(columns["oracle_calls"] + value_price * columns["value_calls"], dtype=float)


def modelled_cost(
    columns: Mapping[str, NDArray[Any]], tau: float, value_price: float = VALUE_PRICE
) -> NDArray[np.float64]:
    """Cost of each recorded step when one oracle call costs ``tau`` inner steps.

    ``(oracle_calls + ½ value_calls) · τ + inner_steps``. Values without gradients are what line-searches ask for. τ
    and the price of a value are chosen after the runs, none has to be done again.

    >>> counts = {"oracle_calls": [1, 2], "value_calls": [2, 4], "inner_steps": [10, 20]}
    >>> columns = {name: np.array(values) for name, values in counts.items()}
    >>> modelled_cost(columns, 100.0)
    array([210., 420.])
    >>> modelled_cost(columns, 100.0, value_price=0.0)
    array([110., 220.])
    """
    if not tau >= 0:
        raise ValueError(f"tau={tau!r} must be a number ≥ 0: the oracle's cost in inner steps.")
    return np.asarray(
        priced_calls(columns, value_price) * tau + columns["inner_steps"], dtype=float
    )


@dataclass(frozen=True)
class Run:
    """One ended run: its manifest and its metrics, a numpy array per column."""

    manifest: Manifest
    columns: dict[str, NDArray[Any]]

    @property
    def metrics(self) -> list[str]:
        return [name for name in self.columns if name not in AXES and not is_clock(name)]


class Store:
    """The result directory ``directory``; reading needs no permission to write."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @cached_property
    def home(self) -> Path:
        """Where the runs lie: here, or in the directory around this one that ``store.json`` names."""
        path = self.directory / "store.json"
        remedy = "Delete it and run the specification again: runs are then kept here."
        absent = object()
        link = read_json(path, remedy, missing=absent)
        if link is absent:
            return self.directory
        place = link.get("home") if isinstance(link, dict) else None
        if not isinstance(place, str):
            raise StoreError(f"{path} does not name the directory of the runs. {remedy}")
        home, here = (self.directory / place).resolve(), self.directory.resolve()
        if home != here and home not in here.parents:
            raise StoreError(
                f"{path} names {place!r} as the directory of the runs, which must be this "
                f"directory or one around it. {remedy}"
            )
        return self.directory / place

    @cached_property
    def _runs(self) -> Path:
        return self.home / "runs"

    @cached_property
    def locks(self) -> Locks:
        return Locks(self.home / "locks")

    def share(self, home: Path) -> None:
        """Keep runs in ``home``, a directory around this one, which others in it may do too."""
        with explained(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        place = os.path.relpath(home, self.directory)
        write_whole(self.directory / "store.json", json.dumps({"home": place}).encode())
        for remembered in ("home", "locks", "_runs"):
            self.__dict__.pop(remembered, None)

    def prepare(self) -> None:
        """Make the directory, and find out now, not after hours, that it cannot be written."""
        for part in ("runs", "checkpoints", "locks"):
            with explained(self.home / part):
                (self.home / part).mkdir(parents=True, exist_ok=True)
        if self.locks.take("store"):
            self.locks.release("store")

    def write(self, name: str, data: bytes) -> None:
        """Write ``DIR/name``, unless another runner is writing it at this moment.

        Runners on one directory write the same specification, so one of them is enough.
        """
        lock = f"{self.directory.resolve().name}.{name}"
        if not self.locks.take(lock):
            return
        try:
            write_whole(self.directory / name, data)
        finally:
            self.locks.release(lock)

    def plan(self) -> list[dict[str, Any]]:
        """The runs of the last specification; empty when there is none."""
        return read_plan(self.directory / "plan.json")

    def metrics_path(self, run: str) -> Path:
        return self._runs / f"{checked_name(run)}.parquet"

    def manifest_path(self, run: str) -> Path:
        return self._runs / f"{checked_name(run)}.json"

    def checkpoint_path(self, run: str) -> Path:
        return self.home / "checkpoints" / f"{checked_name(run)}.pt"

    def manifest(self, run: str) -> Manifest | None:
        """The manifest of an ended run, or None; a damaged one is a :class:`StoreError`."""
        return read_manifest(self.manifest_path(run), run)

    def save(self, manifest: Manifest, rows: Sequence[Row]) -> None:
        """Write an ended run: metrics, then the manifest, which makes it count.

        The caller holds the lock on the run.
        """
        run = manifest["id"]
        table = to_table(run, rows)
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer)
        content = {**manifest, "rows": table.num_rows, "digest": digest(table)}
        metrics = (self.metrics_path(run), buffer.getvalue().to_pybytes())
        write_in_order([metrics, (self.manifest_path(run), to_json(content))])

    def drop_checkpoint(self, run: str) -> None:
        """Remove the checkpoint, and what a writer killed at it left behind."""
        path = self.checkpoint_path(run)
        with explained(path):
            path.unlink(missing_ok=True)
            common_name(path).unlink(missing_ok=True)

    def ended(self) -> list[str]:
        """Ids of all runs that have a manifest, sorted."""
        try:
            names = os.listdir(self.home / "runs")
        except OSError:
            return []
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def load(self, runs: Iterable[str] | None = None) -> list[Run]:
        """Ended runs with their metrics, in the order of the plan, then by id."""
        order = {entry["id"]: position for position, entry in enumerate(self.plan())}
        names = self.ended() if runs is None else list(runs)
        loaded = []
        for name in sorted(names, key=lambda name: (order.get(name, len(order)), name)):
            manifest = self.manifest(name)
            if manifest is not None:
                loaded.append(Run(manifest, self._columns(name)))
        return loaded

    def shown(self) -> list[Run]:
        """The ended runs of the plan, as it shows them; all ended runs where there is no plan.

        One run may be shown as several methods, such as SGD and the best of five SGDs.
        """
        plan = self.plan()
        if not plan:
            return self.load()
        ended = {run.manifest["id"]: run for run in self.load({entry["id"] for entry in plan})}
        return [
            Run(_as_planned(ended[entry["id"]].manifest, entry), ended[entry["id"]].columns)
            for entry in plan
            if entry["id"] in ended and not entry.get("trial")
        ]

    def _columns(self, run: str) -> dict[str, NDArray[Any]]:
        path = self.metrics_path(run)
        try:
            # Not read_table, which starts threads for a file of a few kilobytes and takes ten times as long, and
            # not the path itself, for which pyarrow would look up a file system each time.
            content = pa.BufferReader(path.read_bytes())
            table = pq.ParquetFile(content).read(use_threads=False)
            return {name: numbers(table.column(name)) for name in table.column_names}
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise StoreError(
                f"cannot read {path}: {error}. Delete {self.manifest_path(run).name} beside it and "
                "run the specification again: only this run is redone."
            ) from error


def _as_planned(manifest: Manifest, entry: Mapping[str, Any]) -> Manifest:
    """A manifest with the labels and colours of the plan, and without the options that were chosen."""
    problem, method = dict(manifest["problem"]), dict(manifest["method"])
    problem["label"] = entry.get("problem", problem.get("label"))
    method["label"] = entry.get("method", method.get("label"))
    if "colour" in entry:
        method["colour"] = entry["colour"]
    tuned = entry.get("tuned", [])
    if tuned:
        method = {key: value for key, value in method.items() if key not in tuned}
        method["tuned"] = tuned
    panels = entry.get("panels", [MAIN])
    return {**manifest, "problem": problem, "method": method, "panels": panels}


def to_table(run: str, rows: Sequence[Row]) -> pa.Table:
    """Rows as a typed table: counts are int64, everything else float64, missing metrics nan."""
    metrics = list(dict.fromkeys(name for row in rows for name in row if name not in AXES))
    columns = {}
    for name in (*AXES, *(metrics or ["loss"])):
        if name in ("step", *COUNTS):
            columns[name] = _column(np.array([int(row[name]) for row in rows], np.int64))
        else:
            values = [float(row.get(name, float("nan"))) for row in rows]
            columns[name] = _column(np.array(values, np.float64))
    return pa.table(columns).replace_schema_metadata({"run": run})


def _column(values: NDArray[Any]) -> pa.Array:
    """These numbers, as ``pa.array`` would take them; that imports pandas where it is installed, for a second."""
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """The numbers of a column, as its ``to_numpy`` gives them; that imports pandas where it is installed."""
    if column.null_count or column.type not in (pa.int64(), pa.float64()):
        return np.asarray(column.to_numpy())
    kind = np.dtype(str(column.type))
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    parts = [np.frombuffer(c.buffers()[1], kind, len(c), 8 * c.offset) for c in chunks]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def to_json(manifest: Manifest) -> bytes:
    return json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False).encode()


def digest(table: pa.Table) -> str:
    """Fingerprint of a run's numbers, times left out: equal digests, equal numbers."""
    content = hashlib.sha256()
    for name in table.column_names:
        if not is_clock(name):
            content.update(name.encode() + b"\0")
            content.update(numbers(table.column(name)).tobytes())
    return content.hexdigest()[:16]
