"""Every kind of action and observation: choices, several choices, pictures, dicts, experts with distributions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from imitation_parts import PointMass, spring
from imitation_worlds import Walk, odds, one, points, several, several_odds
from targetopt import BadAnswer, BadArgument
from targetopt import imitation as im
from targetopt.distributions import CategoricalRows, ForwardKL, GaussianRows, Likelihood, ReverseKL

INNER = to.Torch(lambda p: torch.optim.Adam(p, lr=1e-2), max_steps=15)


def train(shows: str, moves: str, expert: Any, **options: Any) -> im.Result:
    settings: dict[str, Any] = {
        "rounds": 6,
        "states_per_round": 60,
        "copies": 3,
        "evaluate_every": 0,
        "evaluation_episodes": 2,
        "inner": INNER,
        "lr": 1.0,
        "rule": to.GradientStep(),
        "data": "all",
        "behaviour": "online",
        "progress": False,
    }
    return im.train(partial(Walk, shows, moves), expert, **(settings | options))


KINDS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "one choice": ("numbers", "one", one, {}),
    "several choices": ("numbers", "several", several, {}),
    "odds": ("numbers", "one", odds, {"loss": "kl"}),
    "odds, reverse": ("numbers", "one", odds, {"loss": "reverse-kl"}),
    "odds of several": ("numbers", "several", several_odds, {"loss": "reverse-kl"}),
    "dict": ("dict", "several", several, {}),
    "picture": ("picture", "several", several, {}),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


class OfParts(nn.Module):
    """A module of the user's own, which takes what the environment shows."""

    def __init__(self, outputs: int = 6) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, outputs))

    def forward(self, shown: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.body(torch.cat([shown["point"], shown["far"][:, 0]], dim=1))


def network(kind: tuple[str, str, Any, dict[str, Any]]) -> Any:
    """A small one: a module of the user's for the dict, the library's own otherwise."""
    if kind[0] == "picture":
        return "cnn"
    choices = (3, 3) if kind[1] == "several" else 4
    return OfParts() if kind[0] == "dict" else im.ChoicePolicy(2, choices, hidden=(32,))


def options_of(kind: tuple[str, str, Any, dict[str, Any]]) -> dict[str, Any]:
    return {**kind[3], "learner": network(kind)}


@each_kind
def test_every_kind_learns(kind: Any) -> None:
    """The loss in the expert's states falls to less than half of what it was at first."""
    step = 1e-3 if kind[0] == "picture" else 1e-2
    inner = to.Torch(lambda p: torch.optim.Adam(p, lr=step), max_steps=60)
    rounds = 5 if kind[0] == "picture" else 8  # convolutions take longer, and learn faster
    result = train(*kind[:3], rounds=rounds, inner=inner, **options_of(kind))
    assert (
        result.history[-1].held_out_loss < 0.5 * result.history[0].loss
    )  # before anything was learned
    assert result.questions["labels"] <= 480  # the same state twice in a round is one question


@each_kind
def test_every_kind_goes_on_bitwise(kind: Any, tmp_path: Path) -> None:
    options = {"evaluate_every": 2}
    whole = train(*kind[:3], rounds=3, **options_of(kind), **options)
    path = tmp_path / "run.pt"
    train(*kind[:3], rounds=2, checkpoint=path, **options_of(kind), **options)
    after = train(*kind[:3], rounds=3, checkpoint=path, **options_of(kind), **options)
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, after.policy.state_dict()[name]), name
    fresh = network(kind)
    own = fresh if isinstance(fresh, nn.Module) else None
    loaded = im.Result.load(path, learner=own)
    assert loaded.policy.objective == after.policy.objective
    for name, value in loaded.policy.state_dict().items():
        assert torch.equal(value, after.policy.state_dict()[name]), name


@each_kind
def test_every_kind_comes_back_from_its_file(kind: Any, tmp_path: Path) -> None:
    result = train(*kind[:3], rounds=1, **options_of(kind))
    path = result.policy.save(tmp_path / "policy.safetensors")
    own = OfParts() if kind[0] == "dict" else None
    again = im.load_policy(path, learner=own)
    environment = im.Environment(partial(Walk, *kind[:2]))
    layout = environment.observations
    rows = np.array([layout.row(environment.prototype.reset(seed=s)[0]) for s in range(5)])
    np.testing.assert_array_equal(again.act(rows), result.policy.act(rows))
    drawn = again.act(np.repeat(rows, 50, axis=0), np.random.default_rng(0))
    assert (drawn >= 0).all()
    assert (drawn < [3, 3] if kind[1] == "several" else drawn < 4).all()
    assert type(again) is type(result.policy) is im.ChoicePolicy


