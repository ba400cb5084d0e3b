"""Every example of docs/imitation.md runs as it is written, in order, with shorter trainings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from torch import nn

import targetopt as to
from targetopt.imitation import training

PAGE = (Path(__file__).parents[1] / "docs" / "imitation.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
# a single copy has nobody to be apart from, and so no burn-in
SHORT = {"states_per_round": 40, "copies": 1, "evaluation_episodes": 1, "progress": False}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """In a folder of its own, `train` takes two rounds of 40 states and two updates; what it was told is kept."""
    told: list[dict[str, Any]] = []
    real = training.train

    def short(*arguments: Any, **options: Any) -> Any:
        told.append(options)
        fewer = {**options, **SHORT, "rounds": min(options.get("rounds", 2), 2)}
        if options.get("held_out", 1):
            fewer["held_out"] = 20
        if options.get("learner") != "linear":
            fewer.setdefault("data", to.imitation.Replay("all", batch=250, updates=2))
        return real(*arguments, **fewer)

    monkeypatch.setattr(to.imitation, "train", short)
    monkeypatch.chdir(tmp_path)
    return told


def module() -> nn.Module:
    """The network of the page, as its reader would build it again."""
    (line,) = (line for line in PAGE.splitlines() if line.startswith("module = "))
    return eval(line.removeprefix("module = "), {"nn": nn})


def models() -> None:
    """The files of a model that the page loads, with a model that has learned nothing."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    environments = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Ant-v5")]))
    SAC("MlpPolicy", environments, buffer_size=10, device="cpu").save("ant.zip")
    environments.save("statistics.pkl")


def test_the_page_runs(trained: list[dict[str, Any]]) -> None:
    models()
    names: dict[str, Any] = {"states": np.zeros((5, 11)), "build_the_same_module": module}
    for block in BLOCKS:
        shorter = block.replace("range(1, 51)", "range(1, 3)").replace("gather(1000,", "gather(40,")
        exec(compile(shorter, "docs/imitation.md", "exec"), names)
    assert len(trained) == sum(block.count("imitation.train(") for block in BLOCKS)
    for file in ("hopper.safetensors", "own.safetensors", "ant-sac.safetensors", "walker.pt"):
        assert Path(file).is_file(), file
    assert list(Path("questions").glob("questions-*.jsonl"))
    assert list(Path("questions/frames").glob("*.png"))
