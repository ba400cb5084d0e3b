"""A person as the expert: questions with pictures in files, answers days later in another process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import targetopt as to
from forked import forked
from imitation_parts import PointMass, spring
from imitation_worlds import Walk, one
from targetopt import BadAnswer, BadArgument
from targetopt import imitation as im

SETTINGS: dict[str, Any] = {
    "rounds": 3, "states_per_round": 12, "copies": 3, "held_out": 0, "evaluate_every": 0, "progress": False,
    "learner": "linear", "inner": to.Exact(),
}  # fmt: skip


class Drawn(PointMass):
    """A point mass that can be looked at."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def render(self) -> Any:
        picture = np.zeros((4, 32, 3), np.uint8)
        picture[:, int(np.clip(16 + 8 * self.state[0], 0, 31))] = 255
        return picture


def answer(waiting: im.AwaitingAnswers, leave_out: int = 0) -> list[dict[str, Any]]:
    """What the spring would do, for all but the first few states."""
    rows = [json.loads(line) for line in waiting.questions.read_text().splitlines()]
    states = np.array([row["targets"] for row in rows])
    labels = spring(states).tolist()
    said = [{"id": r["id"], "label": label} for r, label in zip(rows, labels, strict=True)]
    waiting.answers.write_text("".join(json.dumps(each) + "\n" for each in said[leave_out:]))
    return rows


def by_mail(folder: Path, **options: Any) -> im.Result:
    """Train, answering whatever is asked, until the run is over."""
    while True:
        try:
            return im.train(
                Drawn, im.Person(folder), checkpoint=folder / "run.pt", **(SETTINGS | options)
            )
        except im.AwaitingAnswers as waiting:
            answer(waiting)


def test_answers_by_mail_give_the_run_of_a_function(tmp_path: Path) -> None:
    """To the bit: each round was stopped and went on, and nothing was asked twice."""
    mailed = by_mail(tmp_path)
    direct = im.train(Drawn, spring, behaviour=im.Mixture(0.0, learner_noise="little"), **SETTINGS)
    for ours, theirs in zip(mailed.policy.parameters(), direct.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert mailed.questions == direct.questions
    assert len(list(tmp_path.glob("questions-*.jsonl"))) == 3


def test_every_question_has_a_picture_of_its_state(tmp_path: Path) -> None:
    from PIL import Image

    with pytest.raises(
        im.AwaitingAnswers, match=r"12 questions.*one line .*train again"
    ) as stopped:
        im.train(Drawn, im.Person(tmp_path), checkpoint=tmp_path / "run.pt", **SETTINGS)
    rows = answer(stopped.value)
    assert len(rows) == 12
    for row in rows:
        picture = np.array(Image.open(tmp_path / row["frame"]))
        assert picture[0].any(axis=1).argmax() == int(np.clip(16 + 8 * row["targets"][0], 0, 31))
    assert stopped.value.result.history == []


def test_the_answers_come_to_another_process(tmp_path: Path) -> None:
    """A process asks and ends; another one, later, has the answers and asks for the next round."""

    def train() -> None:
        im.train(Drawn, im.Person(tmp_path), checkpoint=tmp_path / "run.pt", **SETTINGS)

    assert "AwaitingAnswers: 12 questions" in forked(train, code=1)
    (first,) = tmp_path.glob("questions-*.jsonl")
    answer(im.AwaitingAnswers(first, Path(str(first).replace("questions", "answers")), 12))
    assert "AwaitingAnswers: 12 questions" in forked(train, code=1)
    assert len(list(tmp_path.glob("questions-*.jsonl"))) == 2
    assert len(im.Result.load(tmp_path / "run.pt").history) == 1


def test_states_left_open_are_left_out(tmp_path: Path) -> None:
    options = {"checkpoint": tmp_path / "run.pt", **SETTINGS, "rounds": 1}
    with pytest.raises(im.AwaitingAnswers) as stopped:
        im.train(Drawn, im.Person(tmp_path), **options)
    answer(stopped.value, leave_out=5)
    result = im.train(Drawn, im.Person(tmp_path), **options)
    assert (result.history[0].states, result.questions["labels"]) == (7, 12)


def test_pictures_are_shown_as_they_are(tmp_path: Path) -> None:
    shown = np.zeros((2, 8, 8, 1), np.uint8)
    shown[0, 1, 2], shown[1, 3, 4] = 255, 255
    with pytest.raises(im.AwaitingAnswers) as stopped:
        im.Person(tmp_path)(shown)
    rows = [json.loads(line) for line in stopped.value.questions.read_text().splitlines()]
    assert all((tmp_path / row["frame"]).is_file() for row in rows)
    labels = [int(label) for label in one(shown)]
    lines = [json.dumps({"id": r["id"], "label": a}) for r, a in zip(rows, labels, strict=True)]
    stopped.value.answers.write_text("\n".join(lines))
    assert im.Person(tmp_path)(shown) == labels
    label = im.Environment(lambda: Walk("picture", "one")).actions.label(labels, 2, "Walk")
    assert label.ravel().tolist() == labels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 2000}, r"plays no episodes.*held_out=0"),
        ({"behaviour": "cloning"}, r"behaviour='cloning'.*cannot drive.*'online'"),
    ],
)
def test_what_a_person_cannot_do_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match=message):
        im.train(Drawn, im.Person(tmp_path), **(SETTINGS | options))


def test_answers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    person, states = im.Person(tmp_path), np.array([[0.5, 1.0], [0.7, 2.0]])
    with pytest.raises(im.AwaitingAnswers) as stopped:
        person(states)
    names = [json.loads(line)["id"] for line in stopped.value.questions.read_text().splitlines()]

    def said(*rows: dict[str, Any]) -> None:
        stopped.value.answers.write_text("".join(json.dumps(row) + "\n" for row in rows))

    said({"id": "nobody", "label": [1.0]})
    with pytest.raises(BadAnswer, match="ids that were not asked: 'nobody'"):
        person(states)
    said({"id": names[0], "label": [1.0]}, {"id": names[0], "label": [2.0]})
    with pytest.raises(BadAnswer, match="more than once"):
        person(states)
    said({"id": names[0], "label": [1.0]}, {"id": names[1], "label": [2.0, 3.0]})
    with pytest.raises(BadAnswer, match="different shapes"):
        person(states)
