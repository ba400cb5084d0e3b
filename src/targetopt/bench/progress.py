"""Progress for whoever waits: a live bar on a terminal, plain lines anywhere else."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from targetopt.bench.config import RunConfig
from targetopt.bench.runner import Display, Tally
from targetopt.bench.work import Event

EVERY = 5.0
"""Seconds between two plain lines."""


def display_for(console: Console) -> Display:
    """The display that suits ``console``."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def spoken(seconds: float | None) -> str:
    """
    >>> spoken(3725.0), spoken(59.7), spoken(None)
    ('1 h 02 min', '1 min 00 s', '?')
    """
    if seconds is None:
        return "?"
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def named(run: RunConfig) -> str:
    """A run as people call it."""
    batch = "full batch" if run.batch_size == "full" else f"batch {run.batch_size}"
    return f"{run.problem_label}, {run.method_label}, {batch}, seed {run.seed}"


def _pace(tally: Tally) -> str:
    troubles = {status: count for status, count in tally.ended.items() if status != "done"}
    words = [f"{count} {status}" for status, count in sorted(troubles.items())]
    words += [f"{tally.rate():.3g} runs/s", f"{spoken(tally.time_left())} left"]
    return " · ".join(words)


class LiveDisplay:
    """One bar, kept up to date; runs that go wrong scroll by above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("runs"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[pace]}"),
            console=console,
            transient=True,
        )
        self.bar = self.progress.add_task("runs", total=None, pace="")

    def update(self, tally: Tally) -> None:
        # Not before: a bar hides the cursor, and whoever finds that there is nothing to do closes none.
        self.progress.start()
        completed = tally.before + tally.worked
        self.progress.update(self.bar, total=tally.total, completed=completed, pace=_pace(tally))

    def ended(self, run: RunConfig, event: Event) -> None:
        if event.status != "done":
            line = f"{event.status}: {named(run)}: {event.reason}"
            self.progress.console.print(line, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        self.progress.stop()


class PlainDisplay:
    """A line every few seconds, and one for each run that goes wrong: fit for a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last = time.monotonic()

    def update(self, tally: Tally) -> None:
        if time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self._line(f"{tally.finished} of {tally.total} runs · {_pace(tally)}")

    def ended(self, run: RunConfig, event: Event) -> None:
        if event.status != "done":
            self._line(f"{event.status}: {named(run)}: {event.reason}")

    def close(self) -> None: ...

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
