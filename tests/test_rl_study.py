"""The study of reinforcement learning: its runner, and its verdicts recomputed from the published runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from targetopt.lab.studies.rl.__main__ import main
from targetopt.lab.studies.rl.arms import SCALES, Arm, Scale, named
from targetopt.lab.studies.rl.page import page
from targetopt.lab.studies.rl.runs import run
from targetopt.lab.studies.rl.sb3 import ZOO
from targetopt.lab.studies.rl.verdicts import Run, judged

SMALL = {"batch": 64, "copies": 4}
ARMS = (
    Arm("ppo", "agreement", {"preset": "ppo", **SMALL}),
    Arm("linear-held", "surrogate", {"preset": "sso", **SMALL}),
)


def scale(arms: tuple[Arm, ...], steps: int, seeds: int) -> Scale:
    return Scale({"CartPole-v1": steps}, {"CartPole-v1": seeds}, arms)


def test_seeds_side_by_side_are_the_single_runs_and_what_is_there_is_kept(tmp_path: Path) -> None:
    alone = run(ARMS[0], "CartPole-v1", 1, 192)
    kept = tmp_path / "ppo_CartPole-v1_0.json"
    kept.write_text("{}")
    assert main(tmp_path, scale(ARMS, 192, 3)) == {}
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
        failed = main(tmp_path, scale((hopeless, ARMS[0]), 64 * 21, 2))
    assert list(failed) == ["far in CartPole-v1, seed 0", "far in CartPole-v1, seed 1"]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "ppo_CartPole-v1_0.json",
        "ppo_CartPole-v1_1.json",
    ]


def test_sb3_is_run_as_it_comes_stopped_at_a_kl_and_as_the_zoo_has_it() -> None:
    pytest.importorskip("stable_baselines3")
    found = {name: run(named(name), "CartPole-v1", 0, 512) for name in ("ppo-kl", "ppo-zoo")}
    assert all(each["episodes"] > 10 for each in found.values())
    assert found["ppo-kl"]["final_return"] != found["ppo-zoo"]["final_return"]
    for scale in SCALES.values():
        assert set(scale.lengths) == set(scale.seeds) <= set(ZOO)
        assert all(steps % 2048 == 0 for steps in scale.lengths.values())


def test_verdicts_follow_the_registered_rule() -> None:
    def runs(arm: str, values: list[float]) -> list[Run]:
        more = {"largest_kl": 0.014, "mean_kl": 0.01, "refused": 1}
        return [
            {"arm": arm, "env": "CartPole-v1", "seed": i, "final_return": v, **more}
            for i, v in enumerate(values)
        ]

    low, high = [1.0, 2.0, 3.0, 2.0], [11.0, 12.0, 13.0, 12.0]
    found = judged(
        runs("ppo", low)
        + runs("sb3-ppo", high)
        + runs("linear-held", high)
        + runs("ratio-held", low)
        + runs("log-ratio-held", high),
        scale((), 0, 4),
    )
    assert [(v["question"], v["arms"][-1], v["verdict"]) for v in found] == [
        ("agreement", "sb3-ppo", "does not hold"),
        ("surrogate", "ratio-held", "better"),
        ("surrogate", "log-ratio-held", "not shown"),
        ("η", "linear-held", "holds"),
        ("η", "ratio-held", "holds"),
        ("η", "log-ratio-held", "holds"),
    ]
    assert found[1]["difference"]["mean"] == 10.0
    assert found[3]["refused"] == 4
    over = [{**each, "largest_kl": 0.0151} for each in runs("linear-held", low)]
    assert judged(over, scale((), 0, 4))[-1]["verdict"] == "does not hold"
    assert judged(over, scale((), 0, 5))[-1]["verdict"] == "not finished"


PUBLISHED = Path(__file__).parents[1] / "results" / "rl"


def test_the_published_verdicts_are_those_of_the_published_runs(tmp_path: Path) -> None:
    runs = json.loads((PUBLISHED / "runs.json").read_text("utf-8"))["runs"]
    said = json.loads((PUBLISHED / "verdicts.json").read_text("utf-8"))
    assert judged(runs, SCALES["first"]) == said
    assert page(runs, said) == (PUBLISHED / "README.md").read_text("utf-8")
    for verdict in said:  # once more, without our statistics
        if "difference" not in verdict or verdict["verdict"] == "not finished":
            continue
        by_arm = [
            np.array(
                [r["final_return"] for r in runs if (r["arm"], r["env"]) == (arm, verdict["env"])]
            )
            for arm in verdict["arms"]
        ]
        assert verdict["difference"]["mean"] == pytest.approx(by_arm[0].mean() - by_arm[1].mean())
        rng = np.random.default_rng(5)
        drawn = [each[rng.integers(len(each), size=(20_000, len(each)))].mean(1) for each in by_arm]
        low, high = np.quantile(drawn[0] - drawn[1], [0.025, 0.975])
        spread = max(high - low, 1e-9)
        assert abs(low - verdict["difference"]["low"]) < 0.05 * spread
        assert abs(high - verdict["difference"]["high"]) < 0.05 * spread