def test_cartpole_with_a_controller_is_balanced() -> None:
    """Discrete actions in an environment of Gymnasium's, from nothing to 500 steps."""

    def controller(states: np.ndarray) -> np.ndarray:
        return (states @ np.array([0.1, 0.5, 5.0, 2.0]) > 0).astype(int)

    result = im.train(
        "CartPole-v1",
        controller,
        learner="linear",
        rounds=6,
        states_per_round=150,
        evaluation_episodes=1,
        evaluate_every=6,
        data="all",
        inner=to.LBFGS(max_steps=30),
        copies=3,
        progress=False,
    )
    assert result.expert_return == 500.0
    assert result.history[-1].mean_return > 450.0


def test_drawn_choices_have_the_policys_odds() -> None:
    policy = im.ChoicePolicy(1, (2, 3), mean="linear")
    z = np.tile(np.log([0.25, 0.75, 0.2, 0.3, 0.5]) + 7.0, (20_000, 1))
    drawn = policy.draws(z, np.random.default_rng(0))
    np.testing.assert_allclose(drawn[:, 0].mean(), 0.75, atol=0.015)
    np.testing.assert_allclose(
        np.bincount(drawn[:, 1].astype(int)) / 20_000, [0.2, 0.3, 0.5], atol=0.015
    )
    np.testing.assert_array_equal(policy.draws(z[:1], np.random.default_rng(0), 0.0), [[1, 2]])
    with pytest.raises(BadArgument, match="is for continuous actions"):
        policy.draws(z[:1], np.random.default_rng(0), 0.5)


def noisy_spring(states: np.ndarray) -> GaussianRows:
    """The spring, unsure of itself when fast."""
    mean = torch.from_numpy(np.asarray(spring(states)))
    return GaussianRows(mean, torch.from_numpy(-1.0 + 0.2 * np.abs(states[:, 1:2])))


@pytest.mark.parametrize(
    ("std", "loss"),
    [(0.5, "kl"), (0.5, "mean-squared"), ("learned", "kl"), ("state", "reverse-kl")],
)
def test_gaussians_learn_the_experts_distribution(std: Any, loss: Any) -> None:
    result = im.train(
        PointMass,
        noisy_spring,
        loss=loss,
        behaviour=im.Mixture(1.0, expert_noise="own"),
        learner=im.GaussianPolicy(2, 1, std=std, hidden=(32,)),
        rounds=15,
        states_per_round=60,
        copies=4,
        evaluate_every=0,
        evaluation_episodes=2,
        data="all",
        lr=1.0 if std == 0.5 or loss == "mean-squared" else 0.3,
        rule=to.GradientStep(),
        inner=INNER,
        progress=False,
    )
    assert result.history[-1].held_out_loss < result.history[0].held_out_loss
    policy = result.policy
    states = np.array([[0.2, 0.0], [-0.3, 0.4]])
    z = policy.numpy()(states)
    np.testing.assert_allclose(policy.acts(z), np.clip(spring(states), -1, 1), atol=0.15)
    if loss in ("kl", "reverse-kl") and std != 0.5:  # the expert's own spread is found
        np.testing.assert_allclose(
            np.exp(z[:, 1]), np.exp(-1.0 + 0.2 * np.abs(states[:, 1])), rtol=0.2
        )


def test_which_loss_is_taken() -> None:
    gaussian = im.GaussianPolicy(2, 1, std=0.5)
    means, whole = np.zeros((3, 1)), np.zeros((3, 2))
    assert isinstance(gaussian.loss(means), to.losses.GaussianKL)
    assert isinstance(gaussian.loss(whole), ForwardKL)
    gaussian.train_by("reverse-kl")
    assert isinstance(gaussian.loss(whole), ReverseKL)
    learned = im.GaussianPolicy(2, 1, std="learned")
    assert isinstance(learned.loss(means), Likelihood)
    learned.train_by("reverse-kl")
    with pytest.raises(BadArgument, match="needs an expert that answers with its own"):
        learned.loss(means)
    choices = im.ChoicePolicy(2, 4)
    choices.train_by("reverse-kl")
    with pytest.raises(BadArgument, match="needs an expert that answers with its odds"):
        choices.loss(means)
    with pytest.raises(BadArgument, match="none that ChoicePolicy can be trained by"):
        choices.train_by("mean-squared")


def test_an_expert_that_answers_for_some_states_only() -> None:
    """Unanswered states are not learned from; every question counts; where it does not answer, the learner drives."""
    asked = []

    def shy(states: np.ndarray) -> list[Any]:
        asked.append(len(states))
        return [None if abs(s[0]) > 0.3 else a for s, a in zip(states, spring(states), strict=True)]

    options: dict[str, Any] = {
        "rounds": 3,
        "states_per_round": 60,
        "copies": 3,
        "data": "round",
        "evaluate_every": 0,
        "progress": False,
    }
    for behaviour in ("online", "cloning", "dagger"):
        asked.clear()
        result = im.train(PointMass, shy, behaviour=behaviour, held_out=0, **options)
        assert sum(asked) == sum(result.questions.values())
        assert result.questions["labels"] >= 180
        assert all(0 < each.states <= 60 for each in result.history)
        assert result.history[0].states < 60  # later rounds may stay where it answers
        assert result.history[-1].interactions == 180
    with pytest.raises(BadAnswer, match="train with held_out=0"):
        im.train(PointMass, shy, **options)
    with pytest.raises(BadAnswer, match="answered none of the 60 questions"):
        im.train(PointMass, lambda states: None, held_out=0, **options)


