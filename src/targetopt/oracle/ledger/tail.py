"""The newest events of a log, in a file beside it: one wait for the disk where a commit of SQLite has five.

The tail is a file of fixed size, made of zeros when a log is opened for writing, whose groups of events are written
one after the other and in place. Nothing but their own bytes has to reach the disk, so one ``fdatasync`` makes a
group durable. When the tail is full, or the log is closed, its events go into SQLite in one commit, and the next group
begins at its start again.

A group is a transaction: its digest covers all of it, with the number and the chain of the event before it. What was
half written when the power went is not a group, and whoever wrote it was never told that it was safe. A group
that cannot be read although a later one is whole is damage, and refused. Groups that SQLite has already, left over
from before, are recognised by their numbers.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from targetopt.files import put_in_place

SIZE = 1 << 20
MAGIC = b"TGT1"
HEADER = struct.Struct(
    "<4sQ16s16sI"
)  # magic, number before, chain before, digest, bytes that follow
LENGTHS = struct.Struct("<Ii")  # of a body, and of its content: -1 where there is none

Written = tuple[bytes, bytes | None]
"""The body of an event, and its content where it has any."""


class Group(NamedTuple):
    """Events that were written together, after the event ``before`` whose chain was ``chain``."""

    before: int
    chain: bytes
    events: list[Written]

    @property
    def last(self) -> int:
        return self.before + len(self.events)


class Tail:
    """The tail of a log that is open for writing; it is made if it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists() or path.stat().st_size != SIZE:
            fresh = path.with_name(path.name + "-new")
            with fresh.open("wb") as file:
                file.write(bytes(SIZE))
                file.flush()
                os.fsync(file.fileno())
            put_in_place(fresh, path)
        self._file = path.open("r+b", buffering=0)
        self._end = 0

    def write(self, before: int, chain: bytes, events: Sequence[Written]) -> bool:
        """Make a group durable; False, and nothing is written, if there is no room for it."""
        whole = _encoded(before, chain, events)
        if self._end + len(whole) > SIZE:
            return False
        self._file.seek(self._end)
        rest = memoryview(whole)
        while rest:
            rest = rest[self._file.write(rest) :]
        _sync(self._file.fileno())
        self._end += len(whole)
        return True

    def restart(self) -> None:
        """SQLite has everything: begin at the start again."""
        self._end = 0

    def close(self, *, remove: bool) -> None:
        self._file.close()
        if remove:
            with suppress(OSError):  # a reader may have it open; its groups are known to be old
                self.path.unlink()


def beside(path: Path) -> Path:
    """Where the tail of a log lies."""
    return path.with_name(path.name + "-tail")


def found(path: Path) -> bytes | None:
    """The bytes of a log's tail; None if it has none."""
    try:
        return beside(path).read_bytes()
    except FileNotFoundError:
        return None


def groups(data: bytes) -> Iterator[Group]:
    """The whole groups of a tail; those after one that cannot be read come as well."""
    place = 0
    while (place := data.find(MAGIC, place)) >= 0:
        group, end = _decoded(data, place)
        if group is not None:
            yield group
        place = end


def _sync(descriptor: int) -> None:
    """Wait until a file's bytes are on the disk; on macOS only F_FULLFSYNC does that."""
    with suppress(ImportError, AttributeError):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
        return
    getattr(os, "fdatasync", os.fsync)(descriptor)


def _digest(before: int, chain: bytes, payload: bytes) -> bytes:
    total = hashlib.blake2b(before.to_bytes(8, "little"), digest_size=16)
    total.update(chain)
    total.update(payload)
    return total.digest()


def _encoded(before: int, chain: bytes, events: Sequence[Written]) -> bytes:
    parts: list[bytes] = []
    for body, content in events:
        parts += [LENGTHS.pack(len(body), -1 if content is None else len(content)), body]
        parts += [] if content is None else [content]
    payload = b"".join(parts)
    sealed = _digest(before, chain, payload)
    return HEADER.pack(MAGIC, before, chain, sealed, len(payload)) + payload


def _decoded(data: bytes, place: int) -> tuple[Group | None, int]:
    """The group at a place, if it is whole, and where to look on."""
    begin = place + HEADER.size
    if begin > len(data):
        return None, len(data)
    _, before, chain, sealed, length = HEADER.unpack_from(data, place)
    payload = data[begin : begin + length]
    if len(payload) != length or _digest(before, chain, payload) != sealed:
        return None, place + 1
    events: list[Written] = []
    at = 0
    while at < length:
        body, content = LENGTHS.unpack_from(payload, at)
        at += LENGTHS.size
        end = at + body + max(content, 0)
        events.append((payload[at : at + body], None if content < 0 else payload[at + body : end]))
        at = end
    return Group(before, chain, events), begin + length
