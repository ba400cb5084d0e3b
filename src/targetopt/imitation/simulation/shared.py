"""Rounds that runs have in common: while the expert drives, they do not depend on who learns from them.

Most of the time of such a run goes into the simulator, and the runs of a figure gather the same states. So the
first run of a process gathers them, and the others take what it has.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from targetopt.imitation.expert import Expert
from targetopt.imitation.policies.base import Behaviour
from targetopt.imitation.simulation.copies import Copies
from targetopt.imitation.simulation.gather import Batch, Gatherer
from targetopt.imitation.teacher import Teacher

STREAMS = 4
"""Streams of rounds that a process keeps; one of 500 rounds of 1000 states of a walker takes 90 MB."""

ASKED = ("labels", "driving")
"""What a gatherer asks the expert for."""


@dataclass(frozen=True)
class Kept:
    """A round, and how everything was when it had been gathered."""

    batch: Batch
    gatherer: dict[str, Any]
    asked: dict[str, int]
    seconds: float


@lru_cache(maxsize=STREAMS)
def stream(*described: Hashable) -> dict[tuple[int, int], Kept]:
    """What is kept of the rounds that ``described`` determines, by the interactions before them and their size."""
    return {}


class SharedGatherer(Gatherer):
    """A gatherer whose rounds are taken from ``rounds`` where they are there, and put there where they are not.

    Its rounds must be a function of what ``rounds`` stands for alone: an expert drives who answers everything.
    A round that is taken has the batch, the counts, the clock and the state of the one that was gathered.
    """

    def __init__(
        self, copies: Copies, rounds: dict[tuple[int, int], Kept], *, seed: int, burn_in: int | None
    ) -> None:
        super().__init__(copies, seed=seed, burn_in=burn_in)
        self.rounds = rounds
        self._ahead: Kept | None = None  # where this gatherer is, if the simulators are not there

    def stagger(self, behaviour: Behaviour) -> None:
        """Put off until a round has to be gathered, which may never be."""

    def gather(self, n: int, behaviour: Behaviour, expert: Expert, *, whole: bool = False) -> Batch:
        teacher = Teacher.of(expert, self.environment)
        place = (self.interactions, n)
        kept = self.rounds.get(place)
        if kept is None:
            kept = self._gathered(n, behaviour, teacher, whole)
            self.rounds[place] = kept
        else:
            self._ahead = kept
            self.interactions = kept.gatherer["interactions"]
            self.burn_in_steps = kept.gatherer["burn_in_steps"]
            self.gathering_time = kept.seconds
            teacher.asked |= kept.asked
        return kept.batch

    def _gathered(self, n: int, behaviour: Behaviour, teacher: Teacher, whole: bool) -> Kept:
        if self._ahead is not None:
            self.load_state_dict(self._ahead.gatherer)
        if not whole:
            with teacher.asked_for("driving"):
                super().stagger(behaviour)
        batch = super().gather(n, behaviour, teacher, whole=whole)
        asked = {purpose: teacher.asked[purpose] for purpose in ASKED}
        return Kept(batch, super().state_dict(), asked, self.gathering_time)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() if self._ahead is None else self._ahead.gatherer

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._ahead = None
