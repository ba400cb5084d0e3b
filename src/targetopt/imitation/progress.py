"""What is said of a training while it goes on: one line on where it stands, after each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from targetopt.display import Progress

if TYPE_CHECKING:
    from targetopt.imitation.result import Round

Show = Callable[["Round"], None]


@contextmanager
def display(rounds: int, expert_return: float, *, wanted: bool) -> Iterator[Show]:
    """A function to call after each round, fit for where the output goes."""
    known_return = float("nan")
    with Progress(unit="rounds", wanted=wanted) as progress:

        def show(latest: Round) -> None:
            nonlocal known_return
            evaluated = latest.mean_return == latest.mean_return  # nan in the rounds without one
            if evaluated:
                known_return = latest.mean_return
            said = said_of(latest, known_return, expert_return)
            progress.show(latest.round, rounds, said, now=evaluated)

        yield show


def said_of(latest: Round, known_return: float, expert_return: float) -> str:
    """One line on where the training stands."""
    words = f"loss {latest.loss:.2g}"
    if latest.held_out_loss == latest.held_out_loss:  # nan without held-out states
        words += f", held out {latest.held_out_loss:.2g}"
    if known_return == known_return:  # nan until the first evaluation
        words += f", return {known_return:.0f}"
        words += f" of {expert_return:.0f}" if expert_return == expert_return else ""
    cost = f", cost {latest.cost:.4g}" if latest.cost else ""
    return f"{words}, {latest.questions} questions{cost}"
