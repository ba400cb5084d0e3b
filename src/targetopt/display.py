"""How far something is, for whoever waits: a bar on a terminal, plain lines anywhere else.

All of the package shows its progress through :class:`Progress`: runs of an experiment, rounds of imitation, steps of an
expert's training, bytes of a download. The bar needs ``rich``; without it there are plain lines on a terminal, too.
"""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 5.0
"""Seconds between two plain lines."""


class Progress:
    """Shows nothing until :meth:`show` is called, so that what is done already costs no output.

    Args:
        name: what is going on, such as ``"Hopper-v5 sac"``; it stands before every bar and line.
        unit: what is counted, such as ``"runs"``; ``"bytes"`` are written with their prefixes, and with their speed.
        console: where to write, a ``rich`` console; standard error if it is left out.
        estimate: whether the bar says what time is left; not where the notes do.
        transient: whether the bar vanishes in the end.
        wanted: whether to show anything at all.

    Example:
        >>> from rich.console import Console
        >>> with Progress("demo", "runs", console=Console(file=sys.stdout)) as progress:
        ...     progress.show(2, 2, "all well")
        demo: 2 of 2 runs · all well
    """

    def __init__(
        self,
        name: str = "",
        unit: str = "",
        *,
        console: Console | None = None,
        estimate: bool = True,
        transient: bool = False,
        wanted: bool = True,
    ) -> None:
        self.name, self.unit, self.wanted = name, unit, wanted
        self.estimate, self.transient = estimate, transient
        self._console = console if console is not None or not wanted else _standard_error()
        self._last = -math.inf
        self._said = ""
        self._live: Any = None  # rich's own, once there is something to show
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(
        self, done: float, total: int | None, note: str = "", *, part: str = "", now: bool = False
    ) -> None:
        """Tell how far it is.

        Args:
            done: how many units are done.
            total: of how many; ``None`` if nobody knows.
            note: a few words on how it goes.
            part: of work with several parts, the one that goes on; each has a bar of its own.
            now: whether a plain line is due in any case; else there is one at the beginning, one every few seconds,
                and one at the end.
        """
        if not self.wanted:
            return
        if self._console is not None and self._console.is_terminal:
            self._draw(done, total, note, part)
        elif now or done == total or time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            line = self._line(done, total, note, part)
            if line != self._said:
                self._said = line
                self.say(line)

    def say(self, line: str, style: str | None = None) -> None:
        """Print a line, above the bar if there is one."""
        if not self.wanted:
            return
        if self._console is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Take the bar down. The cursor, which a bar hides, is back afterwards."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, done: float, total: int | None, note: str, part: str) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.unit == "bytes":
            count = (
                f"{100 * done // total:.0f} % of {total:,} bytes" if total else f"{done:,} bytes"
            )
        else:
            count = f"{int(done):,}{'' if total is None else f' of {total:,}'}{unit}"
        head = f"{self.name}: " if self.name else ""
        return f"{head}{f'{part} ' if part else ''}{count}{f' · {note}' if note else ''}"

    def _draw(self, done: float, total: int | None, note: str, part: str) -> None:
        from rich import progress as rich

        if self._live is None:
            title = rich.TextColumn("{task.description}", markup=False)
            columns: list[rich.ProgressColumn] = [title, rich.BarColumn(bar_width=12)]
            if self.unit == "bytes":
                columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()]
            else:
                columns.append(rich.MofNCompleteColumn())
            if self.estimate:
                columns.append(rich.TimeRemainingColumn())
            columns.append(rich.TextColumn("{task.fields[note]}", markup=False))
            self._live = rich.Progress(*columns, console=self._console, transient=self.transient)
            self._live.start()
        if part not in self._bars:
            words = ": ".join(word for word in (self.name or self.unit, part) if word)
            self._bars[part] = self._live.add_task(words, total=total, note=note)
        self._live.update(self._bars[part], completed=done, total=total, note=note)


def _standard_error() -> Console | None:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return None
    return Console(stderr=True)
