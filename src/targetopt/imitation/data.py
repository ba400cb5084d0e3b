"""What a round learns from: its own states, all states so far, or the latest of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from targetopt.imitation.simulation.gather import Batch
from targetopt.types import BadArgument, positive_int


@dataclass(frozen=True)
class Replay:
    """Learn from the latest ``n`` labelled states; those of the present round are always among them.

    Old states keep the labels they were given: the expert is never asked again.

    A round takes ``updates`` steps, each on ``batch`` of these states, drawn anew without replacement. Labels are
    bought once, so that more updates cost computation and no questions. The last of many small steps is as noisy as
    its batch; with ``average`` a round ends at the mean of the parameters that its steps came to, and the next round
    goes on from there.

    Args:
        n: how many states, or ``"all"``: DAgger as Ross et al. have it, which learns from everything that
            was ever labelled.
        batch: states that one update learns from; None for all that are kept.
        updates: steps in a round.
        average: whether a round ends at the mean of its steps' parameters, or where the last step came to.
        in_memory: bytes of states and labels up to which they are kept in memory, a gigabyte by default. If all are
            kept and more than that, they lie in a temporary file, of which an update reads the ``batch`` rows it draws.

    Example:
        >>> Replay(3).joined(_batch([1, 2]), _batch([3, 4])).states.ravel()
        array([2., 3., 4.])
        >>> Replay("all").joined(_batch([1, 2]), _batch([3, 4])).states.ravel()
        array([1., 2., 3., 4.])
        >>> Replay(1).joined(_batch([1, 2]), _batch([3, 4])).states.ravel()  # a round is never cut
        array([3., 4.])

    Reference: Ross, Gordon & Bagnell, *A Reduction of Imitation Learning and Structured Prediction to
    No-Regret Online Learning*, AISTATS 2011, Alg. 3.1. Polyak & Juditsky, *Acceleration of stochastic approximation by
    averaging*, SIAM J. Control Optim. 1992.
    """

    n: int | Literal["all"] = "all"
    batch: int | None = None
    updates: int = 1
    average: bool = False
    in_memory: int = field(default=1 << 30, metadata={"changes": "nothing"})

    def __post_init__(self) -> None:
        positive_int("Replay: in_memory", self.in_memory)
        if self.n != "all":
            positive_int("Replay: n", self.n)
        if self.batch is not None:
            positive_int("Replay: batch", self.batch)
        positive_int("Replay: updates", self.updates)

    def reaches(self, states_per_round: int) -> bool:
        """Whether a round of so many states leaves room for older ones."""
        return self.n == "all" or self.n > states_per_round

    def joined(self, kept: Batch | None, new: Batch) -> Batch:
        """What is learned from in a round whose own states are ``new``."""
        if kept is None or self.n == "all":
            old = 0 if kept is None else len(kept.states)
        else:
            old = min(max(self.n - len(new.states), 0), len(kept.states))
        if kept is None or old == 0:
            return new
        return Batch(
            np.concatenate([kept.states[-old:], new.states]),
            np.concatenate([kept.labels[-old:], new.labels]),
            new.finished_returns,
            new.finished_lengths,
        )

    def drawn(self, kept: Batch, rng: np.random.Generator) -> Iterator[Batch]:
        """What each update of a round learns from, out of all that is kept."""
        for _ in range(self.updates):
            if self.batch is None or self.batch >= len(kept.states):
                yield kept
                continue
            rows = rng.choice(len(kept.states), self.batch, replace=False)
            yield replace(kept, states=kept.states[rows], labels=kept.labels[rows])


def replay(data: str | Replay) -> Replay:
    """A replay by its short name, or as it is."""
    if isinstance(data, Replay):
        return data
    if data not in DATA:
        raise BadArgument(
            f"data={data!r} must be one of {', '.join(map(repr, DATA))}, or to.imitation.Replay(n)"
        )
    return DATA[data]


DATA = {"round": Replay(1), "all": Replay("all")}


def _batch(states: list[float]) -> Batch:
    """Of the examples above."""
    column = np.array(states, dtype=np.float64)[:, None]
    return Batch(column, column, np.empty(0), np.empty(0, dtype=np.int64))
