"""An event loop in a thread of its own: asynchronous work for callers that are not."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from anyio import run
from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Background:
    """Starts when first used. A daemon: a program that forgets to close it ends all the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None

    def start(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Run a coroutine function there; the result is in the future."""
        with self._lock:
            if self._portal is None:
                ready: Future[BlockingPortal] = Future()
                self._thread = threading.Thread(
                    target=self._serve, args=(ready,), name="oracle requests", daemon=True
                )
                self._thread.start()
                self._portal = ready.result()
            return self._portal.start_task_soon(function, *arguments)

    @staticmethod
    def _serve(ready: Future[BlockingPortal]) -> None:
        async def main() -> None:
            async with BlockingPortal() as portal:
                ready.set_result(portal)
                await portal.sleep_until_stopped()

        run(main)

    @property
    def running(self) -> bool:
        return self._portal is not None

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            if self._portal is not None and self._thread is not None:
                self._portal.start_task_soon(self._portal.stop, True)
                self._thread.join()
                self._portal = self._thread = None
