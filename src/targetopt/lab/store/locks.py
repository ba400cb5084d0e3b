"""Who is doing which run: one locked file per run being done.

A lock is an ``flock`` on ``locks/<id>``. The kernel drops it with its process, however that process
ends, so a lock is held exactly as long as somebody is working on the run, and no age or heartbeat has
to be guessed. A process that is stopped (SIGSTOP, Ctrl-Z) keeps what it holds until it goes on.
"""

import fcntl
import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from targetopt.lab.store.files import explained


class Locks:
    """The locks of one result directory, seen from this process.

    >>> import tempfile
    >>> locks = Locks(Path(tempfile.mkdtemp()))
    >>> locks.take("3f2a")
    True
    >>> Locks(locks.directory).take("3f2a")
    False
    >>> locks.release("3f2a")
    >>> Locks(locks.directory).take("3f2a")
    True
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: dict[str, int] = {}

    def take(self, name: str) -> bool:
        """Lock ``name`` if nobody alive holds it; never waits."""
        path = self.directory / name
        with explained(path):
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # The last holder may have removed the file between our open and our lock;
                    # then we hold a lock on nothing, and try again.
                    if _same_file(descriptor, path):
                        holder = {
                            "pid": os.getpid(),
                            "host": socket.gethostname(),
                            "uptime": time.monotonic(),
                        }
                        os.ftruncate(descriptor, 0)
                        os.write(descriptor, json.dumps(holder).encode())
                        self._held[name] = descriptor
                        return True
                    os.close(descriptor)
                except BlockingIOError:
                    os.close(descriptor)
                    return False
                except BaseException:
                    os.close(descriptor)
                    raise

    def release(self, name: str) -> None:
        descriptor = self._held.pop(name)
        try:
            with explained(self.directory / name):
                (self.directory / name).unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def age(self, name: str) -> float:
        """Seconds since ``name`` was last locked, by a process alive or dead; 0 if never.

        On the machine that locked it this is told by a clock that nobody sets.
        """
        path = self.directory / name
        try:
            holder, locked = _holder(path.read_bytes()), path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        if holder.get("host") == socket.gethostname():
            since = time.monotonic() - float(holder.get("uptime", math.inf))
            if since >= 0:  # or the machine was started anew meanwhile
                return since
        return max(0.0, time.time() - locked)

    def alive(self) -> dict[str, dict[str, Any]]:
        """The locks that a living process holds: name → its pid and host."""
        held = {}
        for path in sorted(self.directory.glob("*")):
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held[path.name] = _holder(os.read(descriptor, 4096))
            finally:
                os.close(descriptor)
        return held


def _holder(text: bytes) -> dict[str, Any]:
    """What a lock says of its process; nothing if its process is just about to write it."""
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
