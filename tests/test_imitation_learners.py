"""Learners of one's own: one module trains, acts, is evaluated, filmed, saved and gone on with."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from imitation_parts import PointMass, spring
from targetopt import BadAnswer, BadArgument
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array
from test_imitation_training import run, same

STEPS = to.GradientDescent(step_size=0.1, max_steps=3)


class Doubled(im.GaussianPolicy):
    """A subclass whose forward is not that of its layers."""

    def forward(self, states: Tensor) -> Tensor:
        return 2.0 * super().forward(states) + 1.0


def own() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1)
    )


def hooked() -> im.GaussianPolicy:
    policy = im.GaussianPolicy(2, 1, hidden=(4,))
    policy.layers[0].register_forward_hook(lambda module, args, output: 3.0 * output)
    return policy


def replaced() -> im.GaussianPolicy:
    policy = im.GaussianPolicy(2, 1, hidden=(4,))
    policy.layers[1] = nn.Sequential(nn.Linear(4, 1), nn.Tanh())
    return policy


LEARNERS: dict[str, Any] = {
    "subclass": lambda: Doubled(2, 1, hidden=(4,)),
    "linear subclass": lambda: Doubled(2, 1, mean="linear"),
    "module": lambda: im.GaussianPolicy(2, 1, mean=own()),
    "hook": hooked,
    "replaced layer": replaced,
}


@pytest.mark.parametrize("name", LEARNERS)
def test_one_module_trains_acts_is_measured_and_saved(name: str, tmp_path: Path) -> None:
    """The function that training differentiates is the one that everything else asks."""
    policy = LEARNERS[name]()
    result = run(learner=policy, inner=STEPS, rounds=2, evaluate_every=1)
    assert result.policy is policy
    states: Array = np.random.default_rng(0).standard_normal((7, 2))
    policy.eval()
    expected = policy(policy.inputs(states)).detach().double().numpy()
    policy.train()
    np.testing.assert_array_equal(policy.numpy()(states), expected)
    np.testing.assert_array_equal(policy.act(states), np.clip(expected, -1, 1))
    yardstick = im.Measurement(im.Environment(PointMass), spring, episodes=3)
    assert result.history[-1].held_out_loss == im.mean_loss(
        policy, yardstick.states, yardstick.labels
    )
    again = im.load_policy(policy.save(tmp_path / "p.safetensors"), learner=LEARNERS[name]())
    np.testing.assert_array_equal(again.numpy()(states), expected)
    assert (again.low.tolist(), again.high.tolist()) == ([-1.0], [1.0])


def test_acting_leaves_the_module_as_it_was() -> None:
    """Neither its mode, nor BatchNorm's statistics, nor torch's generator."""
    policy = im.GaussianPolicy(2, 1, mean=own())
    policy.network[3].eval()  # type: ignore[index]
    modes = [module.training for module in policy.modules()]
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    random = torch.get_rng_state()
    policy.act(np.ones((5, 2)))
    assert [module.training for module in policy.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in policy.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_bare_module_is_a_learner_and_can_be_evaluated() -> None:
    module = nn.Linear(2, 1, dtype=torch.float64)
    result = run(learner=module, std=0.5, inner=STEPS, rounds=3)
    assert result.policy.network is module
    assert result.history[-1].loss < result.history[0].loss
    ours = im.evaluate(module, PointMass, episodes=2, seed=2**63).returns
    theirs = im.evaluate(result.policy, PointMass, episodes=2, seed=2**63).returns
    np.testing.assert_array_equal(ours, theirs)
    assert to.imitation.best_loss(
        result.policy, np.ones((3, 2)), np.zeros((3, 1)), steps=2
    ).certificate.startswith("estimate from above")


@pytest.mark.parametrize(
    "update",
    [{"inner": STEPS}, {"optimizer": lambda p: torch.optim.Adam(p), "steps": 2}],
    ids=["sso", "adam"],
)
def test_a_learner_with_dropout_and_batch_norm_goes_on_bitwise(
    update: dict[str, Any], tmp_path: Path
) -> None:
    whole = run(learner=own(), **update)
    file = tmp_path / "run.pt"
    run(learner=own(), **update, rounds=2, checkpoint=file)
    torch.rand(5)  # whatever else draws from torch's generator in between
    parts = run(learner=own(), **update, checkpoint=file)
    same(parts, whole)
    for a, b in zip(parts.policy.buffers(), whole.policy.buffers(), strict=True):
        assert torch.equal(a, b)
    read = im.Result.load(file, learner=own())
    same(read, whole)
    with pytest.raises(BadArgument, match=r"(?s)Sequential.*learner=Sequential\(\.\.\.\)"):
        im.Result.load(file)


def test_a_failed_update_leaves_buffers_and_optimiser_as_they_were() -> None:
    module = own()

    class Failing(torch.optim.Adam):
        left = 3

        def step(self, closure: Any = None) -> Any:
            value = super().step(closure)
            type(self).left -= 1
            if type(self).left == 0:
                raise RuntimeError("out of memory")
            return value

    policy = im.GaussianPolicy(2, 1, mean=module, low=-1.0, high=1.0)
    environment = im.Environment(PointMass)
    training = im.Training(
        im.make_gatherer(environment, copies=3),
        spring,
        policy,
        im.update.TorchUpdate(policy, lambda p: Failing(p), steps=2),
        behaviour=im.mixture("online"),
        states_per_round=30,
        measurement=im.Measurement(environment, spring, episodes=1, held_out=0),
    )
    training.round()
    training.gather()
    before = repr(training.state_dict())
    with pytest.raises(RuntimeError, match="out of memory"):
        training.round()
    assert repr(training.state_dict()) == before
    asked = training.teacher.questions
    training.round()  # with the same states, whose labels were paid for
    assert training.teacher.questions == asked
    assert training.gatherer.interactions == 60


@pytest.mark.parametrize(
    ("learner", "error", "message"),
    [
        (nn.ReLU(), BadArgument, "none at all"),
        (nn.Linear(2, 1).requires_grad_(False), BadArgument, "requires_grad_"),
        (nn.Linear(2, 1, dtype=torch.float16), BadArgument, "torch.float16"),
        (nn.Linear(2, 3), BadAnswer, r"shape \(1, 1\) for states \(1, 2\); Linear gave \(1, 3\)"),
        (nn.Linear(5, 1), BadArgument, r"learner= cannot take 1 states of env='PointMass'"),
        (nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)), BadAnswer, r"gave \(1,\)"),
    ],
)
def test_modules_that_cannot_be_learners(
    learner: nn.Module, error: type[Exception], message: str
) -> None:
    asked: list[int] = []

    def expert(states: Array) -> Array:
        asked.append(len(states))
        return spring(states)

    with pytest.raises(error, match=message):
        run(learner=learner, inner=STEPS, expert=expert)
    assert not asked  # refused before anything was paid for


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    file = im.GaussianPolicy(2, 1, mean=own()).save(tmp_path / "p.safetensors")
    with pytest.raises(BadArgument, match=r"(?s)Pass the module they belong to.*BatchNorm1d"):
        im.load_policy(file)
    with pytest.raises(BadArgument, match=r"does not fit the network: it has no 'network.weight'"):
        im.load_policy(file, learner=nn.Linear(2, 1))
    other = nn.Sequential(
        nn.Linear(2, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 1)
    )
    with pytest.raises(BadArgument, match=r"'network.0.weight' is \(8, 2\) there and \(9, 2\) her"):
        im.load_policy(file, learner=other)
    with pytest.raises(
        BadArgument, match=r"dtype=torch\.float64 is for a network that is made here"
    ):
        im.GaussianPolicy(2, 1, mean=own(), dtype=torch.float64)


def test_arrays_are_copies_of_the_weights() -> None:
    """Also for one action, where transposing a matrix leaves its memory as it is."""
    policy = im.GaussianPolicy(2, 1, mean="linear")
    before = policy.numpy()
    said = before(np.ones((1, 2)))
    with torch.no_grad():
        policy.layers[0].weight.add_(1.0)  # type: ignore[operator]
    np.testing.assert_array_equal(before(np.ones((1, 2))), said)
