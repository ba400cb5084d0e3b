"""A download as people watch it: a bar on a terminal, a line at every tenth elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class ShownProgress:
    """Shows nothing until it is called, so that a file that is already here costs no output.

    Args:
        name: what is being downloaded.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._bar: Progress | None = None
        self._tenth = -1

    def __enter__(self) -> ShownProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None) -> None:
        if sys.stderr.isatty():
            self._draw(done, total)
        else:
            self._print(done, total)

    def _draw(self, done: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.add_task(self.name)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _print(self, done: int, total: int | None) -> None:
        tenth = 10 * done // total if total else done >> 20
        if tenth != self._tenth:
            self._tenth = tenth
            share = f"{100 * done // total} % of {total:,} bytes" if total else f"{done:,} bytes"
            print(f"{self.name}: {share}", file=sys.stderr, flush=True)
