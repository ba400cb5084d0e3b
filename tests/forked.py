"""A process of its own for what needs one but no fresh start: a fork of this one, which has imported everything.

``Forked(command, "run", "grid.toml")`` is the command ``targetopt run grid.toml``. Its workers are forked from the
process that those of this one are forked from. Other tests start the command afresh, as a user does.
"""

from __future__ import annotations

import contextlib
import multiprocessing.forkserver
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
        if function is command:
            from targetopt.lab.run import origin

            origin.started()
            if not _answers():
                _stop_server()
                origin.started()
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

    def poll(self) -> int | None:
        """As `wait`, but None as long as it has not ended."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        """0 if the function has returned, 1 if it has raised, minus the signal that ended it.

        After `SystemExit` it is the code of that, as for any process.
        """
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
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


def command(*words: str) -> None:
    """``targetopt WORDS…``, for `Forked` alone; in a process group of its own, as a shell starts it."""
    from targetopt.lab.cli.main import main

    os.setsid()
    # It is the parent's child, so that only the parent can wait for it and see that it is there.
    server = multiprocessing.forkserver
    server.ensure_running = server._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    sys.argv = ["targetopt", *words]
    main()


def _answers() -> bool:
    """Whether the process that workers are forked from makes one now; it takes some milliseconds once it is up.

    These processes share that of the parent. It ends with an EOFError when it comes to the request of one that was
    killed before it had said what it wanted, which may be seconds later if it is still importing. (A runner of a
    user's has one of its own, which ends with it anyway.)
    """
    worker = multiprocessing.get_context("forkserver").Process(target=int)
    try:
        worker.start()
    except (OSError, EOFError):
        return False
    worker.join()
    return worker.exitcode == 0


def _stop_server() -> None:
    server = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
    with contextlib.suppress(ProcessLookupError):
        os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()


def _be_child(out: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Leave the process at once, without the parent's clean-up."""
    status = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout = sys.stderr = os.fdopen(out, "w", encoding="utf-8")
        function(*arguments)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # whatever it is, it is the parent's to tell
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
