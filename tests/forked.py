"""A process of its own for what needs one but no fresh start: a fork of this one, which has imported everything."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Forked:
    """A process that calls a function; ``said`` is the stream of what it prints, ended or not.

    Leaving a ``with`` kills it, unless it has ended.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        mine, its = os.pipe()
        with warnings.catch_warnings():
            # of threads, which exist in this process alone: the child takes no lock of theirs
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            _be_child(its, function, arguments)
        os.close(its)
        self.said = os.fdopen(mine, encoding="utf-8")
        self._code: int | None = None

    def kill(self) -> None:
        """With SIGKILL, which nobody can answer."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """0 if the function has returned, 1 if it has raised, minus the signal that ended it."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code

    def __enter__(self) -> Forked:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._code is None:
            self.kill()
            self.wait()
        self.said.close()


def forked(function: Callable[..., Any], *arguments: Any, code: int = 0) -> str:
    """What the function prints in a process of its own, which must end with this code; see `Forked.wait`."""
    with Forked(function, *arguments) as child:
        said = child.said.read()
        assert child.wait() == code, said
    return said


def _be_child(out: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Leave the process at once, without the parent's clean-up."""
    status = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(out, "w", encoding="utf-8")
        function(*arguments)
        status = 0
    except BaseException:  # whatever it is, it is the parent's to tell
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
