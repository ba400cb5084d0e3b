"""Progress of a training: a live bar on a terminal where rich is installed, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from targetopt.problems.imitation.rounds import Round

EVERY = 5.0
"""Seconds between two plain lines."""

Show = Callable[["Round"], None]


@contextmanager
def display(rounds: int, done: int, expert_return: float, *, wanted: bool) -> Iterator[Show]:
    """A function to call after each round, fit for where the output goes."""
    if not wanted:
        yield lambda _: None
        return
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        yield _plain(rounds, expert_return)
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain(rounds, expert_return)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    known_return = float("nan")
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("", total=rounds, completed=done)

        def show(latest: Round) -> None:
            nonlocal known_return
            if latest.mean_return == latest.mean_return:
                known_return = latest.mean_return
            said = said_of(latest, known_return, expert_return)
            bars.update(bar, completed=latest.round, description=said)

        yield show


def said_of(latest: Round, known_return: float, expert_return: float) -> str:
    """One line on where the training stands."""
    words = f"loss {latest.loss:.2g}, held out {latest.held_out_loss:.2g}"
    if known_return == known_return:  # nan until the first evaluation
        words += f", return {known_return:.0f} of {expert_return:.0f}"
    return words


def _plain(rounds: int, expert_return: float) -> Show:
    last = time.monotonic()

    def show(latest: Round) -> None:
        nonlocal last
        evaluated = latest.mean_return == latest.mean_return
        if evaluated or time.monotonic() - last >= EVERY:
            last = time.monotonic()
            said = said_of(latest, latest.mean_return, expert_return)
            print(f"round {latest.round} of {rounds}: {said}", file=sys.stderr, flush=True)

    return show
