"""The shipped experts are what their cards say, and what was promised of them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from targetopt.imitation import GaussianPolicy, evaluate, load_expert
from targetopt.imitation.expert import SHIPPED
from targetopt.imitation.experts import card
from targetopt.imitation.experts.measure import CHOOSE, REPORT, WATCH
from targetopt.imitation.experts.recipes import default_steps, recipe_for, settings
from targetopt.lab.cli.main import make

PROMISED = {"Hopper-v5": 3000.0, "Walker2d-v5": 4000.0, "HalfCheetah-v5": 4500.0, "Ant-v5": 4000.0}
PROMISED |= {"CartPole-v1": 500.0, "Catch-v0": 10.0}  # the most that there is
EXPERTS = [(name, family) for name in ("Hopper-v5", "Walker2d-v5") for family in ("sac", "ppo")]
EXPERTS += [
    ("HalfCheetah-v5", "sac"),
    ("Ant-v5", "sac"),
    ("CartPole-v1", "ppo"),
    ("Catch-v0", "ppo"),
]


def invoke(*words: str, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(make(), [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def test_every_file_that_is_shipped_is_tested() -> None:
    names = {f"{environment}-{family}" for environment, family in EXPERTS}
    assert {path.stem for path in SHIPPED.glob("*.safetensors")} == names
    assert {path.stem for path in SHIPPED.glob("*.md")} == names


@pytest.mark.parametrize(("environment", "family"), EXPERTS)
def test_the_card_says_what_the_file_says(environment: str, family: str) -> None:
    expert = load_expert(environment, family)
    page = (SHIPPED / f"{environment}-{family}.md").read_text(encoding="utf-8")
    assert page == card.text(expert)
    assert (expert.environment, expert.family) == (environment, family)
    report = expert.card["report"]
    assert (report["seed"], report["episodes"]) == (REPORT.seed, REPORT.count)
    assert report["episodes"] >= 100
    assert report["mean_return"] >= PROMISED[environment]
    assert f"{report['mean_return']:.0f} ± {report['std_return']:.0f}" in page

    # today's command would train it with the same settings, for as long
    recipe = recipe_for(family, environment)
    assert json.loads(json.dumps(settings(recipe))) == expert.card["settings"]
    steps = default_steps(recipe.family, environment)
    assert f"--steps {steps} " in expert.card["command"]
    assert expert.card["steps"] <= expert.card["trained_steps"]
    widths = [len(bias) for name, bias in expert.network.arrays().items() if "bias" in name]
    assert widths == [*recipe.hidden, expert.network.outputs]
    assert len(widths) == 3  # a two-layer MLP


@pytest.mark.parametrize(("environment", "family"), EXPERTS)
def test_the_first_episodes_of_the_report(environment: str, family: str) -> None:
    expert = load_expert(environment, family)
    report = expert.card["report"]
    again = evaluate(expert, environment, episodes=2, seed=REPORT.seed)
    # other processors round otherwise, and a gait magnifies it: no more than the episodes differ
    assert (again.returns >= report["min_return"] - 3 * report["std_return"]).all()
    assert (again.returns <= report["max_return"] + 3 * report["std_return"]).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("environment", "family"), EXPERTS)
def test_the_return_on_the_card(environment: str, family: str) -> None:
    report = load_expert(environment, family).card["report"]
    words = ["expert", "evaluate", environment, "--family", family, "--json"]
    again = json.loads(invoke(*words))  # plain Gymnasium episodes; the defaults are the card's
    assert (again["episodes"], again["seed"]) == (report["episodes"], report["seed"])
    spread = max(report["std_return"], again["std_return"]) * math.sqrt(2 / report["episodes"])
    assert abs(again["mean_return"] - report["mean_return"]) <= 4 * spread
    assert again["mean_return"] >= PROMISED[environment]

    fresh = json.loads(invoke(*words, "--seed", "12345"))
    assert fresh["mean_return"] >= PROMISED[environment]


def test_no_episode_serves_two_purposes() -> None:
    """The initial states of the three sets of episodes have none in common."""
    starts = []
    for episodes in (WATCH, CHOOSE, REPORT):
        # the first state of an episode is the only one that no action has led to
        seen = evaluate(
            _still, "Hopper-v5", episodes=episodes.count, seed=episodes.seed, record=True
        )
        assert seen.states is not None
        starts.append({state.tobytes() for state in seen.states})
        assert len(starts[-1]) == seen.lengths.sum()
    assert not starts[0] & starts[1]
    assert not (starts[0] | starts[1]) & starts[2]


def _still(states: np.ndarray) -> np.ndarray:
    return np.zeros((len(states), 3))


def test_list() -> None:
    shown = invoke("expert", "list")
    for environment, family in EXPERTS:
        mean = load_expert(environment, family).card["report"]["mean_return"]
        (line,) = (x for x in shown.splitlines() if environment in x and f" {family} " in x)
        assert f"{mean:.0f}" in line


@pytest.mark.parametrize("command", ["expert list", "expert train", "expert evaluate", "film"])
def test_help_has_examples(command: str) -> None:
    assert f"Examples:\n\n      targetopt {command}" in invoke(*command.split(), "--help")


def test_evaluate_says_mean_deviation_and_lengths(tmp_path: Path) -> None:
    words = ["expert", "evaluate", "Hopper-v5", "--episodes", "2", "--seed", "7"]
    result = json.loads(invoke(*words, "--json"))
    direct = evaluate(load_expert("Hopper-v5"), "Hopper-v5", episodes=2, seed=7, fast=False)
    assert result["mean_return"] == direct.mean
    assert result["std_return"] == direct.std
    assert (result["min_length"], result["max_length"]) == (
        direct.lengths.min(),
        direct.lengths.max(),
    )
    assert f"return  {direct.mean:.1f} ± {direct.std:.1f}" in invoke(*words)

    # a file: an expert's, or a learner's
    file = load_expert("Hopper-v5").save(tmp_path / "mine.safetensors")
    assert json.loads(invoke(*words[:2], file, *words[3:], "--json"))["mean_return"] == direct.mean
    learner = GaussianPolicy(11, 3, low=-1.0, high=1.0, seed=0, environment="Hopper-v5")
    file = learner.save(tmp_path / "learner.safetensors")
    result = json.loads(invoke(*words[:2], file, *words[3:], "--json"))
    assert result["mean_return"] == evaluate(learner, "Hopper-v5", episodes=2, seed=7).mean


def test_evaluate_errors(tmp_path: Path) -> None:
    assert "there are Ant-v5-sac, CartPole-v1-ppo, Catch-v0-ppo, HalfCheetah-v5-sac" in invoke(
        "expert", "evaluate", "Swimmer-v5", code=1
    )
    absent = tmp_path / "no.safetensors"
    assert f"no expert file '{absent}'" in invoke("expert", "evaluate", absent, code=1)
    nowhere = GaussianPolicy(11, 3).save(tmp_path / "p.safetensors")
    assert "--environment" in invoke("expert", "evaluate", nowhere, code=1)
    narrow = GaussianPolicy(10, 3).save(tmp_path / "p.safetensors")
    words = ("expert", "evaluate", narrow, "--environment", "Hopper-v5")
    assert invoke(*words, code=1).startswith("Error: ")
    (tmp_path / "junk.safetensors").write_bytes(b"not a network")
    assert "not a expert file" in invoke(
        "expert", "evaluate", tmp_path / "junk.safetensors", code=1
    )
