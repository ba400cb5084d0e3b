"""The seam to the expert: each state is asked once, every question is counted, every answer checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from targetopt.imitation.expert import Expert
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.environment import Environment

PURPOSES = ("labels", "driving", "measuring", "checking")
"""What the expert is asked for: labels of rounds; acting outside of them, while copies are staggered (never
in `train`, where the learner does that); its own episodes; and whether it is still the same expert when a run
goes on."""


class Teacher:
    """An expert as a run asks it.

    A question is one state. Who drives and who labels ask the same teacher, so that a state in which
    the expert acted is not asked again for its label; what it answered is kept until `forget`. The
    expert gets a copy of the states, which it may change as it likes.

    Args:
        expert: ``states (n, d) -> mean actions (n, k)``.
        environment: whose action box the answers are clipped to.

    Attributes:
        asked: questions so far, by purpose.

    Example:
        >>> from targetopt import imitation as im
        >>> teacher = Teacher(lambda s: s[:, :1], im.Environment("Pendulum-v1"))
        >>> states = np.array([[0.5, 0.0, 0.0], [0.7, 0.0, 0.0]])
        >>> teacher(states[:1]), teacher(states)  # one question, and then one more
        (array([[0.5]]), array([[0.5],
               [0.7]]))
        >>> teacher.questions
        2
    """

    def __init__(self, expert: Expert, environment: Environment) -> None:
        self.expert = expert
        self.environment = environment
        self.asked = dict.fromkeys(PURPOSES, 0)
        self.purpose = "labels"
        self._known: dict[bytes, Array] = {}

    @classmethod
    def of(cls, expert: Expert, environment: Environment) -> Teacher:
        """The expert at its seam; a teacher is one already."""
        return expert if isinstance(expert, Teacher) else cls(expert, environment)

    @property
    def questions(self) -> int:
        """All that was asked so far."""
        return sum(self.asked.values())

    def __call__(self, states: Array, /) -> Array:
        keys = [row.tobytes() for row in states]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        first = {keys[i]: i for i in reversed(new)}  # the same state twice is one question
        rows = sorted(first.values())
        if rows:
            fresh = states if len(rows) == len(states) else states[rows]
            answers = labelled(self.expert, fresh, self.environment)
            self.asked[self.purpose] += len(rows)
            if len(rows) == len(states):
                self._known.update(zip(keys, answers, strict=True))
                return answers.copy()
            self._known.update((keys[i], answer) for i, answer in zip(rows, answers, strict=True))
        return np.array([self._known[key] for key in keys])

    @contextmanager
    def asked_for(self, purpose: str) -> Iterator[None]:
        """Count what is asked in here under ``purpose``."""
        usual, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = usual

    @property
    def wants_frames(self) -> bool:
        """Whether the expert is to be shown pictures of the simulator: a `Person` is."""
        return bool(getattr(self.expert, "wants_frames", False))

    def see(self, states: Array, frames: list[Any]) -> None:
        """Show the expert pictures of states that it may be asked about."""
        self.expert.see(self.environment.observations.unrolled(states), frames)  # type: ignore[attr-defined]

    def forget(self) -> None:
        """Forget the answers, not their number: their states will not come again."""
        self._known.clear()

    def state_dict(self) -> dict[str, Any]:
        """The counts, and what an unfinished round has asked already."""
        layout, answers = self.environment.observations, list(self._known.values())
        states = [np.frombuffer(key, dtype=layout.dtype) for key in self._known]
        width = len(answers[0]) if answers else self.environment.action_size
        return {
            "asked": dict(self.asked),
            "states": np.array(states, dtype=layout.dtype).reshape(-1, layout.size),
            "answers": np.array(answers, dtype=np.float64).reshape(-1, width),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.asked = dict.fromkeys(PURPOSES, 0) | state["asked"]
        answers = np.array(state["answers"])
        self._known = {row.tobytes(): answers[i] for i, row in enumerate(np.array(state["states"]))}


def labelled(expert: Expert, states: NDArray[Any], environment: Environment) -> Array:
    """The expert's answers as rows of labels: actions, clipped to the box, or distributions over them.

    The expert gets a copy of the states, and its answer is copied: neither can change behind our back.
    """
    shown = environment.observations.unrolled(states.copy())
    return environment.actions.label(expert(shown), len(states), environment.name)
