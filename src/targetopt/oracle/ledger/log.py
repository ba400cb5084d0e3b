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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from targetopt.files import put_in_place
from targetopt.oracle.columns import digest
from targetopt.oracle.errors import DamagedLedger, LedgerError, WrongLedger

APPLICATION = 0x54474C31  # "TGL1", in the file's header
BUSY_SECONDS = 60.0  # a reader holds the file for moments
MOST_PER_COMMIT = 256
PATIENCE = 0.2  # of a commit's time, for others to join it
READ_TOGETHER = 512
COMPACT = json.JSONEncoder(separators=(",", ":"))

SCHEMA = """
CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, chain BLOB NOT NULL, content BLOB);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, chain BLOB NOT NULL);
"""


class Event(NamedTuple):
    """One line of the log: a JSON body, and packed columns where it has any."""

    body: dict[str, Any]
    content: bytes | None = None


class Line(NamedTuple):
    """An event as it was read: its number and its body."""

    seq: int
    body: dict[str, Any]


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
        if write:
            self._writer = _writer_lock(self.path)
        try:
            if write and not self.path.exists():
                _created(self.path)
            self._connection = self._opened()
            if write:
                self.check()
        except BaseException:
            self._release()
            raise

    # -- opening ----------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        if not self.path.is_file():
            raise LedgerError(
                f"there is no ledger at {self.path}. A run makes it: to.Ledger({str(self.path)!r})"
            )
        if self.path.stat().st_size == 0:
            raise DamagedLedger(self.path, "the file is empty")
        connection = _connected(self.path)
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
                raise LedgerError(
                    f"the ledger {self.path} cannot be used: {error}. Look at the disk's space and the "
                    "file's permissions; what was written is intact."
                ) from error
            raise DamagedLedger(self.path, f"SQLite says: {error}", trusted()) from error
        except (sqlite3.Error, OverflowError, UnicodeError, MemoryError) as error:
            raise DamagedLedger(self.path, f"SQLite says: {error}", trusted()) from error

    # -- reading ----------------------------------------------------------------------------------

    def lines(self) -> Iterator[Line]:
        """All events in order, checked against the chain; ends at the head, or raises `DamagedLedger`."""
        with self._lock:
            self._usable()
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
            self._seq, self._chain = seq, chain

    def content(self, line: Line) -> bytes:
        """The arrays of an event, checked."""
        with self._lock:
            self._usable()
            with self._noticing():
                row = self._connection.execute(
                    "SELECT content FROM events WHERE seq = ?", (line.seq,)
                ).fetchone()
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
        rows: list[tuple[int, bytes, bytes, bytes | None]] = []
        lines: list[list[Line]] = []
        for events in groups:
            lines.append([])
            for event in events:
                stated = {} if event.content is None else {"content": digest(event.content)}
                whole = {**event.body, **stated}
                body = COMPACT.encode(whole).encode()
                seq, chain = seq + 1, linked(chain, body)
                rows.append((seq, body, chain, event.content))
                lines[-1].append(Line(seq, whole))
        with self._lock, self._noticing(lambda: self._seq):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                found = self._connection.execute("SELECT seq, chain FROM head").fetchone()
                if found != (self._seq, self._chain):
                    raise DamagedLedger(
                        self.path, "another process has written to it meanwhile", self._seq
                    )
                self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
                self._connection.execute("UPDATE head SET seq = ?, chain = ?", (seq, chain))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                raise
            self._seq, self._chain = seq, chain
        return lines

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
        self._connection.close()
        self._release()

    def _release(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def linked(chain: bytes, body: bytes) -> bytes:
    """The chain after a record."""
    return hashlib.blake2b(chain + body, digest_size=16).digest()


def _connected(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be opened: {error}") from error


def _writer_lock(path: Path) -> sqlite3.Connection:
    """The right to write, as an SQLite lock on a file beside it: the system frees it with the process."""
    beside = path.with_name(path.name + "-writer")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = sqlite3.connect(beside, timeout=0.0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"the ledger {path} cannot be made: {error}") from error
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        lock.close()
        raise LedgerError(
            f"another process writes to the ledger {path}. One process writes at a time; end it, give this "
            "run a ledger of its own, or open it for reading: to.Ledger(path, write=False)"
        ) from error
    return lock


def _created(path: Path) -> None:
    """An empty log, made under another name and renamed: there is a whole one or none."""
    fresh = path.with_name(path.name + "-new")
    for leftover in (fresh, fresh.with_name(fresh.name + "-journal")):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(fresh, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.executescript(
            f"BEGIN; {SCHEMA} INSERT INTO head VALUES (1, 0, x''); PRAGMA user_version=1; COMMIT;"
        )
    finally:
        connection.close()
    put_in_place(fresh, path)
