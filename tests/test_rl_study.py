"""The study of reinforcement learning: its runner, and its verdicts recomputed from the published runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from targetopt.lab.studies.rl.__main__ import main
from targetopt.lab.studies.rl.arms import Arm
from targetopt.lab.studies.rl.runs import run

SMALL = {"batch": 64, "copies": 4}
ARMS = (
    Arm("ppo", "agreement", {"preset": "ppo", **SMALL}),
    Arm("linear-held", "surrogate", {"preset": "sso", **SMALL}),
)
LENGTHS = {"CartPole-v1": 192}


def test_seeds_side_by_side_are_the_single_runs_and_what_is_there_is_kept(tmp_path: Path) -> None:
    alone = run(ARMS[0], "CartPole-v1", 1, 192)
    kept = tmp_path / "ppo_CartPole-v1_0.json"
    kept.write_text("{}")
    assert main(tmp_path, ARMS, LENGTHS, (0, 1, 2)) == {}
    assert kept.read_text() == "{}"
    assert len(list(tmp_path.glob("*.json"))) == 6
    assert not list((tmp_path / "going").iterdir())
    found = json.loads((tmp_path / "ppo_CartPole-v1_1.json").read_text())
    assert found["side_by_side"] == 2
    assert found["provenance"]["versions"]
    times = {"cpu_seconds", "side_by_side", "provenance"}
    assert {k: v for k, v in found.items() if k not in times} == {
        k: v for k, v in alone.items() if k not in times
    }


def test_a_seed_that_cannot_be_run_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    from targetopt.rl import HeldKL, full_adam

    inner = full_adam(lr=0.3, max_steps=20, clip=1e9)
    hopeless = Arm(
        "far",
        "surrogate",
        {"preset": "sso", "step": HeldKL(1e-9, tries=1), "inner": inner, **SMALL},
    )
    with pytest.warns(UserWarning, match="refused"):
        failed = main(tmp_path, (hopeless, ARMS[0]), {"CartPole-v1": 64 * 21}, (0, 1))
    assert list(failed) == ["far in CartPole-v1, seed 0", "far in CartPole-v1, seed 1"]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "ppo_CartPole-v1_0.json",
        "ppo_CartPole-v1_1.json",
    ]
