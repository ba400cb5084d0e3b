"""Questions and answers as files: ask today, answer elsewhere, tell in another process.

A question file has one row per example: ``id``, ``targets``, ``question`` (a digest that keeps answers
with their question) and whatever columns are added for whoever answers. An answer file has ``id``, and
``loss`` and ``gradient`` or the columns of a teacher's form, in any order of rows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from targetopt.files import write_atomically
from targetopt.oracle.columns import Columns, as_column, digest, pack, taken
from targetopt.oracle.forms import Form, Gradients
from targetopt.types import (
    BadAnswer,
    BadArgument,
    Forward,
    MissingCapability,
    Query,
    TargetPoint,
)

SINGULAR = {"loss": "losses", "gradient": "gradients", "label": "labels"}


def ids_of(query: Query) -> list[Any]:
    """The rows' names: the ids or the index given to ``ask``, else 0, 1, 2, …"""
    if query.ids is not None:
        return list(query.ids)
    return list(range(query.targets.shape[0])) if query.index is None else query.index.tolist()


def digest_of(query: Query) -> str:
    """A name for the question: its step and its targets."""
    targets = as_column("targets", query.targets)
    return digest(pack({"step": [query.step], "targets": targets}))


def export(query: Query, path: str | os.PathLike[str], **columns: object) -> None:
    """Write a question file; see `Query.export`."""
    names = ids_of(query)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise BadArgument(
            f"query.export: the rows' ids must differ, and {repeated[:5]} come more than once. Give ask(ids=) a name "
            "for each row."
        )
    table: Columns = {
        "id": names,
        "targets": as_column("targets", query.targets),
        "question": [digest_of(query)] * len(names),
    }
    for name, values in columns.items():
        table[name] = as_column(name, values)
        if name in ("id", "question") or len(table[name]) != len(names):
            raise BadArgument(
                f"query.export: {name}= must be a column of its own with {len(names)} rows; got "
                f"{len(table[name])}"
            )
    write_table(Path(path), table)


@dataclass(frozen=True)
class Answers:
    """Answers that came from elsewhere, with the ids of their rows.

    Give them to ``opt.tell(query, forward, answers)``: rows are matched by id, in whatever order they are;
    missing rows are named, rows that nobody asked for and rows that come twice are refused.

    Args:
        ids: one per row.
        columns: of the form, one entry per row.
        question: the digest of the question, if the answers carry it.
        form: what the columns mean; by default losses and gradients.
        partial: take a step on the rows that are there, as a smaller batch, instead of refusing.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(3, requires_grad=True)
        >>> opt = to.SSO([w], lr=1.0)
        >>> query = opt.ask(lambda: 1.0 * w, index=torch.tensor([7, 8, 9]))
        >>> answers = to.Answers(
        ...     [9, 7, 8], {"losses": [0.5, 0.5, 0.5], "gradients": [3.0, 1.0, 2.0]}
        ... )
        >>> report = opt.tell(query, lambda: 1.0 * w, answers)
        >>> (-w.detach()).round()
        tensor([1., 2., 3.])
    """

    ids: Sequence[Any]
    columns: Mapping[str, Any]
    question: str | None = None
    form: Form | None = None
    partial: bool = False

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], *, form: Form | None = None, partial: bool = False
    ) -> Answers:
        """Read an answer file, ``.parquet`` or ``.jsonl``.

        Args:
            path: with the columns ``id`` and those of the form (``loss`` and ``gradient`` by default).
            form: as ``answers=`` of `RemoteOracle`: `to.teachers.from_labels` and others.
            partial: take a step on the rows that are there, as a smaller batch.
        """
        form = Gradients() if form is None else form
        table = {
            SINGULAR.get(name, name): column for name, column in read_table(Path(path)).items()
        }
        missing = [name for name in ("id", *form.columns) if name not in table]
        if missing:
            raise BadAnswer(
                f"{path} has no column {' and no column '.join(map(repr, missing))}; it has "
                f"{', '.join(map(repr, table))}"
            )
        questions = set(table.get("question", []))
        if len(questions) > 1:
            raise BadAnswer(
                f"{path} has answers of {len(questions)} questions; give each its own file"
            )
        columns = {name: table[name] for name in form.columns}
        question = next(iter(questions), None)
        return cls(table["id"], columns, question, form, partial)

    def told(self, query: Query, forward: Forward) -> tuple[Query, Forward, TargetPoint]:
        """The answer in the query's order; with missing rows, the query and the forward without them."""
        names = ids_of(query)
        found = self.matched(query)
        missing = [name for name, row in zip(names, found, strict=True) if row is None]
        if missing and not self.partial:
            raise BadAnswer(
                f"{len(missing)} of {len(names)} rows have no answer: ids {_some(missing)}. Nothing was "
                "changed. Complete the answers, or take the step on those that are there with partial=True."
            )
        rows = [row for row, place in enumerate(found) if place is not None]
        if not rows:
            raise BadAnswer("none of the rows has an answer; nothing was changed")
        order = [place for place in found if place is not None]
        if missing:
            query, forward = _smaller(query, forward, rows)
        form = Gradients() if self.form is None else self.form
        listed = {name: _listed(column) for name, column in self.columns.items()}
        asked: Columns = {"targets": as_column("targets", query.targets)}
        checked = form.checked(taken(listed, order), len(rows), asked)
        return query, forward, form.point(checked, query.targets)

    def matched(self, query: Query) -> list[int | None]:
        """For each row of the question, which row of the answers is about it; None where there is none."""
        names = ids_of(query)
        place = self._places(names)
        if self.question is not None and self.question != digest_of(query):
            raise BadAnswer(
                "these answers belong to another question: they carry the digest "
                f"{self.question!r}, the query has {digest_of(query)!r}"
            )
        return [place.get(name) for name in names]

    def _places(self, names: list[Any]) -> dict[Any, int]:
        ids = self.ids.tolist() if hasattr(self.ids, "tolist") else list(self.ids)
        twice = [name for name, times in Counter(ids).items() if times > 1]
        if twice:
            raise BadAnswer(
                f"these ids come more than once: {_some(twice)}; keep one answer of each"
            )
        strange = [name for name in ids if name not in set(names)]
        if strange:
            raise BadAnswer(
                f"{len(strange)} answers have ids that were not asked: {_some(strange)}; is this the file of "
                "another question?"
            )
        wrong = [n for n, column in self.columns.items() if len(_listed(column)) != len(ids)]
        if wrong:
            raise BadAnswer(f"there are {len(ids)} ids, but {wrong[0]} has another number of rows")
        return {name: row for row, name in enumerate(ids)}