class Changing(PointMass):
    """An environment whose observations change their kind after a while."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        if self.age > 3:
            observation = observation[:1] if self.kind == "shape" else observation.astype(str)
        return observation, *rest


@pytest.mark.parametrize(
    ("env", "expert", "error", "said"),
    [
        (
            partial(Walk, moves="one"),
            lambda s: np.full(len(s), 4),
            BadAnswer,
            r"gave \[4.0\] in row 0, which is no choice",
        ),
        (
            partial(Walk, moves="one"),
            lambda s: np.full(len(s), 0.5),
            BadAnswer,
            "choices are whole numbers",
        ),
        (
            partial(Walk, moves="one"),
            noisy_spring,
            BadAnswer,
            "GaussianRows of .* needs the logits of 4 choices",
        ),
        (Walk, odds, BadAnswer, r"CategoricalRows of .* needs the logits of 3 \+ 3 choices"),
        (
            PointMass,
            lambda s: CategoricalRows(torch.zeros(len(s), 2)),
            BadAnswer,
            "needs the mean and log std of 1",
        ),
        (
            PointMass,
            lambda s: GaussianRows(torch.zeros(len(s), 1), torch.full((len(s), 1), -torch.inf)),
            BadAnswer,
            "deviation is not positive and finite",
        ),
        (partial(Changing, "shape"), spring, im.EnvironmentFailed, r"observation of shape \(1,\)"),
        (partial(Changing, "dtype"), spring, im.EnvironmentFailed, "type <U"),
    ],
)
def test_bad_answers_and_observations_are_refused(
    env: Any, expert: Any, error: Any, said: str
) -> None:
    with pytest.raises(error, match=said):
        im.train(
            env,
            expert,
            rounds=1,
            states_per_round=60,
            copies=2,
            held_out=0,
            evaluate_every=0,
            progress=False,
        )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"std": 0.5}, "std=0.5 is for continuous actions"),
        ({"learner": im.GaussianPolicy(2, 2)}, "the actions of env='Walk' are choices"),
        ({"loss": "mean-squared"}, "none that ChoicePolicy can be trained by"),
        ({"learner": "cnn"}, "takes one picture per state"),
        ({"learner": nn.Linear(2, 5)}, r"must give one row per state, shape \(1, 6\)"),
        ({"learner": nn.Linear(2, 6).requires_grad_(False)}, "nothing to train"),
        (
            {"behaviour": im.Mixture(1.0, expert_noise="own")},
            "needs an expert that answers with distributions",
        ),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises((BadArgument, BadAnswer), match=said):
        train("numbers", "several", several, **options)


def test_an_expert_may_change_pictures_in_place() -> None:
    def careless(shown: np.ndarray) -> np.ndarray:
        moves = several(shown)
        shown[:] = 0
        return moves

    same = [train("picture", "several", e, rounds=2) for e in (several, careless)]
    assert same[0].history[-1].held_out_loss == same[1].history[-1].held_out_loss


def test_frames_are_stacked_by_gymnasiums_wrapper() -> None:
    """Four frames of a picture, as bytes; the learner is found by itself."""

    def stacked() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.FrameStackObservation(Walk("picture"), 4)

    environment = im.Environment(stacked)
    assert environment.observations.parts[0].shape == (4, 8, 8, 1)
    assert environment.observations.dtype == np.uint8
    result = im.train(
        stacked,
        lambda shown: several(shown[:, -1]),
        rounds=2,
        states_per_round=30,
        copies=2,
        evaluate_every=0,
        evaluation_episodes=2,
        data=im.Replay("all", updates=20, average=True),
        inner=INNER,
        progress=False,
    )
    assert result.policy.description["mean"] == "cnn"
    assert result.history[-1].held_out_loss < result.history[0].loss


def test_points_are_read_from_every_kind_of_observation() -> None:
    """The worlds of these tests: what is shown is where the point is."""
    for shows in ("numbers", "dict", "picture"):
        environment = im.Environment(partial(Walk, shows))
        row = environment.observations.row(environment.prototype.reset(seed=3)[0])
        shown = environment.observations.unrolled(row[None])
        np.testing.assert_array_equal(points(shown)[0], environment.prototype.unwrapped.point)
