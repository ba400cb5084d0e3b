"""Aggregated data and what a run costs: labels are paid for once, and old states are learned from again."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import targetopt as to
from imitation_parts import PointMass
from targetopt import BadArgument
from targetopt import imitation as im
from targetopt.imitation.kept import Kept
from targetopt.imitation.policies.network import Array
from test_imitation_questions import Questioned
from test_imitation_training import run, same

STEPS = to.GradientDescent(step_size=0.1, max_steps=2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("round", [60] * 6),
        ("all", [60, 120, 180, 240, 300, 360]),
        (im.Replay(100), [60, 100, 100, 100, 100, 100]),
        (im.Replay(30), [60] * 6),
    ],
)
def test_a_round_learns_from_what_data_says(data: Any, expected: list[int]) -> None:
    """And whatever it learns from, the expert is asked about the new states alone."""
    expert = Questioned()
    result = run(expert=expert, data=data, inner=STEPS, behaviour="dagger", held_out=0)
    assert [each.states for each in result.history] == expected
    assert len(set(expert.states)) == len(expert.states) == 6 * 60


def test_all_data_and_exact_steps_are_least_squares_on_all_states() -> None:
    """DAgger's learner is the best policy on everything labelled so far: at lr = 1/L, in closed form."""
    expert = lambda s: np.tanh(3.0 * s[:, :1] - s[:, 1:])  # noqa: E731
    environment = im.Environment(PointMass)
    policy = im.GaussianPolicy(2, 1, mean="linear", low=-1.0, high=1.0)
    training = im.Training(
        im.make_gatherer(environment, copies=3),
        expert,
        policy,
        im.update.SsoUpdate(policy, 1.0),
        behaviour=im.mixture("dagger"),
        states_per_round=50,
        measurement=im.Measurement(environment, expert, held_out=0),
        data=im.Replay("all"),
    )
    states, labels = np.empty((0, 2)), np.empty((0, 1))
    for _ in range(4):
        batch = training.gather()
        states = np.concatenate([states, batch.states])
        labels = np.concatenate([labels, batch.labels])
        training.step()
        best = im.best_loss(policy, states, labels)
        assert im.mean_loss(policy, states, labels) == pytest.approx(best.value, rel=1e-9)
        assert best.parameters is not None
        found = torch.cat([p.detach().reshape(-1) for p in policy.parameters()]).numpy()
        np.testing.assert_allclose(found, best.parameters, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "data", ["all", im.Replay(100), im.Replay("all", batch=30, updates=3, average=True)]
)
def test_a_run_with_old_data_goes_on_bitwise(data: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data": data, "inner": STEPS, "behaviour": "dagger"}
    whole = run(**options)
    file = tmp_path / "run.pt"
    run(**options, rounds=2, checkpoint=file)
    same(run(**options, checkpoint=file), whole)
    with pytest.raises(BadArgument, match=r"data: .* there, 'Replay\(n=1, "):
        run(**(options | {"data": "round"}), checkpoint=file)


def test_states_may_lie_in_a_file(tmp_path: Path) -> None:
    """The numbers are the same, also of a run that goes on, and in whichever place the states lay before."""
    rare = im.Replay("all", batch=30, updates=3)
    whole = run(data=rare, inner=STEPS, behaviour="dagger")
    filed = replace(rare, in_memory=1)
    same(run(data=filed, inner=STEPS, behaviour="dagger"), whole)
    file = tmp_path / "run.pt"
    run(data=filed, inner=STEPS, behaviour="dagger", rounds=2, checkpoint=file)
    same(run(data=rare, inner=STEPS, behaviour="dagger", checkpoint=file), whole)


@pytest.mark.parametrize("kind", [np.float64, np.uint8])
def test_files_of_states_grow_and_are_deleted(kind: Any) -> None:
    rng = np.random.default_rng(0)

    def batch() -> im.Batch:
        states = rng.integers(0, 255, (40, 3)).astype(kind)
        return im.Batch(states, rng.normal(size=(40, 2)), np.empty(0), np.empty(0, int))

    batches = [batch() for _ in range(9)]
    data = im.Replay("all", batch=5, in_memory=3 * batches[0].states.nbytes)
    kept, so_far, views = Kept(data), None, []
    for new in batches:
        so_far = kept.joined(so_far, new)
        views.append(so_far)
    assert so_far is not None
    assert so_far.states.dtype == kind
    for count, view in enumerate(views, 1):  # those of earlier rounds, too
        np.testing.assert_array_equal(
            view.states, np.concatenate([b.states for b in batches[:count]])
        )
        np.testing.assert_array_equal(
            view.labels, np.concatenate([b.labels for b in batches[:count]])
        )
    again = kept.joined(views[4], batches[0])  # a round that failed is begun again
    np.testing.assert_array_equal(again.states[-40:], batches[0].states)
    loaded = im.Batch(batches[3].states.copy(), batches[3].labels, np.empty(0), np.empty(0, int))
    other = kept.joined(
        loaded, batches[1]
    )  # of a checkpoint that was loaded in the middle of a run
    np.testing.assert_array_equal(
        other.states, np.concatenate([batches[3].states, batches[1].states])
    )
    assert kept.file is not None
    folder = kept.file.parent
    assert folder.exists()
    del kept
    gc.collect()
    assert not folder.exists()
    assert (
        again.states[-1, 0] == batches[0].states[-1, 0]
    )  # the system keeps what is still looked at


def test_what_a_run_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = im.Prices(question=0.5, interaction=0.25)
    file = tmp_path / "run.pt"
    options: dict[str, Any] = {"inner": STEPS, "prices": prices}
    result = run(**options, checkpoint=file, progress=True)
    columns = result.columns()
    expected = 0.5 * columns["questions"] + 0.25 * columns["interactions"]
    np.testing.assert_array_equal(columns["cost"], expected)
    assert result.cost == expected[-1] > 0
    assert f"cost {result.cost:.4g}" in capsys.readouterr().err
    assert im.Result.load(file).cost == result.cost
    more = run(**options, rounds=7, checkpoint=file)  # 60 states more, and 4 to check the expert
    assert more.cost == result.cost + 60 * 0.75 + 4 * 0.5
    assert run(inner=STEPS, rounds=1).cost == 0.0


def test_several_updates_on_parts_of_what_is_kept(tmp_path: Path) -> None:
    """Labels are bought once, each update sees a batch, and a run that goes on draws the same batches."""
    data = im.Replay("all", batch=30, updates=3)
    whole = run(data=data, rounds=4)
    assert [each.oracle_calls for each in whole.history] == [1, 1, 1, 1]
    states = whole.history[0].states
    assert [each.states for each in whole.history] == [states * t for t in (1, 2, 3, 4)]
    assert whole.questions["labels"] == 4 * states
    run(data=data, rounds=2, checkpoint=tmp_path / "run.pt")
    after = run(data=data, rounds=4, checkpoint=tmp_path / "run.pt")
    for name, value in whole.policy.state_dict().items():
        assert torch.equal(value, after.policy.state_dict()[name]), name
    kept = im.Batch(
        np.arange(10.0)[:, None], np.arange(10.0)[:, None], np.empty(0), np.empty(0, int)
    )
    parts = list(im.Replay("all", batch=4, updates=2).drawn(kept, np.random.default_rng(0)))
    assert [len(set(part.states[:, 0])) for part in parts] == [4, 4]
    assert all(np.array_equal(part.states, part.labels) for part in parts)


def test_a_round_may_end_at_the_mean_of_its_steps() -> None:
    """The first round sees the same batches from the same weights; the mean is where it ends."""
    seen: list[torch.Tensor] = []
    options: dict[str, Any] = {"rounds": 1, "inner": STEPS}

    class Watched(im.GaussianPolicy):
        """Keeps what its parameters are whenever a step begins."""

        def loss(self, labels: Array) -> Any:
            seen.append(torch.nn.utils.parameters_to_vector(self.parameters()).detach().clone())
            return super().loss(labels)

    def learner(kind: Any = im.GaussianPolicy) -> im.GaussianPolicy:
        policy = kind(2, 1, mean="linear", seed=3)
        policy.layers[0].bias.requires_grad_(False)
        return policy

    data = im.Replay("all", batch=30, updates=4)
    last = run(learner=learner(Watched), data=data, held_out=0, **options).policy
    steps = [*seen[2:5], torch.nn.utils.parameters_to_vector(last.parameters())]
    assert len({tuple(each.tolist()) for each in steps}) == 4
    averaged = replace(data, average=True)
    mean = run(learner=learner(), data=averaged, held_out=0, **options).policy
    found = torch.nn.utils.parameters_to_vector(mean.parameters())
    torch.testing.assert_close(found, torch.stack(steps).mean(0), rtol=1e-12, atol=0)
    assert torch.equal(mean.layers[0].bias, learner().layers[0].bias)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: run(data="everything"), r"data='everything' must be one of 'round', 'all', or"),
        (lambda: im.Replay(0), "Replay: n=0"),
        (lambda: im.Replay("all", batch=0), "Replay: batch=0"),
        (lambda: im.Replay("all", updates=0), "Replay: updates=0"),
        (lambda: im.Replay("all", in_memory=0), "Replay: in_memory=0"),
        (lambda: im.Prices(question=-1.0), r"question=-1\.0 must be a number, at least 0"),
        (lambda: im.Prices(interaction=float("inf")), "interaction=inf"),
    ],
)
def test_what_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        make()


@pytest.mark.parametrize("data", ["round", "all"])
def test_old_data_on_gymnasium_s_own_environment(data: Any) -> None:
    """Pendulum: what was learned in states left behind is not forgotten when their data are kept."""

    def upright(states: Array) -> Array:
        return np.clip(-8.0 * states[:, 1:2] - 2.0 * states[:, 2:], -2, 2)

    result = im.train(
        "Pendulum-v1",
        upright,
        learner=im.GaussianPolicy(3, 1, hidden=(16,), dtype=torch.float64),
        behaviour="dagger",
        data=data,
        inner=to.LBFGS(max_steps=10),
        lr=1.0,
        rounds=4,
        states_per_round=100,
        copies=2,
        evaluate_every=0,
        evaluation_episodes=1,
        progress=False,
    )
    assert result.questions["labels"] == 400
    assert result.history[-1].held_out_loss < 0.5 * result.history[0].loss
