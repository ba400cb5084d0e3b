"""The file under a ledger: an append-only log of events in SQLite, chained by digests.

Why SQLite with a rollback journal (``journal_mode=DELETE, synchronous=EXTRA``): a commit is on the disk
when it returns, and a process that is killed, or a machine that loses power, leaves either all of a
transaction or none. EXTRA is FULL plus a sync of the directory after the journal is removed; without it a
power loss right after a commit may bring the journal back and undo the commit. WAL is not used: it loses
committed writes in SQLite 3.7.0 to 3.51.2 when two connections meet, and is unsafe on network file systems.

Every event's ``chain`` is a digest of the chain before it and of the event, and ``head`` holds the last
one. A byte that is not what was written is therefore noticed when the log is opened (or, in the arrays,
when they are read), and refused. One process writes, holding a lock on ``FILE-writer`` for as long as it
lives; any number may read. Concurrent appends share one commit.

A commit of SQLite waits for the disk five times. So that a question need not wait ten times, the newest events are made
durable in ``FILE-tail`` (`targetopt.oracle.ledger.tail`), with one wait, and come into SQLite many at a time. As with
SQLite's own journal, the two files belong together until the log is closed; ``user_version`` says whether there is a
tail. What the chain and the numbers promise holds over both.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from targetopt.oracle.columns import digest
from targetopt.oracle.errors import DamagedLedger, LedgerError, WrongLedger
from targetopt.oracle.ledger import tail
from targetopt.oracle.ledger.opening import (
    APPLICATION,
    BUSY_SECONDS,
    WHOLE,
    WITH_TAIL,
    connected,
    created,
    writer_lock,
)

MOST_PER_COMMIT = 256
PATIENCE = 0.2  # of a commit's time, for others to join it
READ_TOGETHER = 512
COMPACT = json.JSONEncoder(separators=(",", ":"))


class Event(NamedTuple):
    """One line of the log: a JSON body, and packed columns where it has any."""

    body: dict[str, Any]
    content: bytes | None = None


class Line(NamedTuple):
    """An event as it was read: its number and its body."""

    seq: int
    body: dict[str, Any]


class _Row(NamedTuple):
    """An event as it lies in the table."""

    seq: int
    body: bytes
    chain: bytes
    content: bytes | None


class _Work(NamedTuple):
    events: Sequence[Event]
    then: Callable[[Line], None]
    done: Future[None]


class EventLog:
    """An open log; ``write=False`` for readers."""

    def __init__(self, path: str | os.PathLike[str], *, write: bool) -> None:
        self.path = Path(path)
        self.write = write
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._writer: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = False
        self._seq = 0
        self._chain = b""
        self._folded = (0, b"")
        self._late: dict[int, _Row] = {}  # events that SQLite does not have yet
        self._tail: tail.Tail | None = None
        if write:
            self._writer = writer_lock(self.path)
        with ExitStack() as undo:  # a log that cannot be used leaves nothing open
            undo.callback(self._release)
            if write and not self.path.exists():
                created(self.path)
            self._connection = self._opened()
            undo.callback(self._connection.close)
            if write:
                self.check()
            undo.pop_all()

    # -- opening ----------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise LedgerError(
                f"there is no ledger at {self.path}. A run makes it: to.Ledger({str(self.path)!r})"
            )
        if self.path.stat().st_size == 0:
            raise DamagedLedger(self.path, "the file is empty")
        connection = connected(self.path)
        try:
            with self._noticing():
                (application,) = connection.execute("PRAGMA application_id").fetchone()
                tables = {n for (n,) in connection.execute("SELECT name FROM sqlite_master")}
                if application != APPLICATION and not {"events", "head"} <= tables:
                    raise WrongLedger(
                        f"{self.path} is an SQLite file of something else, not a ledger. Choose another path."
                    )
                if application != APPLICATION:
                    raise DamagedLedger(self.path, "its header is not that of a ledger")
                if self.write:
                    connection.execute("PRAGMA synchronous=EXTRA")
                    (mode,) = connection.execute("PRAGMA journal_mode=DELETE").fetchone()
                    if mode != "delete":
                        raise LedgerError(
                            f"{self.path}: the journal mode is {mode!r}, not 'delete'"
                        )
                else:
                    connection.execute("PRAGMA query_only=ON")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def _noticing(self, trusted: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Errors of SQLite as errors of ours, which say how many records can be trusted."""
        try:
            yield
        except LedgerError:
            raise
        except OSError as error:
            raise self._unusable(error) from error
        except sqlite3.OperationalError as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise LedgerError(
                    f"the ledger {self.path} stayed locked by another process for {BUSY_SECONDS:g} "
                    "seconds; close what reads it, and try again"
                ) from error
            if name in ("SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_PERM") or (
                name.startswith(("SQLITE_IOERR", "SQLITE_READONLY"))
            ):
                raise self._unusable(error) from error
            raise DamagedLedger(self.path, f"SQLite says: {error}", trusted()) from error
        except (sqlite3.Error, OverflowError, UnicodeError, MemoryError) as error:
            raise DamagedLedger(self.path, f"SQLite says: {error}", trusted()) from error

    def _unusable(self, error: Exception) -> LedgerError:
        return LedgerError(
            f"the ledger {self.path} cannot be used: {error}. Look at the disk's space and the "
            "file's permissions; what was written is intact."
        )

    # -- reading ----------------------------------------------------------------------------------

    def lines(self) -> Iterator[Line]:
        """All events in order, checked against the chain; ends at the head, or raises `DamagedLedger`."""
        with self._lock:
            self._usable()
            newest = self._newest()  # before the head: what is folded meanwhile is in SQLite then
            with self._noticing():
                heads = self._connection.execute("SELECT seq, chain FROM head").fetchall()
            if len(heads) != 1:
                raise DamagedLedger(self.path, "it has no head")
            last, head = heads[0]
            chain, seq = b"", 0

            def trusted() -> int:
                return seq

            with self._noticing():
                cursor = self._connection.execute(
                    "SELECT seq, body, chain FROM events WHERE seq <= ? ORDER BY seq", (last,)
                )
            while True:
                first, bodies = seq + 1, []
                with self._noticing(trusted):
                    for number, body, claimed in itertools.islice(cursor, READ_TOGETHER):
                        if not isinstance(body, bytes):
                            raise DamagedLedger(self.path, f"record {number} is no record", seq)
                        chain = linked(chain, body)
                        if number != seq + 1 or claimed != chain:
                            reason = f"record {seq + 1} is not what was written"
                            raise DamagedLedger(self.path, reason, seq)
                        seq = number
                        bodies.append(body)
                if not bodies:
                    break
                whole = json.loads(b"[%s]" % b",".join(bodies))  # all at once is faster
                yield from map(Line, range(first, seq + 1), whole)
            if seq != last or chain != head:
                raise DamagedLedger(self.path, f"records after {seq} are missing", seq)
            self._folded = (seq, chain)
            self._late = {row.seq: row for row in self._after(newest, seq, chain)}
            for row in self._late.values():
                seq, chain = row.seq, row.chain
                yield Line(seq, json.loads(row.body))
            self._seq, self._chain = seq, chain

    def _newest(self) -> list[tail.Group]:
        """What the tail holds, old groups included."""
        for _ in range(2):  # a writer may begin between the two looks
            data = tail.found(self.path)
            with self._noticing():
                (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == WHOLE or (version == WITH_TAIL and data is not None):
                return [] if data is None else list(tail.groups(data))
        raise DamagedLedger(
            self.path,
            f"its header says version {version}"
            if version != WITH_TAIL
            else f"its newest records are in {tail.beside(self.path).name}, which is not beside it",
        )

    def _after(self, newest: list[tail.Group], seq: int, chain: bytes) -> Iterator[_Row]:
        """The events of the tail that follow those of SQLite."""
        for group in newest:
            if group.last <= seq:
                continue  # SQLite has it
            if group.before != seq or group.chain != chain:
                name = tail.beside(self.path).name
                raise DamagedLedger(
                    self.path, f"{name} does not continue it after record {seq}", seq
                )
            for body, content in group.events:
                seq, chain = seq + 1, linked(chain, body)
                yield _Row(seq, body, chain, content)

    def content(self, line: Line) -> bytes:
        """The arrays of an event, checked."""
        with self._lock:
            self._usable()
            late = self._late.get(line.seq)
            with self._noticing():
                row = (
                    self._connection.execute(
                        "SELECT content FROM events WHERE seq = ?", (line.seq,)
                    ).fetchone()
                    if late is None
                    else (late.content,)
                )
        data = None if row is None else row[0]
        if not isinstance(data, bytes) or digest(data) != line.body.get("content"):
            raise DamagedLedger(self.path, f"the arrays of record {line.seq} are damaged")
        return data

    def check(self) -> None:
        """SQLite's own check of the file."""
        with self._lock, self._noticing():
            (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise DamagedLedger(self.path, f"SQLite finds: {found}")

    # -- writing ----------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], then: Callable[[Line], None]) -> Future[None]:
        """Write events in one transaction; done when they are on the disk and ``then`` has seen each.

        What several threads append while the disk is busy goes into one commit.
        """
        self._usable()
        if not self.write:
            raise LedgerError(f"the ledger {self.path} was opened for reading")
        done: Future[None] = Future()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._commits, name="ledger writer", daemon=True
                )
                self._thread.start()
            self._queue.put(_Work(events, then, done))
        return done

    def _commits(self) -> None:
        stopping, patience, released = False, 0.0, 0
        while not stopping:
            batch = self._gathered(patience, released)
            stopping = None in batch
            work = [item for item in batch if item is not None]
            if not work:
                continue
            begun = time.monotonic()
            try:
                lines = self._committed([item.events for item in work])
                for item, own in zip(work, lines, strict=True):
                    for line in own:
                        item.then(line)
            except BaseException as error:
                for item in work:
                    item.done.set_exception(error)
            else:
                for item in work:
                    item.done.set_result(None)
            released = len(work)
            patience = PATIENCE * (time.monotonic() - begun) if released > 1 else 0.0

    def _gathered(self, patience: float, released: int) -> list[_Work | None]:
        """What is to be committed together.

        Those whose last commit is done soon come with more. Where there are several, they are waited for, for
        a fraction of what a commit takes: in step, all of them share every commit; out of step, half of them.
        """
        batch = [self._queue.get()]
        wanted = min(MOST_PER_COMMIT, 1 + self._queue.qsize() + released)
        until = time.monotonic() + patience
        with suppress(queue.Empty):
            while len(batch) < wanted and None not in batch:
                batch.append(self._queue.get(timeout=max(0.0, until - time.monotonic())))
        return batch

    def _committed(self, groups: list[Sequence[Event]]) -> list[list[Line]]:
        seq, chain = self._seq, self._chain
        rows: list[_Row] = []
        lines: list[list[Line]] = []
        for events in groups:
            lines.append([])
            for event in events:
                stated = {} if event.content is None else {"content": digest(event.content)}
                whole = {**event.body, **stated}
                body = COMPACT.encode(whole).encode()
                seq, chain = seq + 1, linked(chain, body)
                rows.append(_Row(seq, body, chain, event.content))
                lines[-1].append(Line(seq, whole))
        if not rows:
            return lines
        with self._lock, self._noticing(lambda: self._seq):
            written = [(row.body, row.content) for row in rows]
            if self._tail is not None and self._tail.write(self._seq, self._chain, written):
                self._late.update((row.seq, row) for row in rows)
            else:
                self._fold(rows, WITH_TAIL)
            self._seq, self._chain = seq, chain
        return lines

    def _fold(self, rows: Sequence[_Row], version: int) -> None:
        """Bring the events of the tail, and these after them, into SQLite in one commit."""
        if self._tail is None and version == WITH_TAIL:
            self._tail = tail.Tail(tail.beside(self.path))
        run = self._connection.execute
        rows = [*self._late.values(), *rows]
        end = (rows[-1].seq, rows[-1].chain) if rows else self._folded
        try:
            run("BEGIN IMMEDIATE")
            if run("SELECT seq, chain FROM head").fetchone() != self._folded:
                raise DamagedLedger(
                    self.path, "another process has written to it meanwhile", self._seq
                )
            self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
            run("UPDATE head SET seq = ?, chain = ?", end)
            if run("PRAGMA user_version").fetchone() != (version,):
                run(f"PRAGMA user_version={version}")
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    run("ROLLBACK")
            raise
        self._folded = end
        self._late.clear()
        if self._tail is not None:
            self._tail.restart()

    # -- closing ----------------------------------------------------------------------------------

    def _usable(self) -> None:
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed; open it again with to.Ledger")
        if os.getpid() != self._process:
            raise LedgerError(
                f"the ledger {self.path} was opened by another process (before a fork); one process writes. "
                "Open it for reading here: to.Ledger(path, write=False)"
            )

    def close(self) -> None:
        """Write what was appended, and let go of the file. Closing twice does nothing."""
        if self._closed or os.getpid() != self._process:
            return
        with self._starting:
            self._closed = True
            thread = self._thread
            self._queue.put(None)
        if thread is not None:
            thread.join()
        if self._tail is not None:
            try:
                with self._noticing():
                    self._fold([], WHOLE)
            except LedgerError:
                self._tail.close(remove=False)  # nothing is lost: the next who opens it goes on
            else:
                self._tail.close(remove=True)
        self._connection.close()
        self._release()

    def _release(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def linked(chain: bytes, body: bytes) -> bytes:
    """The chain after a record."""
    return hashlib.blake2b(chain + body, digest_size=16).digest()
