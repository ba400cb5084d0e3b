"""The supervised control: echoed batches, identical batches for every arm, settings inside their lists, the page."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import targetopt as to
from targetopt.lab.studies.control import page, study
from targetopt.linear import Batches, Run
from targetopt.linear.baselines import SGD

CASE = study.Case(
    "small",
    "small",
    True,
    {"name": "quadratic", "n": 60, "dimension": 4, "noise": 1.0},
    (20,),
    (1, 3),
)


@pytest.mark.parametrize("batch", [None, 7])
@pytest.mark.parametrize("sampling", ["epochs", "independent"])
def test_an_echoed_batch_is_the_same_batch_again(batch, sampling) -> None:
    plain = Batches(20, batch, seed=3, sampling=sampling)
    echoed = Batches(20, batch, seed=3, sampling=sampling, echo=4)
    assert echoed.steps_per_epoch == 4 * plain.steps_per_epoch
    for step in range(3 * echoed.steps_per_epoch):
        np.testing.assert_array_equal(echoed.rows(step), plain.rows(step // 4))
    with pytest.raises(to.TargetoptError, match="echo"):
        Batches(20, batch, echo=0)


def test_echoing_gradient_descent_is_m_steps_on_every_batch() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    run = Run(X, y, loss=to.losses.Squared, baseline=SGD(), lr=0.1, batch_size=10, seed=1)
    run.batches = Batches(30, 10, seed=1, echo=5)
    run.advance(run.batches.steps_per_epoch)
    theta = np.zeros(3)
    for step in range(3):
        rows = Batches(30, 10, seed=1).rows(step)
        for _ in range(5):
            theta -= 0.1 * X[rows].T @ (X[rows] @ theta - y[rows]) / 10
    np.testing.assert_allclose(run.theta, theta, rtol=1e-12)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> study.Bench:
    monkeypatch.setattr(study, "CASES", (CASE,))
    monkeypatch.setattr(page, "CASES", (CASE,))
    return study.Bench(CASE)


def test_settings_are_chosen_inside_their_lists_on_a_seed_that_is_not_shown(small) -> None:
    arm = next(arm for arm in study.ARMS if arm.label == "Adam × m, tuned")
    cell = small.cell(arm, 20, 3)
    values = [float(value) for value in cell.tried]
    assert len(values) >= 7
    assert values[0] < cell.chosen < values[-1]
    assert cell.tried[f"{cell.chosen:.3g}"] == min(cell.tried.values())
    assert study.TUNING_SEED not in study.SEEDS
    assert cell.gaps == [small.gap(arm, 20, 3, cell.chosen, seed) for seed in study.SEEDS]


def test_proximal_with_a_small_step_is_sso(small) -> None:
    """Of a squared loss: the proximal step η is the gradient step η/(1 + η), solved to the end alike."""
    sso = next(arm for arm in study.ARMS if arm.label == "SSO, η = 1/(2L)")
    proximal = next(arm for arm in study.ARMS if arm.label.startswith("Proximal"))
    assert small.gap(proximal, 20, 200, 1.0, 0) == pytest.approx(
        small.gap(sso, 20, 200, 0.0, 0), rel=1e-6
    )


def test_the_study_saves_resumes_and_makes_a_page(small, tmp_path: Path) -> None:
    told: list[str] = []
    study.run(tmp_path, tell=told.append)
    cells = study.read(tmp_path)
    assert len(told) == len(cells) == 6 * 2 + 3
    again: list[str] = []
    study.run(tmp_path, tell=again.append)
    assert not again
    written = json.loads((tmp_path / study.FILE).read_text())
    assert written["tuning_seed"] == study.TUNING_SEED
    cells[0].gaps = [math.inf] * 3
    study.write(tmp_path, cells)
    assert math.isinf(study.read(tmp_path)[0].gap)
    text = page.write(tmp_path).read_text()
    assert (tmp_path / "control.png").stat().st_size > 10_000
    assert "| small (noisy) | 20 |" in text
    assert "diverged" in text
