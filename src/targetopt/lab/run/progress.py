"""How the runs of an experiment are shown to whoever waits, and how people call a run and a duration."""

from rich.console import Console

from targetopt.display import Progress
from targetopt.lab.run.job import Event
from targetopt.lab.run.runner import Tally
from targetopt.lab.spec.config import RunConfig


def spoken(seconds: float) -> str:
    """
    >>> spoken(3725.0), spoken(59.7)
    ('1 h 02 min', '1 min 00 s')
    """
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
    left = tally.time_left()
    if left is None:
        words.append(
            "workers are starting" if not tally.running else "the first runs are under way"
        )
    else:
        words += [f"{tally.rate():.3g} runs/s", f"{spoken(left)} left"]
    return " · ".join(words)


class ShownRuns:
    """The runs of an experiment: how many are done, and a line for each that goes wrong."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(unit="runs", console=console, estimate=False, transient=True)

    def update(self, tally: Tally) -> None:
        self._progress.show(tally.before + tally.worked, tally.total, _pace(tally))

    def ended(self, run: RunConfig, event: Event) -> None:
        if event.status != "done":
            self._progress.say(f"{event.status}: {named(run)}: {event.reason}", style="yellow")

    def close(self) -> None:
        self._progress.close()
