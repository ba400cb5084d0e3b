"""Who is doing which run: one locked file per run being done.

A claim is an ``flock`` on ``claims/<id>``. The kernel drops it with its process, however that
process ends, so a claim is alive exactly as long as somebody is working on it, and no age or
heartbeat has to be guessed.
"""

import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from targetopt.bench.files import explained


class Claims:
    """The claims of one result directory, seen from this process.

    >>> import tempfile
    >>> claims = Claims(Path(tempfile.mkdtemp()))
    >>> claims.take("3f2a")
    True
    >>> Claims(claims.directory).take("3f2a")
    False
    >>> claims.release("3f2a")
    >>> Claims(claims.directory).take("3f2a")
    True
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: dict[str, int] = {}

    def take(self, name: str) -> bool:
        """Claim ``name`` if nobody alive has it; never waits."""
        path = self.directory / name
        with explained(path):
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # The last holder may have removed the file between our open and our lock;
                    # then we hold a lock on nothing, and try again.
                    if _same_file(descriptor, path):
                        holder = {"pid": os.getpid(), "host": socket.gethostname()}
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
        """Seconds since ``name`` was last claimed, by a process alive or dead; 0 if never."""
        try:
            return max(0.0, time.time() - (self.directory / name).stat().st_mtime)
        except FileNotFoundError:
            return 0.0

    def alive(self) -> dict[str, dict[str, Any]]:
        """The claims that a living process holds: name → its pid and host."""
        held = {}
        for path in sorted(self.directory.glob("*")):
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = os.read(descriptor, 4096)
                held[path.name] = json.loads(text) if text else {}
            finally:
                os.close(descriptor)
        return held


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
