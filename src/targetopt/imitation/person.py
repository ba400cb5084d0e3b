"""A person as the expert: questions are files with pictures, answers come back later, to another process."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.imitation.needs import package
from targetopt.losses import Squared
from targetopt.oracle.answers import Answers, ids_of
from targetopt.oracle.teachers import from_labels
from targetopt.types import BadAnswer, Query, TargetoptError


class AwaitingAnswers(TargetoptError):
    """The questions of a round are written, and nobody has answered them yet. The run is kept.

    Attributes:
        questions: the file with the questions.
        answers: where the answers are looked for.
        result: out of `train`, the run so far.
    """

    result: Any = None

    def __init__(self, questions: Path, answers: Path, count: int) -> None:
        super().__init__(
            f"{count} questions are in {str(questions)!r}. Write what you would do to {str(answers)!r}, one line "
            '{"id": ..., "label": ...} for each state that you have an answer for, and train again with the same '
            "checkpoint."
        )
        self.questions, self.answers = questions, answers


class Person:
    """An expert who answers in files, when there is time for it.

    Each round writes ``questions-<name>.jsonl`` with a row for each state: its ``id``, the numbers of the state
    (``targets``), and ``frame``, the file of a picture of the simulator if the environment draws some
    (``render_mode="rgb_array"``), or of the observation if it is a picture itself. `train` then ends with
    `AwaitingAnswers`, the run being safe in its checkpoint. The person writes ``answers-<name>.jsonl``: rows with
    ``id`` and ``label``, the action (a list of numbers; choices count from 0). States without a row, or with null, are
    left out of what is learned. The same call of `train`, in whatever process and however much later, goes on.

    A person cannot drive by mail and plays no episodes of its own: the learner drives (``behaviour="online"``), and
    ``held_out=0``.

    Args:
        folder: where questions, pictures and answers are; it is made if it is not there.

    Example:
        >>> import json, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> person, states = Person(folder), np.array([[0.5, 1.0], [0.7, 2.0]])
        >>> try:
        ...     person(states)
        ... except AwaitingAnswers as waiting:
        ...     rows = [json.loads(line) for line in waiting.questions.read_text().splitlines()]
        ...     answer = json.dumps({"id": rows[1]["id"], "label": [0.3]})
        ...     _ = waiting.answers.write_text(answer)
        >>> person(states)  # the first state was left open
        [None, [0.3]]
    """

    wants_frames: ClassVar[bool] = True
    answers_later: ClassVar[bool] = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def see(self, states: Any, frames: list[NDArray[np.uint8] | None]) -> None:
        """Keep pictures of states that may be asked about; None for those that the simulator does not draw."""
        for name, frame in zip(_names(_rows(states)), frames, strict=True):
            if frame is not None:
                self._draw(name, frame)

    def _draw(self, name: str, frame: NDArray[np.uint8]) -> None:
        package("PIL", "Pictures of states")
        from PIL import Image

        path = self.folder / "frames" / f"{name}.png"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(frame).save(path)

    def __call__(self, states: Any, /) -> list[Any]:
        rows = _rows(states)
        names = _names(rows)
        query = Query(torch.from_numpy(rows), step=0, ids=names)
        name = hashlib.sha256("".join(names).encode()).hexdigest()[:12]
        questions = self.folder / f"questions-{name}.jsonl"
        answers = self.folder / f"answers-{name}.jsonl"
        if not answers.exists():
            if not questions.exists():
                self._ask(query, states, questions)
            raise AwaitingAnswers(questions, answers, len(names))
        told = Answers.read(answers, form=from_labels(Squared))
        actions = told.columns["labels"]
        found = [None if row is None else actions[row] for row in told.matched(query)]
        sizes = {np.shape(action) for action in found if action is not None}
        if len(sizes) > 1:
            raise BadAnswer(f"{answers} has actions of different shapes: {sorted(sizes)}")
        return found

    def _ask(self, query: Query, states: Any, questions: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = ids_of(query)
        if isinstance(states, np.ndarray) and states.dtype == np.uint8 and states.ndim in (3, 4):
            for name, shown in zip(names, states, strict=True):
                grey = shown[..., 0] if shown.shape[-1] == 1 else shown
                if grey.ndim == 2 or grey.shape[-1] == 3:
                    self._draw(name, grey)
        frames = [self.folder / "frames" / f"{name}.png" for name in names]
        drawn = [str(frame.relative_to(self.folder)) if frame.exists() else "" for frame in frames]
        query.export(questions, frame=drawn)


def _rows(states: Any) -> NDArray[np.float64]:
    """What the environment shows, one row of numbers a state."""
    parts = [states[name] for name in sorted(states)] if isinstance(states, dict) else [states]
    rows = [np.asarray(part, dtype=np.float64).reshape(len(part), -1) for part in parts]
    return np.concatenate(rows, axis=1)


def _names(rows: NDArray[np.float64]) -> list[str]:
    """A name for each state: the same in every process."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in rows]
