"""Experts are trained by the real algorithms; a training killed at any moment goes on bit by bit."""

from __future__ import annotations

import copy
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer
from typer.testing import CliRunner

from expert_training import RECIPES, small_training
from forked import forked
from targetopt.imitation import load_expert
from targetopt.imitation.experts import card, replay, snapshot
from targetopt.imitation.experts.measure import REPORT
from targetopt.imitation.experts.ppo import PPOLearner
from targetopt.imitation.experts.recipes import PPO
from targetopt.imitation.experts.training import Training, train_expert
from targetopt.lab.cli.main import make
from targetopt.types import BadArgument, Diverged


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hundred episodes of a model card take longer than these trainings; one test has them all."""
    monkeypatch.setattr(f"{Training.__module__}.REPORT", replace(REPORT, count=5))


def contents(directory: Path) -> dict[str, bytes]:
    """Every policy on the way, the expert and its card."""
    files = [*directory.glob("policies/*"), *directory.glob("Hopper-v5*")]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize(
    ("algorithm", "planned"), [("ppo", 600), pytest.param("sac", 550, marks=pytest.mark.slow)]
)
def test_kill_9_costs_nothing_but_time(algorithm: str, planned: int, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expert = small_training(algorithm, whole)

    # dead after the checkpoint at 400; SAC, whose planned end decides nothing, is prolonged as well
    if algorithm == "ppo":
        dying = partial(small_training, algorithm, broken, steps=planned, kill_at=500)
        forked(dying, code=-signal.SIGKILL)
    else:  # jax cannot go on in a fork
        script = Path(__file__).with_name("expert_training.py")
        command = [sys.executable, script, algorithm, broken, str(planned), "500"]
        assert subprocess.run(command, timeout=800).returncode == -signal.SIGKILL
    assert not list(broken.glob("*.safetensors"))
    assert {path.stem for path in broken.glob("policies/*")} == {"000000200", "000000400"}

    small_training(algorithm, broken)
    assert len(contents(whole)) >= 5  # three policies, the expert, the card
    assert contents(broken) == contents(whole)

    assert f"recipe={RECIPES[algorithm]!r}" in expert.card["command"]  # no flag says these settings
    steps = expert.card["steps"]
    chosen = load_expert(whole / "policies" / f"{steps:09d}.safetensors")
    states = np.random.default_rng(0).standard_normal((7, 11))
    np.testing.assert_array_equal(expert(states), chosen(states))


def test_ppo_is_not_prolonged(tmp_path: Path) -> None:
    # its learning rate falls to zero at the last step, so another end is another training
    small_training("ppo", tmp_path, steps=128)
    with pytest.raises(BadArgument, match="steps is 128 there and 256 here"):
        small_training("ppo", tmp_path, steps=256)


def test_a_training_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    threads = torch.get_num_threads()
    small_training("ppo", tmp_path, steps=128)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert after == before
    assert torch.get_num_threads() == threads


def test_a_directory_belongs_to_one_training(tmp_path: Path) -> None:
    small_training("ppo", tmp_path, steps=128)
    with pytest.raises(BadArgument, match="seed is 0 there and 1 here; hidden is"):
        train_expert(
            "Hopper-v5", algorithm="ppo", seed=1, steps=128, out=tmp_path, evaluate_every=200
        )
    with FileLock(tmp_path / "lock"), pytest.raises(BadArgument, match="another process"):
        small_training("ppo", tmp_path, steps=128)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    small_training("ppo", tmp_path, steps=128)
    path = tmp_path / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(replay.BrokenCheckpoint, match=r"checkpoint\.npz cannot be read"):
        small_training("ppo", tmp_path, steps=128)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"environment": "CartPole-v1"}, "Discrete"),
        ({"environment": "Hoper-v5"}, "Hoper"),
        ({"environment": "Hopper-v5", "algorithm": "td3"}, "'sac' or 'ppo'"),
        ({"environment": "Hopper-v5", "algorithm": "sac", "recipe": PPO()}, "one of 'ppo'"),
        ({"environment": "Hopper-v5", "steps": 0}, "steps"),
        ({"environment": "Hopper-v5", "evaluate_every": 0}, "evaluate_every"),
    ],
)
def test_bad_arguments_leave_nothing_behind(arguments: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=message):
        train_expert(**arguments, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_policy_that_is_not_finite_is_no_candidate(tmp_path: Path) -> None:
    learner = PPOLearner("Hopper-v5", RECIPES["ppo"], seed=0)
    with torch.no_grad():
        learner.model.policy.action_net.bias[1] = torch.nan
    training = Training(tmp_path, "Hopper-v5", RECIPES["ppo"], 0, 100, 100, lambda *_: None)
    with pytest.raises(Diverged, match="no longer finite at step 0"):
        training.evaluate(learner)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Hopper-v5", "Ant-v5", "Pendulum-v1"])
def test_an_environment_goes_on_in_mid_episode_bit_by_bit(name: str) -> None:
    left, right = gymnasium.make(name), gymnasium.make(name)
    actions = np.random.default_rng(0).uniform(-1, 1, (1100, *left.action_space.shape))

    def play(env: gymnasium.Env, some: np.ndarray) -> list:
        seen = []
        for action in some.astype(np.float32):
            state, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                state, _ = env.reset()  # the generator goes on, too
            seen.append((state.tobytes(), float(reward), terminated, truncated))
        return seen

    left.reset(seed=3)
    play(left, actions[:37])
    state = snapshot.take_environment(left)
    assert state is not None
    after = play(left, actions[37:])
    assert any(terminated or truncated for *_, terminated, truncated in after)
    right.reset(seed=8)
    play(right, actions[:5])
    snapshot.put_environment(right, state)
    assert play(right, actions[37:]) == after


def buffer(size: int) -> ReplayBuffer:
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    return ReplayBuffer(size, box, gymnasium.spaces.Box(-1, 1, (1,)), device="cpu")


def add(ring: ReplayBuffer, first: int, end: int) -> None:
    for i in range(first, end):
        info = {"TimeLimit.truncated": i % 5 == 0}
        row = np.full((1, 2), float(i))
        ring.add(row, row + 0.5, row[:, :1], np.array([-i]), np.array([i % 3 == 0]), [info])


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 40), lengths=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_a_replay_buffer_comes_back_whole(size: int, lengths: list[int]) -> None:
    ring, end = buffer(size), 0
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for length in lengths:
            add(ring, end, end + length)
            replay.keep(directory, ring, end, end + length)
            end += length
            replay.forget(directory, ring, end)
        beyond = copy.deepcopy(ring)
        add(beyond, end, end + 7)
        replay.keep(directory, beyond, end, end + 7)  # and killed before its checkpoint was whole
        again = buffer(size)
        replay.fill(directory, again, end)
        for part in (
            "observations",
            "next_observations",
            "actions",
            "rewards",
            "dones",
            "timeouts",
        ):
            np.testing.assert_array_equal(getattr(again, part), getattr(ring, part))
        assert (again.pos, again.full) == (ring.pos, ring.full)
        kept = sum(len(np.load(path)["rewards"]) for path in directory.glob("*.npz"))
        assert kept <= size + 2 * max(*lengths, 7) + 7


def test_a_replay_buffer_that_lacks_a_piece_says_which(tmp_path: Path) -> None:
    ring = buffer(20)
    for first in (0, 4, 8):
        add(ring, first, first + 4)
        replay.keep(tmp_path, ring, first, first + 4)
    (tmp_path / "000000004-000000008.npz").unlink()
    with pytest.raises(replay.BrokenCheckpoint, match=r"\*-000000008\.npz is missing"):
        replay.fill(tmp_path, buffer(20), 12)


def test_the_command_trains_shows_progress_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{Training.__module__}.REPORT", REPORT)
    words = ["expert", "train", "Hopper-v5", "--algorithm", "ppo", "--steps", "4096"]
    words += [
        "--out",
        str(tmp_path),
        "--evaluate-every",
        "4096",
        "--note",
        "Only seed 0 was tried.",
    ]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(make(), words)
    assert done.exit_code == 0, done.output
    assert "Hopper-v5 ppo: training" in done.output
    assert "(100 episodes)" in done.output or "100 episodes" in done.output
    expert = load_expert(tmp_path / "Hopper-v5-ppo.safetensors")
    assert expert.card["note"] == "Only seed 0 was tried."
    assert expert.card["settings"]["environments"] == PPO().environments
    assert (tmp_path / "Hopper-v5-ppo.md").read_text() == card.text(expert)
    before = contents(tmp_path)
    assert CliRunner().invoke(make(), words).exit_code == 0  # nothing is left to learn
    assert contents(tmp_path) == before
    other = CliRunner().invoke(make(), [*words, "--seed", "1"])
    assert other.exit_code == 1
    assert "holds another training: seed is 0 there and 1 here" in other.output
