"""Going on with a run: what is refused and why, what an error leaves behind, what is made up for."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import targetopt as to
from imitation_parts import PointMass, spring
from targetopt import BadArgument, Diverged
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array
from test_imitation_training import run, same


def adam(lr: float) -> to.Torch:
    return to.Torch(lambda q: torch.optim.Adam(q, lr=lr), max_steps=2)


def two_groups(lr: float) -> to.Torch:
    return to.Torch(
        lambda q: torch.optim.SGD([{"params": q[:1]}, {"params": q[1:], "lr": lr}], lr=0.1),
        max_steps=2,
    )


SGD = to.Torch(lambda q: torch.optim.SGD(q, lr=1e-3), max_steps=2)


class Windy(PointMass):
    """The point mass under the same name, in another weather."""

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return super().step(action + 0.1)


Windy.__name__ = "PointMass"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"inner": adam(1e-3)}, {"inner": adam(0.3)}, "lr: '0.001' there, '0.3' here"),
        ({"inner": adam(1e-3)}, {"inner": SGD}, "optimizer: 'Adam' there, 'SGD' here"),
        (
            {"inner": two_groups(0.2)},
            {"inner": two_groups(0.3)},
            "lr: '0.1, 0.2' there, '0.1, 0.3' here",
        ),
        (
            {"behaviour": im.Mixture(lambda t: 1 / t)},
            {"behaviour": im.Mixture(lambda t: 1 / t**2)},
            r"behaviour=.*round 2.*0\.5 there, 0\.25 here",
        ),
        (
            {"schedule": lambda t: 1 / t},
            {"schedule": lambda t: 1 / t**2},
            r"schedule=.*step 2.*0\.5 there, 0\.25 here",
        ),
        ({}, {"evaluation_episodes": 5}, r"\(evaluation episodes: 3 there, 5 here\)"),
        ({}, {"held_out": 0}, r"\(evaluation held_out: 2000 there, 0 here\)"),
        ({}, {"expert": lambda s: 0.5 * spring(s)}, r"\(expert: it does not answer as it did then"),
        ({}, {"env": Windy}, r"\(env: 'PointMass' does not repeat the expert's first episode"),
    ],
)
def test_a_changed_setting_is_refused_by_its_name(
    before: dict[str, Any], after: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.pt"
    run(**before, rounds=2, checkpoint=file)
    content = file.read_bytes()
    with pytest.raises(BadArgument, match=message):
        run(**(before | after), rounds=3, checkpoint=file)
    assert file.read_bytes() == content
    with pytest.raises(BadArgument, match=r"to\.imitation\.Result\.load\(.*run\.pt'\)\.policy"):
        run(**before, seed=5, rounds=3, checkpoint=file)


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"inner": adam(1e-2), "learner": "mlp"},
        lambda: {"behaviour": im.Mixture(lambda t: 1 / t), "schedule": lambda t: 1 / t},
        lambda: {"inner": None, "optimizer": lambda p: to.baselines.SLS(p)},
    ],
)
def test_functions_made_anew_are_the_same_settings(
    make: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    """As in another process: no function is the same object as before."""
    file = tmp_path / "run.pt"
    run(**make(), rounds=2, checkpoint=file)
    same(run(**make(), checkpoint=file), run(**make()))


@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_policy_can_be_read_out_of_a_checkpoint(learner: str, tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    result = run(learner=learner, std=[0.3], inner=to.LBFGS(max_steps=2), rounds=2, checkpoint=file)
    again = im.Result.load(file)
    same(again, result)
    ours, theirs = again.policy, result.policy
    assert (ours.environment, ours.dtype, ours.mean) == ("PointMass", theirs.dtype, theirs.mean)
    for name in ("low", "high", "std"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert again.expert_return == result.expert_return
    kept = im.load_policy(ours.save(tmp_path / "policy.safetensors"))
    assert kept.provenance["rounds"] == 2
    with pytest.raises(BadArgument, match=r"there is no checkpoint '.*nowhere\.pt'"):
        im.Result.load(tmp_path / "nowhere.pt")
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(BadArgument, match="is not a run of targetopt"):
        im.Result.load(file)


class Closing(PointMass):
    """Counts how many were made and not closed."""

    opened = 0

    def __init__(self) -> None:
        super().__init__()
        Closing.opened += 1

    def close(self) -> None:
        Closing.opened -= 1


class Tiring:
    """The expert of the point mass, until it is asked about a batch for the ``last``-th time."""

    def __init__(self, error: BaseException | None, last: int) -> None:
        self.error, self.left = error, last

    def __call__(self, states: Array) -> Array:
        self.left -= len(states) == 60  # a round's; its episodes are measured on 3 copies
        if self.error is not None and self.left <= 0:
            raise self.error
        return spring(states)


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("error", [TimeoutError("no answer"), KeyboardInterrupt()])
def test_no_error_loses_the_run(error: BaseException, saved: bool, tmp_path: Path) -> None:
    Closing.opened = 0
    error.__notes__ = []
    file = tmp_path / "run.pt"
    with pytest.raises(type(error)) as caught:
        run(Closing, Tiring(error, 3), checkpoint=file if saved else None)
    assert Closing.opened == 0
    assert caught.value is error
    result = error.result  # type: ignore[attr-defined]
    same(result, run(rounds=2))
    assert result.policy.provenance["rounds"] == 2
    (note,) = error.__notes__
    if not saved:
        assert "2 rounds were finished: error.result" in note
        return
    assert "train again with this checkpoint" in note
    assert len(im.Result.load(file).history) == 2
    same(run(Closing, checkpoint=file), run())  # the half-made round is made again, bit for bit


def test_an_error_of_the_callback_and_refusals_close_the_environment(tmp_path: Path) -> None:
    Closing.opened = 0

    def stop(latest: im.Round) -> None:
        raise RuntimeError("enough")

    file = tmp_path / "run.pt"
    with pytest.raises(RuntimeError, match="enough") as caught:
        run(Closing, callback=stop, checkpoint=file)
    same(caught.value.result, run(rounds=1, evaluate_every=0))  # type: ignore[attr-defined]
    with pytest.raises(BadArgument, match="seed"):
        run(Closing, seed=1, checkpoint=file)
    assert Closing.opened == 0


@pytest.mark.parametrize("steps", [1, 30])
def test_a_diverged_update_is_taken_back(steps: int) -> None:
    policy = im.GaussianPolicy(2, 1, mean="mlp", hidden=(8,))

    def wild(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=1e12)

    with pytest.raises(Diverged) as caught:
        run(optimizer=wild, learner=policy, steps=steps, rounds=50)
    result = caught.value.result  # type: ignore[attr-defined]
    assert all(torch.isfinite(p).all() for p in policy.parameters())
    assert result.policy is policy
    assert f"{len(result.history)} rounds were finished" in caught.value.__notes__[0]


def test_a_checkpoint_that_cannot_be_written_any_more_does_not_hide_the_error(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "runs"

    def spoil(latest: im.Round) -> None:
        (directory / "run.pt").unlink()
        directory.rmdir()
        directory.write_text("in the way")

    with pytest.raises(BadArgument, match="cannot be written") as caught:
        run(callback=spoil, checkpoint=directory / "run.pt")
    assert len(caught.value.result.history) == 2  # type: ignore[attr-defined]
    assert any("error.result" in note for note in caught.value.__notes__)


def failing_evaluation(at: int) -> Callable[[], PointMass]:
    """Makes environments of which the first copy of the measurement fails, once, at some step."""
    made = 0

    def make() -> PointMass:
        nonlocal made
        made += 1
        return PointMass(fail_at=at if made == 5 else None)

    return make


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_last_evaluation_that_failed_is_made_up_for(rounds: int, tmp_path: Path) -> None:
    """At the end of a run, or before it goes on: as if nothing had failed."""
    file, make, seen = tmp_path / "run.pt", failing_evaluation(35), list[im.Round]()
    with pytest.raises(im.EnvironmentFailed, match="in an evaluation") as caught:
        run(make, rounds=rounds, checkpoint=file)
    assert math.isnan(caught.value.result.history[-1].mean_return)
    again = run(make, rounds=rounds, checkpoint=file, callback=seen.append)
    same(again, run(rounds=rounds))
    assert repr(seen) == repr(again.history[-1:])
    same(im.Result.load(file), again)
    run(make, rounds=rounds, checkpoint=file, callback=lambda latest: pytest.fail("done already"))


class Interrupted(PointMass):
    """Ctrl-C, where `PointMass` would raise an error of its own."""

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self.steps_ever + 1 == self.fail_at:
            self.fail_at = None
            raise KeyboardInterrupt
        return super().step(action)


def test_ctrl_c_in_an_evaluation_loses_no_round(tmp_path: Path) -> None:
    made, file = 0, tmp_path / "run.pt"

    def make() -> PointMass:
        nonlocal made
        made += 1
        return Interrupted(fail_at=50 if made == 5 else None)

    with pytest.raises(KeyboardInterrupt):
        run(make, checkpoint=file)
    assert len(im.Result.load(file).history) == 2
    same(run(make, checkpoint=file), run())


def test_an_evaluation_that_was_not_due_is_not_made_up_for(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    run(rounds=3, evaluate_every=0, checkpoint=file)
    result = run(rounds=4, checkpoint=file)
    assert math.isnan(result.history[2].mean_return)
    assert math.isnan(run(rounds=4, evaluate_every=0, checkpoint=file).history[2].mean_return)


def test_std_is_of_a_learner_made_here() -> None:
    assert run(rounds=1).policy.std.tolist() == [1.0]
    assert run(rounds=1, std=0.1).policy.std.tolist() == [0.1]
    with pytest.raises(BadArgument, match=r"std=0\.1 .*learner= .*std \[0\.5\].*GaussianPolicy\("):
        run(learner=im.GaussianPolicy(2, 1, std=0.5), std=0.1)


def test_a_learner_without_box_and_name_gets_those_of_the_environment() -> None:
    policy = run(learner=im.GaussianPolicy(2, 1, mean="linear", low=-0.5), rounds=1).policy
    assert (policy.low.tolist(), policy.high.tolist()) == ([-0.5], [1.0])
    assert policy.environment == "PointMass"
    assert policy.act(np.array([[1e6, 0.0], [-1e6, 0.0]])).max() == 1.0
    named = im.GaussianPolicy(2, 1, mean="linear", environment="elsewhere")
    assert run(learner=named, rounds=1).policy.environment == "elsewhere"
    with pytest.raises(BadArgument, match=r"learner= .*low \[2\.0\].*high \[1\.0\]"):
        run(learner=im.GaussianPolicy(2, 1, mean="linear", low=2.0), rounds=1)
