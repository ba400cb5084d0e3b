"""What the expert is asked: every question counted, no state asked twice, nothing changed behind its back."""

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import targetopt as to
from imitation_parts import PointMass, spring
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array
from test_imitation_training import run, same

STEPS = to.GradientDescent(step_size=0.1, max_steps=2)


class Questioned:
    """An expert that keeps every state it was asked about."""

    def __init__(self) -> None:
        self.states: list[bytes] = []

    def __call__(self, states: Array) -> Array:
        self.states += [row.tobytes() for row in states]
        return spring(states)


@pytest.mark.parametrize("behaviour", ["online", "cloning", "dagger", "handover"])
@pytest.mark.parametrize("held_out", [0, 40])
def test_every_question_is_counted_and_none_is_repeated(behaviour: Any, held_out: int) -> None:
    """30 steps of an episode limit: copies are staggered by 0, 10 and 20 steps, and nobody is asked about these."""
    expert = Questioned()
    limited = lambda: gymnasium.wrappers.TimeLimit(PointMass(), 30)  # noqa: E731
    result = run(limited, expert, behaviour=behaviour, held_out=held_out, inner=STEPS)
    assert len(expert.states) == sum(result.questions.values())
    assert len(set(expert.states)) == len(expert.states)
    assert result.questions["labels"] == 6 * 60
    assert result.questions["driving"] == 0
    assert result.questions["checking"] == 0
    played = im.evaluate(spring, PointMass, episodes=3, seed=2**63).lengths.sum()
    assert result.questions["measuring"] == (played if held_out else 0)
    asked = result.columns()["questions"]
    np.testing.assert_array_equal(asked, result.questions["measuring"] + 60 * np.arange(1, 7))


def test_without_held_out_states_only_labels_are_asked_for() -> None:
    result = run(held_out=0, inner=STEPS, behaviour="online")
    assert result.questions == {"labels": 360, "driving": 0, "measuring": 0, "checking": 0}
    assert math.isnan(result.expert_return)
    last = result.history[-1]
    assert math.isnan(last.held_out_loss)
    assert math.isnan(last.return_share)
    assert math.isfinite(last.mean_return)  # of the learner, whom nobody need ask
    usual = run(inner=STEPS, behaviour="online")
    for a, b in zip(result.policy.parameters(), usual.policy.parameters(), strict=True):
        assert bool((a == b).all())  # measuring changes nothing that is learned


def test_a_run_that_goes_on_repeats_no_question(tmp_path: Path) -> None:
    """But for a few, which tell whether it is the same expert."""
    file, first, second = tmp_path / "run.pt", Questioned(), Questioned()
    options: dict[str, Any] = {"inner": STEPS, "behaviour": "dagger"}
    run(expert=first, rounds=2, checkpoint=file, **options)
    result = run(expert=second, checkpoint=file, **options)
    same(result, run(**options))
    assert result.questions["checking"] == 4
    again = set(first.states) & set(second.states)
    assert len(again) == 4
    assert sum(result.questions.values()) == len(first.states) + len(second.states)
    assert im.Result.load(file).questions == result.questions


def test_answers_of_a_round_that_fails_are_not_asked_for_again(tmp_path: Path) -> None:
    """Cloning: the environment fails in round 3, after the expert has acted in its states."""
    made, expert, file = 0, Questioned(), tmp_path / "run.pt"

    def make() -> PointMass:
        nonlocal made
        made += 1
        return PointMass(fail_at=50 if made == 3 else None)

    options: dict[str, Any] = {"inner": STEPS, "behaviour": "cloning", "held_out": 0}
    with pytest.raises(im.EnvironmentFailed):
        run(make, expert, checkpoint=file, **options)
    result = run(make, expert, checkpoint=file, **options)
    assert len(set(expert.states)) == len(expert.states)
    # the one state whose copy failed was asked about as well, for its action
    assert sum(result.questions.values()) == len(expert.states) == 6 * 60


def test_experts_and_behaviours_may_change_their_states_in_place() -> None:
    def spoiling(states: Array) -> Array:
        actions = spring(states)
        states *= 0.0
        return actions

    for behaviour in ("online", "cloning", "dagger"):
        options: dict[str, Any] = {"inner": STEPS, "behaviour": behaviour}
        same(run(expert=spoiling, **options), run(**options))
    gatherer = im.make_gatherer(PointMass, copies=2, burn_in=0)
    batch = gatherer.gather(20, im.noisy(spoiling), spoiling)
    np.testing.assert_array_equal(batch.labels, spring(batch.states))


def test_an_expert_may_answer_into_the_same_array_each_time() -> None:
    answers: Array = np.zeros((1000, 1))

    def reusing(states: Array) -> Array:
        answers[: len(states)] = spring(states)
        return answers[: len(states)]

    for behaviour in ("online", "cloning", "dagger"):
        options: dict[str, Any] = {"inner": STEPS, "behaviour": behaviour}
        same(run(expert=reusing, **options), run(**options))


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (0.5, r"shape \(\) and type float64; its observation space says \(2,\)"),
        (np.array([1.0 + 2.0j, 0.0]), "type complex128"),
        (np.zeros(3), r"shape \(3,\)"),
        (np.array(["a", "b"]), "type <U1"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_observations_must_be_what_their_space_promises(
    shown: Any, message: str, late: bool
) -> None:
    class Odd(PointMass):
        def reset(self, **options: Any) -> Any:
            observation, info = super().reset(**options)
            return (observation if late else shown), info

        def step(self, action: Array) -> Any:
            _, *rest = super().step(action)
            return shown, *rest

    with pytest.raises(im.EnvironmentFailed, match=message):
        run(Odd, inner=STEPS)


def test_the_same_state_twice_is_one_question() -> None:
    expert = Questioned()
    teacher = im.Teacher(expert, im.Environment(PointMass))
    states: Array = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    np.testing.assert_array_equal(teacher(states), spring(states))
    assert teacher.questions == 2
    answers = teacher(states[::-1].copy())
    answers *= 0.0  # the asker's own copy
    np.testing.assert_array_equal(teacher(states), spring(states))
    assert teacher.questions == 2
    teacher.forget()
    teacher(states[:1])
    assert len(expert.states) == teacher.questions == 3
