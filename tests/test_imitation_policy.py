"""Policies, experts and behaviours: one mean everywhere, files that keep every bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import targetopt as to
from imitation_parts import learner, teacher
from targetopt import BadArgument
from targetopt import imitation as im
from targetopt.imitation.policies import weights
from targetopt.imitation.policies.network import Array

HOPPER = im.Environment("Hopper-v5")


def states(n: int = 40, d: int = 11, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize("mean", ["linear", "mlp"])
def test_training_acting_and_evaluation_use_one_mean(mean: Any) -> None:
    policy = learner(HOPPER, mean=mean, seed=2)
    s = states()
    trained = policy(torch.from_numpy(s).to(policy.dtype)).detach().double().numpy()
    np.testing.assert_allclose(policy.numpy()(s), trained, atol=1e-6 if mean == "mlp" else 1e-14)
    np.testing.assert_array_equal(policy.act(s), np.clip(policy.numpy()(s), -1, 1))
    sampled = policy.act(s, np.random.default_rng(0))
    noise = np.random.default_rng(0).standard_normal((40, 3))
    np.testing.assert_array_equal(sampled, np.clip(policy.numpy()(s) + noise, -1, 1))


@settings(max_examples=30, deadline=None)
@given(
    std=st.floats(0.05, 20.0) | st.lists(st.floats(0.05, 20.0), min_size=3, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_loss_is_the_kullback_leibler_divergence(std: Any, seed: int) -> None:
    """Against torch.distributions; at unit std it is ½‖μ − μ_e‖² with L = 1."""
    policy = im.GaussianPolicy(11, 3, mean="linear", std=std)
    rng = np.random.default_rng(seed)
    z, labels = rng.standard_normal((5, 3)), rng.standard_normal((5, 3))
    loss = policy.loss(labels)
    scale = torch.from_numpy(policy.std)
    expert = torch.distributions.Normal(torch.from_numpy(labels), scale)
    mine = torch.distributions.Normal(torch.from_numpy(z), scale)
    divergence = torch.distributions.kl_divergence(expert, mine).sum(dim=1)
    torch.testing.assert_close(loss.value(torch.from_numpy(z)), divergence)
    assert loss.smoothness == pytest.approx(1 / np.min(policy.std) ** 2)
    unit = im.GaussianPolicy(11, 3, mean="linear").loss(labels)
    np.testing.assert_allclose(
        unit.value(torch.from_numpy(z)), 0.5 * np.square(z - labels).sum(axis=1)
    )
    assert unit.smoothness == 1.0


def test_at_unit_step_and_std_the_surrogate_is_the_batch_loss() -> None:
    """lr = 1 = 1/L: m steps on the surrogate are m steps of the same solver on the loss itself."""
    s, labels = states(), 0.3 * states(40, 3, seed=1)
    batch = im.Batch(s, labels, np.empty(0), np.empty(0, dtype=np.int64))
    policies = [im.GaussianPolicy(11, 3, hidden=(8,), dtype=torch.float64) for _ in range(2)]
    surrogate = im.update.SsoUpdate(
        policies[0], 1.0, to.GradientStep(), to.GradientDescent(step_size=0.05, max_steps=20)
    )
    plain = im.update.TorchUpdate(policies[1], lambda p: torch.optim.SGD(p, lr=0.05), steps=20)
    counts = [surrogate(batch), plain(batch)]
    for ours, theirs in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert [c.inner_steps for c in counts] == [20, 20]
    assert [c.oracle_calls for c in counts] == [1, 1]


@pytest.mark.parametrize("mean", ["linear", "mlp"])
@pytest.mark.parametrize("actions", [1, 3])
@pytest.mark.parametrize(
    "inner",
    [
        to.GradientDescent(step_size=0.05, max_steps=5),
        to.Armijo(max_steps=5),
        to.LBFGS(max_steps=5),
        to.GaussNewton(max_steps=2),
        to.Torch(lambda p: torch.optim.Adam(p, lr=1e-2), max_steps=5),
        to.Exact(),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_every_inner_solver_trains_every_learner(mean: Any, actions: int, inner: to.Inner) -> None:
    if mean == "mlp" and isinstance(inner, to.Exact):
        pytest.skip("Exact is for linear forwards")
    s = states()
    labels = 0.5 + np.tanh(s[:, :actions])
    policy = im.GaussianPolicy(11, actions, mean=mean, hidden=(16,), std=0.5, dtype=torch.float64)
    update = im.update.SsoUpdate(policy, None, None, inner)
    batch = im.Batch(s, labels, np.empty(0), np.empty(0, dtype=np.int64))
    losses = []
    for _ in range(4):
        losses.append(im.mean_loss(policy, s, labels))
        update(batch)
    assert losses[-1] < 0.8 * losses[0]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("mean", ["linear", "mlp"])
def test_a_policy_comes_back_from_its_file_bit_for_bit(mean: Any, tmp_path: Path) -> None:
    policy = im.GaussianPolicy(
        4, 2, mean=mean, hidden=(5, 6), std=[0.5, 2.0], low=-np.inf, high=[1.0, 3.0], seed=9
    )
    policy.environment, policy.provenance = "Somewhere-v1", {"rounds": 3, "note": "Ω"}
    again = im.load_policy(policy.save(tmp_path / "p.safetensors"))
    assert again.state_dict().keys() == policy.state_dict().keys()
    for name, value in policy.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    for name in ("std", "low", "high"):
        np.testing.assert_array_equal(getattr(again, name), getattr(policy, name))
    assert (again.mean, again.widths, again.dtype) == (policy.mean, policy.widths, policy.dtype)
    assert again.environment == "Somewhere-v1"
    assert again.provenance == {"rounds": 3, "note": "Ω"}


@pytest.mark.parametrize("output", ["tanh", "clip"])
@pytest.mark.parametrize("normalised", [True, False])
def test_an_expert_file_means_what_its_formula_says(
    output: str, normalised: bool, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    w = [rng.standard_normal((8, 11)), rng.standard_normal((3, 8))]
    b = [rng.standard_normal(8), rng.standard_normal(3)]
    low, high = np.array([-1.0, -2.0, 0.0]), np.array([1.0, 0.5, 4.0])
    statistics = {}
    s = 5 * states()
    seen = s
    if normalised:
        mean, std = rng.standard_normal(11), rng.uniform(0.5, 2, 11)
        statistics = {"observation_mean": mean, "observation_std": std, "observation_clip": 2.0}
        seen = np.clip((s - mean) / std, -2, 2)
    expert = im.NetworkExpert(
        im.Network(w, b, "tanh"), output, low=low, high=high, environment="E", family="f",
        card={"steps": 7}, **statistics,
    )  # fmt: skip
    u = np.tanh(seen @ w[0].T + b[0]) @ w[1].T + b[1]
    by_hand = (
        low + (np.tanh(u) + 1) / 2 * (high - low) if output == "tanh" else np.clip(u, low, high)
    )
    np.testing.assert_allclose(expert(s), by_hand, rtol=1e-13, atol=1e-13)
    again = im.load_expert(expert.save(tmp_path / "e.safetensors"))
    np.testing.assert_array_equal(again(s), expert(s))
    assert (again.environment, again.family, again.card) == ("E", "f", {"steps": 7})


def test_files_that_are_something_else(tmp_path: Path) -> None:
    policy = im.GaussianPolicy(4, 2).save(tmp_path / "policy.safetensors")
    expert = teacher(HOPPER).save(tmp_path / "expert.safetensors")
    with pytest.raises(
        BadArgument, match="holds a targetopt 'policy', not a 'expert'; load it with load_policy"
    ):
        im.load_expert(policy)
    with pytest.raises(BadArgument, match="load it with load_expert"):
        im.load_policy(expert)
    (tmp_path / "noise.safetensors").write_bytes(b"not at all")
    with pytest.raises(BadArgument, match="is not a policy file of targetopt"):
        im.load_policy(tmp_path / "noise.safetensors")
    with pytest.raises(BadArgument, match="there is no expert file"):
        im.load_expert(tmp_path / "nowhere.safetensors")
    with pytest.raises(BadArgument, match=r"'Moon-v5' of family 'sac'.*from_stable_baselines3"):
        im.load_expert("Moon-v5")
    arrays, header = weights.read(policy, "policy")
    del arrays["layers.1.bias"]
    weights.write(policy, arrays, header)
    with pytest.raises(BadArgument, match=r"no 'layers.1.bias'"):
        im.load_policy(policy)


def test_an_expert_of_another_environment() -> None:
    with pytest.raises(BadArgument, match=r"'Hopper-v5' takes 11 numbers.*got states of 17"):
        teacher(HOPPER)(states(5, 17))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": "cubic"}, "mean='cubic' must be one of 'linear', 'mlp'"),
        ({"std": 0.0}, "std=0.0 must be positive"),
        ({"std": [1.0, 1.0]}, "std=.* one number for each of the 3 actions"),
        ({"low": 1.0, "high": -1.0}, "low=1.0 must lie below high=-1.0"),
        ({"hidden": (0,)}, "hidden=0"),
    ],
)
def test_policies_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        im.GaussianPolicy(11, 3, **options)


@settings(max_examples=20, deadline=None)
@given(beta=st.floats(0, 1), t=st.integers(1, 20))
def test_a_mixture_lets_the_expert_act_with_its_share(beta: float, t: int) -> None:
    policy, n = learner(HOPPER), 4000
    expert = lambda s: np.full((len(s), 3), 7.0)  # noqa: E731
    mixture = im.Mixture(im.Geometric(beta), learner_noise=0.0)
    actions = mixture.at(t, policy, expert)(states(n), np.random.default_rng(0))
    of_expert = (actions == 7.0).all(axis=1)
    np.testing.assert_array_equal(actions[~of_expert], policy.numpy()(states(n))[~of_expert])
    share = mixture.share(t)
    assert share == beta ** (t - 1)
    assert abs(of_expert.mean() - share) <= 5 * np.sqrt(share * (1 - share) / n)


def test_the_noise_of_learner_and_expert() -> None:
    policy = learner(HOPPER)
    policy.std = np.array([0.1, 1.0, 3.0])
    expert = lambda s: np.zeros((len(s), 3))  # noqa: E731
    rng = np.random.default_rng(0)
    s = np.zeros((20000, 11))
    mean = policy.numpy()(s)
    spread = (im.mixture("online").at(1, policy, expert)(s, rng) - mean).std(axis=0)
    np.testing.assert_allclose(spread, policy.std, rtol=0.05)
    spread = (im.Mixture(0.0, learner_noise=0.5).at(1, policy, expert)(s, rng) - mean).std(axis=0)
    np.testing.assert_allclose(spread, [0.5] * 3, rtol=0.05)
    np.testing.assert_array_equal(im.mixture("cloning").at(1, policy, expert)(s, rng), expert(s))
    spread = im.Mixture(1.0, expert_noise=2.0).at(1, policy, expert)(s, rng).std(axis=0)
    np.testing.assert_allclose(spread, [2.0] * 3, rtol=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: im.Mixture(1.5), "beta=1.5 must be a probability"),
        (lambda: im.Mixture(lambda t: 2.0).share(3), r"beta\(3\)=2.0 must be a probability"),
        (lambda: im.Mixture(learner_noise=-1.0), "learner_noise=-1.0"),
        (lambda: im.Geometric(2.0), "decay=2.0"),
        (
            lambda: im.mixture("offline"),
            "behaviour='offline' must be one of 'online', 'cloning', 'dagger'",
        ),
    ],
)
def test_mixtures_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        make()


def test_the_best_linear_loss_is_least_squares() -> None:
    """No policy of the class is better, and the fitted one attains it; std scales outputs only."""
    s = states(200)
    labels = np.tanh(s[:, :3] @ np.random.default_rng(2).standard_normal((3, 3)))
    for std in (1.0, [0.5, 1.0, 2.0]):
        policy = im.GaussianPolicy(11, 3, mean="linear", std=std)
        best = im.best_loss(policy, s, labels)
        assert best.gap == 0.0
        assert best.parameters is not None
        table = torch.from_numpy(best.parameters.reshape(3, 12))
        policy.load_state_dict({"layers.0.weight": table[:, :11], "layers.0.bias": table[:, 11]})
        assert im.mean_loss(policy, s, labels) == pytest.approx(best.value, rel=1e-12)
        z = policy(torch.from_numpy(s))
        policy.loss(labels).value(z).mean().backward()
        assert all(float(p.grad.abs().max()) < 1e-13 for p in policy.parameters())  # type: ignore[union-attr]


def test_the_best_network_loss_is_an_estimate_from_above() -> None:
    s = states(200)
    truth = im.GaussianPolicy(11, 3, hidden=(64,), seed=4)
    labels = 3 * truth.numpy()(s)
    found = im.best_loss(truth, s, labels, steps=1500)
    assert "estimate from above: 1500 steps" in found.certificate
    assert found.gap == found.value
    begin = im.mean_loss(im.GaussianPolicy(11, 3, hidden=(64,)), s, labels)
    assert 0 < found.value < 0.02 * begin
