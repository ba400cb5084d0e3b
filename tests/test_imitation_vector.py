"""Vector environments of Gymnasium give what a loop over single ones gives, and go on bitwise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import targetopt as to
from imitation_parts import PointMass, spring
from imitation_worlds import Walk, several
from targetopt import BadArgument
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array
from targetopt.lab.run import origin
from test_imitation_training import same

OURS = AutoresetMode.DISABLED


def vector(make: Any = PointMass, count: int = 4, kind: Any = SyncVectorEnv) -> Any:
    return kind([make] * count, autoreset_mode=OURS)


def wander(states: Array, rng: np.random.Generator) -> Array:
    return rng.uniform(-1, 1, (len(states), 1))


# Not by a fork of this one, which jax warns of where another test of the process has imported it.
IN_PROCESSES = partial(AsyncVectorEnv, context="forkserver")


@pytest.mark.parametrize("kind", [SyncVectorEnv, IN_PROCESSES], ids=["here", "processes"])
def test_rounds_are_those_of_a_loop_over_single_environments(kind: Any) -> None:
    if kind is IN_PROCESSES:
        origin.started()  # the process that has imported torch for the laboratory's workers has it for these
    ours = im.make_gatherer(partial(vector, kind=kind, count=4), seed=3, burn_in=0)
    loop = im.make_gatherer(PointMass, copies=4, seed=3, burn_in=0)
    for _ in range(4):  # episodes end after 30 steps: in the middle of rounds, and not all at once
        one, other = (each.gather(88, wander, spring) for each in (ours, loop))
        for name, value in vars(other).items():
            np.testing.assert_array_equal(getattr(one, name), value)
    ours.close()


def test_staggered_copies_begin_apart_and_end_their_burn_in_together() -> None:
    gatherer = im.make_gatherer(vector, seed=1, burn_in=20)
    gatherer.stagger(wander)
    assert [len(episode) for episode in gatherer.copies._actions] == [0, 5, 10, 15]
    assert gatherer.burn_in_steps == 30
    batch = gatherer.gather(8, wander, spring)
    assert len(batch.states) == 8
    gatherer.close()


def test_copies_that_have_played_are_staggered_from_new_episodes() -> None:
    """But for the one that goes first: those that wait are stepped along by an action of nobody's choice."""
    gatherer = im.make_gatherer(vector, seed=1, burn_in=20)
    gatherer.gather(40, wander, spring, whole=True)  # all four, ten steps each
    assert [len(episode) for episode in gatherer.copies._actions] == [10, 10, 10, 10]
    gatherer.stagger(wander)
    gatherer.gather(4, wander, spring)
    assert [len(episode) for episode in gatherer.copies._actions] == [1, 6, 11, 26]
    state = gatherer.state_dict()
    after = gatherer.gather(40, wander, spring)
    again = im.make_gatherer(vector, seed=9, burn_in=0)
    again.load_state_dict(state)
    np.testing.assert_array_equal(again.gather(40, wander, spring).states, after.states)
    gatherer.close()


def trained(env: Any, expert: Any = spring, **options: Any) -> im.Result:
    settings: dict[str, Any] = {
        "rounds": 4, "states_per_round": 60, "evaluate_every": 2, "evaluation_episodes": 3, "progress": False,
        "behaviour": "online", "data": "round",
    }  # fmt: skip
    return im.train(env, expert, **(settings | options))


def test_a_run_goes_on_bitwise(tmp_path: Path) -> None:
    options: dict[str, Any] = {"learner": "linear", "inner": to.Exact()}
    whole = trained(vector, **options)
    path = tmp_path / "run.pt"
    trained(vector, rounds=2, checkpoint=path, **options)
    same(whole, trained(vector, checkpoint=path, **options))


