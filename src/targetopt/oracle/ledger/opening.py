"""How the file of a log is made, opened, and kept from a second writer."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from targetopt.files import put_in_place
from targetopt.oracle.errors import LedgerError

APPLICATION = 0x54474C31  # "TGL1", in the file's header
WHOLE, WITH_TAIL = 1, 2  # user_version: all events are in this file, or the newest are in its tail
BUSY_SECONDS = 60.0  # a reader holds the file for moments

SCHEMA = """
CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, chain BLOB NOT NULL, content BLOB);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, chain BLOB NOT NULL);
"""


def connected(path: Path) -> sqlite3.Connection:
    """The log's file, which must be there."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        return sqlite3.connect(
            uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} cannot be opened: {error}") from error


def writer_lock(path: Path) -> sqlite3.Connection:
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


def created(path: Path) -> None:
    """An empty log, made under another name and renamed: there is a whole one or none."""
    fresh = path.with_name(path.name + "-new")
    for leftover in (fresh, fresh.with_name(fresh.name + "-journal")):
        leftover.unlink(missing_ok=True)
    connection = sqlite3.connect(fresh, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute(f"PRAGMA application_id={APPLICATION}")
        connection.executescript(
            f"BEGIN; {SCHEMA} INSERT INTO head VALUES (1, 0, x''); PRAGMA user_version={WHOLE}; COMMIT;"
        )
    finally:
        connection.close()
    put_in_place(fresh, path)
