"""Looking at a ledger: what was asked and paid, whether the file is sound, and its answers as a table."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from targetopt.oracle.answers import check_new, write_rows
from targetopt.oracle.budget import Cost
from targetopt.oracle.columns import Columns, digest, unpack
from targetopt.oracle.ledger import tail
from targetopt.oracle.ledger.book import Request
from targetopt.oracle.ledger.ledger import Ledger
from targetopt.oracle.ledger.log import Line, linked
from targetopt.oracle.question import from_ranges


@dataclass(frozen=True)
class Overview:
    """What a ledger tells at a glance.

    Attributes:
        path: the file.
        name: of the run.
        sessions: processes that wrote to it.
        oracles: names and versions.
        questions: asked.
        requests: made for them.
        refused: attempts that the service refused.
        spent: calls, rows, seconds and money, with what may have been paid.
        maybe: the part that may have been paid without an answer.
        unsettled: requests that were sent and have no outcome.
        records: in the file.
        remarks: what is odd without being wrong.
    """

    path: Path
    name: str
    sessions: int
    oracles: list[str]
    questions: int
    requests: int
    refused: int
    spent: Cost
    maybe: Cost
    unsettled: list[Request]
    records: int
    remarks: list[str] = field(default_factory=list)


def overview(path: str | os.PathLike[str]) -> Overview:
    """Read a ledger, whether a run writes to it or not; `DamagedLedger` if it is not sound."""
    with Ledger(path, write=False) as ledger:
        lines = list(ledger.lines())
        times = [line.body.get("at", 0.0) for line in lines]
        back = sum(later < earlier for earlier, later in itertools.pairwise(times))
        remarks = [
            f"the clock went backwards {back} times; order and durations do not depend on it"
        ]
        return Overview(
            ledger.path,
            ledger.name_in_file,
            ledger.sessions,
            list(ledger.oracles),
            len(ledger.questions),
            len(ledger.requests),
            ledger.refused,
            ledger.spent,
            ledger.maybe,
            ledger.unsettled(),
            len(lines),
            remarks if back else [],
        )


def verified(path: str | os.PathLike[str]) -> Overview:
    """`overview`, after SQLite's own check and after every array was read and compared with its digest."""
    found = overview(path)
    with Ledger(path, write=False) as ledger:
        ledger.check()
        for _ in ledger.records():
            pass
    return found


def salvaged(path: str | os.PathLike[str]) -> Iterator[tuple[Line, Columns]]:
    """Every record of a damaged ledger that agrees with its own digest; what cannot be read is left out."""
    connection = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
    try:
        try:
            seqs = [seq for (seq,) in connection.execute("SELECT seq FROM events ORDER BY seq")]
        except sqlite3.Error:
            seqs = list(range(1, _most(Path(path))))
        before: bytes | None = b""
        last = 0
        for seq in seqs:
            try:
                body, chain, content = connection.execute(
                    "SELECT body, chain, content FROM events WHERE seq = ?", (seq,)
                ).fetchone()
                last = seq
                sound = isinstance(before, bytes) and linked(before, body) == chain
                line = Line(seq, json.loads(body)) if sound else None
                columns = {}
                if line is not None and "content" in line.body:
                    line = line if digest(content) == line.body["content"] else None
                    columns = {} if line is None else unpack(content)
            except (sqlite3.Error, TypeError, ValueError, KeyError):
                before = None
                continue
            before = chain
            if line is not None:
                yield line, columns
        for seq, body, content in _of_the_tail(Path(path), after=last):
            yield Line(seq, json.loads(body)), {} if content is None else unpack(content)
    finally:
        connection.close()


def _of_the_tail(path: Path, after: int) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Events that SQLite does not have; a group of them is whole or left out."""
    for group in tail.groups(tail.found(path) or b""):
        for seq, (body, content) in enumerate(group.events, group.before + 1):
            if seq > after:
                yield seq, body, content


def _most(path: Path) -> int:
    return max(2, path.stat().st_size // 40)


def answers(records: Iterator[tuple[Line, Columns]]) -> Iterator[dict[str, Any]]:
    """One dictionary per answered row: what was asked, what was answered, and what the request cost."""
    questions: dict[str, tuple[dict[str, Any], Columns]] = {}
    for line, columns in records:
        body = line.body
        if body["kind"] == "question":
            questions[body["question"]] = (body, columns)
        elif body["kind"] == "answered":
            asked, rows = questions.get(body["question"], ({}, {}))
            for place, position in enumerate(from_ranges(body["positions"])):
                yield {
                    "question": body["question"],
                    "oracle": asked.get("oracle"),
                    "row": position,
                    "request": body["request"],
                    "answered_at": body.get("at"),
                    **{name: _plain(column[position]) for name, column in rows.items()},
                    **{name: _plain(column[place]) for name, column in columns.items()},
                }


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def export(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, salvage: bool = False
) -> int:
    """Write the answers, one row each, as JSON lines (``.jsonl``) or ``.parquet``; how many there are."""
    target = Path(out)
    check_new(target)
    if salvage:
        rows = list(answers(salvaged(path)))
    else:
        with Ledger(path, write=False) as ledger:
            rows = list(answers(ledger.records()))
    write_rows(target, rows)
    return len(rows)