def test_one_instance_serves_rounds_and_evaluations_and_goes_on_bitwise(tmp_path: Path) -> None:
    options: dict[str, Any] = {"learner": "linear", "inner": to.Exact()}
    whole = trained(vector(), **options)
    same(whole, trained(vector, **options))  # which has an instance for each
    trained(vector(), rounds=2, checkpoint=tmp_path / "run.pt", **options)
    same(whole, trained(vector(), checkpoint=tmp_path / "run.pt", **options))


@pytest.mark.parametrize("shows", ["dict", "picture"])
def test_dicts_and_pictures_and_choices(shows: str) -> None:
    env = partial(vector, partial(Walk, shows, "several"))
    learner = "cnn" if shows == "picture" else "mlp"
    result = trained(env, several, learner=learner, rounds=1, evaluate_every=0)
    assert result.history[-1].interactions == 60
    assert np.isfinite(result.history[-1].held_out_loss)


def test_make_vec_has_its_name_and_its_limit() -> None:
    def cartpoles() -> Any:
        return gymnasium.make_vec(
            "CartPole-v1",
            num_envs=3,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": OURS},
        )

    environment = im.Environment(cartpoles)
    assert (environment.name, environment.limit, environment.is_vector) == (
        "CartPole-v1",
        500,
        True,
    )
    controller = lambda s: (s @ np.array([0.1, 0.5, 5.0, 2.0]) > 0).astype(int)  # noqa: E731
    found = im.evaluate(controller, cartpoles, episodes=4)
    plain = im.evaluate(controller, "CartPole-v1", episodes=4)
    np.testing.assert_array_equal(found.returns, plain.returns)


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(
        BadArgument, match=r"begins new episodes by itself.*AutoresetMode\.DISABLED"
    ):
        im.Environment(lambda: SyncVectorEnv([PointMass] * 2))
    with pytest.raises(BadArgument, match=r"begins new episodes by itself"):
        im.Environment(
            gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
        )
    with pytest.raises(BadArgument, match=r"multiple of 4, states_per_round=64"):
        trained(vector, states_per_round=61)
    with pytest.raises(BadArgument, match=r"copies=3.*vector environment of 4"):
        trained(vector, copies=3)
    with pytest.raises(BadArgument, match=r"cannot be divided among the workers"):
        trained(vector, gather=im.OverRay(workers=2))


def test_a_failing_step_names_its_cause_and_the_run_goes_on() -> None:
    made: list[Any] = []

    def failing() -> Any:
        made.append(PointMass(fail_at=25 if len(made) == 5 else None))
        return made[-1]

    gatherer = im.make_gatherer(partial(vector, failing), burn_in=0)
    with pytest.raises(im.EnvironmentFailed, match="licence expired"):
        gatherer.gather(400, wander, spring)
    assert len(gatherer.gather(400, wander, spring).states) == 400
    gatherer.close()


class Recurrent(torch.nn.Module):
    """A network of sequences, the oldest observation first."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.memory = torch.nn.GRU(2, 8, batch_first=True)
            self.last = torch.nn.Linear(8, 1)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.memory(sequences)[0][:, -1])
        return out


def test_sequences_are_stacked_observations_and_go_on_bitwise(tmp_path: Path) -> None:
    """By a recurrent network of the user's, and in one row by default."""
    stacked = lambda: gymnasium.wrappers.FrameStackObservation(PointMass(), 3)  # noqa: E731
    latest = lambda sequences: spring(sequences[:, -1])  # noqa: E731
    data = im.Replay("all", updates=20, average=True)
    options: dict[str, Any] = {"copies": 3, "data": data, "behaviour": None}
    whole = trained(stacked, latest, learner=Recurrent(), **options)
    path = tmp_path / "run.pt"
    trained(stacked, latest, learner=Recurrent(), rounds=2, checkpoint=path, **options)
    same(whole, trained(stacked, latest, learner=Recurrent(), checkpoint=path, **options))
    assert whole.history[-1].held_out_loss < 0.5 * whole.history[0].loss
    plain = trained(stacked, latest, rounds=1, evaluate_every=0, **options)
    assert plain.policy.description["mean"] == "mlp"
    assert plain.policy.observation_size == 6
