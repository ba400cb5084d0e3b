"""Answers by example, kept across runs, for oracles whose answer does not depend on the targets."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from targetopt.oracle.columns import Columns, digest, pack, unpack
from targetopt.types import TargetoptError

APPLICATION = 0x54474331  # "TGC1"


class CacheError(TargetoptError, OSError):
    """The cache's file cannot be used. Nothing was changed; the ledger still has this run's answers."""


class Cache:
    """Labels, probabilities or other answers that depend on the example alone.

    The key is the oracle's name and version and the example's input, so a teacher of another version
    answers anew. Hits cost nothing and are counted. A cache may be shared by runs and processes; it is apart
    from the ledger, which tells what one run asked and paid.

    Args:
        path: the file; made if it is not there. ``None`` keeps the answers in memory.

    Attributes:
        hits: rows that were found.
        misses: rows that were not.

    Example:
        >>> import torch, targetopt as to
        >>> asked = []
        >>> def teacher(inputs):
        ...     asked.extend(inputs[:, 0].tolist())
        ...     return inputs[:, 0].sign()
        >>> answers = to.teachers.from_labels(to.losses.Logistic)
        >>> cache = to.Cache()
        >>> with to.RemoteOracle(teacher, answers=answers, cache=cache) as oracle:
        ...     for x in (torch.tensor([[1.0], [-2.0]]), torch.tensor([[-2.0], [3.0]])):
        ...         point = oracle.about(x).query(torch.zeros(2))
        >>> asked, cache.hits
        ([1.0, -2.0, 3.0], 1)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.hits = 0
        self.misses = 0
        self._lock = threading.Lock()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._noticing(), ExitStack() as undo:
            self._connection = sqlite3.connect(
                ":memory:" if self.path is None else self.path,
                timeout=60.0,
                isolation_level=None,
                check_same_thread=False,
            )
            undo.callback(self.close)
            self._connection.execute("PRAGMA synchronous=EXTRA")
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and application != APPLICATION:
                raise CacheError(f"{self.path} is an SQLite file of something else; choose another")
            self._connection.execute(f"PRAGMA application_id={APPLICATION}")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, content BLOB NOT NULL) "
                "WITHOUT ROWID"
            )
            undo.pop_all()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CacheError(
                f"the cache {self.path} cannot be used: {error}. If the file is damaged, delete it: its "
                "answers are asked again, except those in the run's ledger."
            ) from error

    def get(self, keys: Sequence[bytes]) -> dict[int, Columns]:
        """The answers that are there, by position among ``keys``, each with one row."""
        found: dict[int, Columns] = {}
        with self._lock, self._noticing():
            for position, key in enumerate(keys):
                row = self._connection.execute(
                    "SELECT content FROM answers WHERE key = ?", (key,)
                ).fetchone()
                if row is not None:
                    found[position] = self._checked(key, row[0])
            self.hits += len(found)
            self.misses += len(keys) - len(found)
        return found

    def _checked(self, key: bytes, content: object) -> Columns:
        if isinstance(content, bytes) and len(content) > 16:
            check, data = content[:16], content[16:]
            if bytes.fromhex(digest(key, data)) == check:
                return unpack(data)
        raise CacheError(
            f"the cache {self.path} is damaged: an answer is not what was written. Delete the file: its "
            "answers are asked again, except those in the run's ledger."
        )

    def put(self, answers: Mapping[bytes, Columns]) -> None:
        """Keep answers, each with one row; what is there stays."""
        rows = []
        for key, columns in answers.items():
            data = pack(columns)
            rows.append((key, bytes.fromhex(digest(key, data)) + data))
        with self._lock, self._noticing():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def __len__(self) -> int:
        with self._lock, self._noticing():
            (count,) = self._connection.execute("SELECT count(*) FROM answers").fetchone()
        return int(count)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