def _smaller(query: Query, forward: Forward, rows: list[int]) -> tuple[Query, Forward]:
    """The question about some of its rows."""
    kept = torch.tensor(rows, device=query.targets.device)
    part = replace(
        query,
        targets=query.targets[kept],
        index=None if query.index is None else query.index[kept],
        scales=None if query.scales is None else query.scales[kept],
        ids=None if query.ids is None else [query.ids[row] for row in rows],
    )
    return part, lambda: forward()[kept]


def _listed(column: Any) -> Any:
    return column if isinstance(column, np.ndarray | list) else as_column("answers", column)


def _some(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")


# -- tables ---------------------------------------------------------------------------------------------


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingCapability(
            ".parquet files need pyarrow, which is not installed: pip install pyarrow. Or use .jsonl."
        ) from error
    return pyarrow


def write_table(path: Path, table: Columns) -> None:
    """Columns as ``.parquet`` or ``.jsonl``: a whole new file or none."""
    listed = {n: c.tolist() if isinstance(c, np.ndarray) else c for n, c in table.items()}
    rows = zip(*listed.values(), strict=True)
    write_rows(path, [dict(zip(listed, row, strict=True)) for row in rows])


def check_new(path: Path) -> None:
    """Refuse a name that tables cannot have or that is taken."""
    if path.suffix not in (".parquet", ".jsonl"):
        raise BadArgument(f"{path} must end in .parquet or .jsonl")
    if path.exists():
        raise BadArgument(f"{path} exists; nothing was written. Choose another name or remove it.")


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as ``.parquet`` or ``.jsonl``: a whole new file or none."""
    check_new(path)
    if path.suffix == ".parquet":
        arrow = _parquet()
        table = arrow.Table.from_pylist(rows)
        write_atomically(path, lambda file: arrow.parquet.write_table(table, file))
    else:
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomically(path, "".join(lines).encode())


def read_table(path: Path) -> dict[str, list[Any]]:
    """The columns of a ``.parquet`` or ``.jsonl`` file."""
    readers: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
        ".parquet": _read_parquet,
        ".jsonl": _read_lines,
    }
    if path.suffix not in readers:
        raise BadArgument(f"{path} must end in .parquet or .jsonl")
    if not path.is_file():
        raise BadArgument(f"there is no file {path}")
    return readers[path.suffix](path)


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    arrow = _parquet()
    try:
        found: dict[str, list[Any]] = arrow.parquet.read_table(path).to_pydict()
    except (arrow.ArrowException, OSError) as error:
        raise BadAnswer(f"{path} cannot be read as parquet: {error}") from error
    return found


def _read_lines(path: Path) -> dict[str, list[Any]]:
    table: dict[str, list[Any]] = {}
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise BadAnswer(f"{path}, line {number + 1}: {error}") from error
        if not isinstance(row, dict) or (number and row.keys() != table.keys()):
            raise BadAnswer(
                f"{path}, line {number + 1}: every line must be an object with the same columns"
            )
        for name, value in row.items():
            table.setdefault(name, []).append(value)
    return table
