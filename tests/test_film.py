"""Films: the pictures are of the episodes that were played, and small enough to be shown."""

from __future__ import annotations

import itertools
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from targetopt.imitation import GaussianPolicy, film, load_expert
from targetopt.imitation.measuring.film import Film, NoPicture
from targetopt.lab.cli.main import make
from targetopt.types import BadArgument

SIZE = 96


@pytest.fixture(scope="module")
def learner() -> GaussianPolicy:
    """One that has learned nothing, and falls."""
    return GaussianPolicy(11, 3, low=-1.0, high=1.0, seed=1, environment="Hopper-v5")


@pytest.fixture(scope="module")
def gif(learner: GaussianPolicy, tmp_path_factory: pytest.TempPathFactory) -> Film:
    out = tmp_path_factory.mktemp("film") / "rollout.gif"
    shown = {"expert": load_expert("Hopper-v5"), "learner": learner}
    try:
        return film("Hopper-v5", shown, out, seconds=2.0, fps=20, size=SIZE, seed=4)
    except NoPicture as error:
        pytest.skip(str(error))


def returns(policy, steps: int, seed: int) -> tuple[float, int]:
    env = gymnasium.make("Hopper-v5")
    state, _ = env.reset(seed=seed)
    total, taken, fell = 0.0, 0, False
    while taken < steps and not fell:
        state, reward, fell, _, _ = env.step(np.float32(policy(state[None])[0]))
        total, taken = total + reward, taken + 1
    return total, taken


def test_a_film_shows_the_episodes_of_its_seed(gif: Film, learner: GaussianPolicy) -> None:
    for name, policy in (("expert", load_expert("Hopper-v5")), ("learner", learner.act)):
        total, taken = returns(policy, steps=250, seed=4)  # 2 s of 125 steps
        assert gif.lengths[name] == taken
        assert gif.returns[name] == pytest.approx(total, abs=1e-9)
    assert gif.lengths["expert"] == 250 > gif.lengths["learner"]


def test_a_gif_runs_in_real_time_and_is_small(gif: Film) -> None:
    with Image.open(gif.path) as image:
        assert image.format == "GIF"
        assert image.n_frames == gif.frames == 41  # the start, and 20 pictures a second
        assert image.info["loop"] == 0
        assert image.info["duration"] == 50
        assert image.width == 2 * SIZE + 4
        assert image.height > SIZE  # a line with names and returns
        frames = []
        for number in range(image.n_frames):
            image.seek(number)
            frames.append(np.asarray(image.convert("RGB"), dtype=float))
    left = [frame[:SIZE, :SIZE] for frame in frames]
    right = [frame[:SIZE, SIZE + 4 :] for frame in frames]
    moves = [bool(np.any(a != b)) for a, b in itertools.pairwise(left)]
    assert all(moves[5:])  # the expert, once it has got going
    fallen = gif.lengths["learner"] * 20 // 125 + 2
    assert all(np.array_equal(right[fallen], frame) for frame in right[fallen:])  # the learner lies
    assert right[-1].mean() < 0.7 * right[0].mean()  # in the dark
    told = [frame[SIZE:, SIZE // 2 : SIZE] for frame in frames]
    assert np.any(told[-1] != told[0])  # the return so far
    assert gif.path.stat().st_size < 41 * 15_000


def test_mp4(learner: GaussianPolicy, gif: Film, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    out = tmp_path / "rollout.mp4"
    made = film("Hopper-v5", {"learner": learner}, out, seconds=0.4, fps=25, size=SIZE)
    frames, seconds = ffmpeg.count_frames_and_secs(out)
    assert frames == made.frames
    assert seconds == pytest.approx(frames / 25, abs=0.01)
    assert [file.name for file in tmp_path.iterdir()] == ["rollout.mp4"]


def test_bad_arguments(learner: GaussianPolicy, tmp_path: Path) -> None:
    shown = {"learner": learner}
    with pytest.raises(BadArgument, match=r"must end in \.gif or \.mp4"):
        film("Hopper-v5", shown, tmp_path / "film.avi")
    with pytest.raises(BadArgument, match="at least one policy"):
        film("Hopper-v5", {}, tmp_path / "film.gif")
    with pytest.raises(BadArgument, match="seconds=0"):
        film("Hopper-v5", shown, tmp_path / "film.gif", seconds=0)
    with pytest.raises(BadArgument, match="Nopper"):
        film("Nopper-v5", shown, tmp_path / "film.gif")
    assert not list(tmp_path.iterdir())


def test_without_opengl_it_says_how_to_get_some(
    learner: GaussianPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "off")
    with pytest.raises(
        NoPicture, match=r"cannot be drawn.*MUJOCO_GL is off.*libegl1.*MUJOCO_GL=egl"
    ):
        film("Hopper-v5", {"learner": learner}, tmp_path / "film.gif")
    assert not list(tmp_path.iterdir())


def test_the_command(learner: GaussianPolicy, gif: Film, tmp_path: Path) -> None:
    policy = learner.save(tmp_path / "learner.safetensors")
    out = tmp_path / "film.gif"
    words = ["film", "Hopper-v5", "--policy", str(policy), "--out", str(out)]
    words += ["--seconds", "0.5", "--size", str(SIZE), "--fps", "10"]
    done = CliRunner().invoke(make(), words)
    assert done.exit_code == 0, done.output
    assert "expert: return" in done.output
    assert "learner: return" in done.output
    with Image.open(out) as image:
        assert image.n_frames == 6
    wrong = CliRunner().invoke(make(), ["film", "Walker2d-v5", *words[2:]])
    assert wrong.exit_code == 1
    assert wrong.output.startswith("Error: ")


def test_time_runs_as_in_the_simulation(tmp_path: Path) -> None:
    def still(states: np.ndarray) -> np.ndarray:
        return np.zeros((len(states), 6))

    # HalfCheetah makes 20 steps a second: 25 pictures of them would run too fast
    try:
        made = film("HalfCheetah-v5", {"still": still}, tmp_path / "c.gif", seconds=1.0, size=SIZE)
    except NoPicture as error:
        pytest.skip(str(error))
    with Image.open(made.path) as image:
        shown = [image.info["duration"] for frame in range(image.n_frames) if not image.seek(frame)]
    assert made.frames == 21  # the first state, and one after each of 20 steps
    assert sum(shown) == 50 * 21


def test_policies_of_one_file_name_are_both_shown(learner: GaussianPolicy, tmp_path: Path) -> None:
    files = [tmp_path / run / "policy.safetensors" for run in ("a", "b")]
    for file in files:
        file.parent.mkdir()
        learner.save(file)
    arguments = ["film", "Hopper-v5", "--out", str(tmp_path / "two.gif"), "--size", "64"]
    for file in files:
        arguments += ["--policy", str(file)]
    done = CliRunner().invoke(make(), [*arguments, "--seconds", "0.2"])
    if "cannot be drawn" in done.output:
        pytest.skip(done.output)
    assert done.exit_code == 0, done.output
    assert done.output.count("return") == 3
    twice = CliRunner().invoke(make(), [*arguments, "--policy", str(files[1])])
    assert twice.exit_code == 1
    assert "given twice" in twice.output
