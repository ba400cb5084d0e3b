"""The decision-aware critic: its bound in solved worlds, its loss, and training with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import targetopt as to
from targetopt.distributions import Categorical, KLProximity
from targetopt.rl.decision_aware import NEAR, AdvantageLoss, AdvantageOracle, psi
from targetopt.rl.tabular import MDP

SMALL: dict[str, Any] = {"batch": 128, "copies": 4, "hidden": (16,), "progress": False}


def world(seed: int, states: int = 5, actions: int = 3, discount: float = 0.8) -> MDP:
    """Random, with rewards between 0 and 1."""
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.full(states, 0.4), size=(states, actions))
    start = np.full(states, 1 / states)
    return MDP(moves, rng.random((states, actions)), start, discount, f"random {seed}")


def softmax(z: np.ndarray) -> np.ndarray:
    return np.asarray(torch.from_numpy(z).softmax(dim=1).numpy())


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_the_return_holds(seed: int) -> None:
    """J(π) − J(π_t) ≥ Σ d [ ⟨π_t Â, z − z_t⟩ − (1/η + 1/c) KL(π_t ‖ π) − (1/c) E ψ(c(A − Â)) ], for any Â and π."""
    mdp, rng = world(seed), np.random.default_rng(100 + seed)
    tightest = np.inf
    for _ in range(300):
        z_t = rng.normal(size=mdp.rewards.shape) * rng.choice([0.3, 1.0, 2.0])
        old = softmax(z_t)
        true = mdp.advantages(old)
        said = true + rng.normal(size=true.shape) * rng.choice([0.01, 0.3, 1.0])
        said -= (old * said).sum(axis=1, keepdims=True)
        z = z_t + rng.normal(size=true.shape) * rng.choice([0.01, 0.3, 1.0])
        new = softmax(z)
        errors = true - said
        c = rng.uniform(0.05, 0.99) * NEAR / max(errors.max(), 1e-12)
        promised = (old * said * (z - z_t)).sum(axis=1)
        kl = (old * np.log(old / new)).sum(axis=1)
        cost = (old * psi(torch.from_numpy(c * errors)).numpy()).sum(axis=1)
        d = mdp.occupancy(old)
        bound = d @ (promised - (1 / (1 - mdp.discount) + 1 / c) * kl - cost / c)
        gap = mdp.value(new) - mdp.value(old) - bound
        assert gap >= -1e-12
        tightest = min(tightest, gap)
    assert tightest < 1e-2  # it says something


def test_the_loss_ranks_critics_by_what_their_steps_earn() -> None:
    """Two arms, the better one rare, and two critics: one says the wrong sign, one too much of the right one.

    The squared loss takes the first, whose step does harm; the decision-aware loss takes the second, whose step helps.
    """
    policy = torch.tensor([0.2, 0.8], dtype=torch.float64)
    shape = torch.tensor([1 / 0.2, -1 / 0.8], dtype=torch.float64)  # mean 0 under the policy
    true = 0.05 * shape
    wrong, bold, c = -0.13 * shape, 0.25 * shape, 1.0
    critics = {"wrong": wrong, "bold": bold}
    squared = {name: float(policy @ (true - said).square()) for name, said in critics.items()}
    aware = {name: float(policy @ psi(c * (true - said))) for name, said in critics.items()}
    assert min(squared, key=squared.__getitem__) == "wrong"
    assert min(aware, key=aware.__getitem__) == "bold"
    family, earned = Categorical(2), {}
    for name, said in critics.items():
        logits = policy.log().reshape(1, 2).clone().requires_grad_()
        rule = to.rl.PolicyStep(
            family, to.rl.Linear(), KLProximity(family), to.rl.ConstantStep(0.2)
        )
        opt = to.SSO([logits], rule=rule, inner=to.LBFGS(max_steps=100))
        oracle = to.rl.PolicyOracle(family, torch.tensor([0, 1]), said, weights=2 * policy)
        opt.step(lambda w=logits: w[[0, 0]], oracle)
        new = logits.softmax(1)[0].detach()
        torch.testing.assert_close(new, policy * (1 + 0.2 * said), rtol=0, atol=1e-6)
        earned[name] = float((new - policy) @ true)
    assert earned["wrong"] < 0 < earned["bold"]


def loss_of(rows: int = 6, c: float = 0.7) -> tuple[AdvantageLoss, Tensor]:
    torch.manual_seed(4)
    policy = torch.randn(rows, 3, dtype=torch.float64).softmax(1)
    gains = torch.randn(rows, dtype=torch.float64)
    oracle = AdvantageOracle(policy, torch.arange(rows) % 3, gains, c)
    z = torch.randn(rows, 3, dtype=torch.float64)
    found = oracle.query(z).majoriser
    assert isinstance(found, AdvantageLoss)
    return found, z


@pytest.mark.parametrize("c", [0.3, 3.0])
def test_derivatives_are_those_of_the_value(c: float) -> None:
    """Inside, and beyond where the parabola begins."""
    loss, z = loss_of(c=c)
    assert bool((loss._errors(z) > NEAR).any()) == (c > 1)
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss.entries(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(slope.detach(), loss.gradient(z), rtol=0, atol=1e-12)
    v = torch.randn_like(z)
    (bend,) = torch.autograd.grad((slope * v).sum(), leaf)
    torch.testing.assert_close(bend, loss.curvature_product(z, v), rtol=0, atol=1e-10)
    other = z + 0.1 * v
    change = loss.change(z, other, loss.gradient(z))
    torch.testing.assert_close(change, loss.value(other) - loss.value(z))
    assert bool((loss.entries(z) >= 0).all())
    best = loss.minimiser()
    torch.testing.assert_close(loss.value(best), torch.zeros((), dtype=torch.float64))


def test_small_c_is_the_squared_loss() -> None:
    loss, z = loss_of(c=1e-5)
    errors = loss._errors(z) / loss.c
    torch.testing.assert_close(
        loss.entries(z) / loss.c, 0.5 * errors.square(), rtol=1e-3, atol=1e-6
    )


def test_learned_in_a_table_the_advantages_are_exact() -> None:
    """Every pair of state and action as a row: one step to its end finds A_π."""
    mdp = world(3)
    policy = softmax(np.random.default_rng(0).normal(size=mdp.rewards.shape))
    states = torch.arange(mdp.states).repeat_interleave(mdp.actions)
    actions = torch.arange(mdp.actions).repeat(mdp.states)
    exact = torch.from_numpy(mdp.advantages(policy)).reshape(-1)
    oracle = AdvantageOracle(torch.from_numpy(policy)[states], actions, exact, c=0.5)
    table = torch.zeros(mdp.states, mdp.actions, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([table], rule=to.Majoriser(), inner=to.LBFGS(max_steps=300))
    opt.step(lambda: table[states], oracle)
    torch.testing.assert_close(oracle.estimates(table[states].detach()), exact, rtol=0, atol=1e-6)


# -- training ---------------------------------------------------------------------------------------------


def weights_of(result: to.rl.Result) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in result.policy.actor.parameters()])


@pytest.mark.parametrize("preset", ["fma-pg", "spma"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(preset: str, tmp_path: Path) -> None:
    options = {"preset": preset, "critic": "decision-aware", "seed": 3, **SMALL}
    straight = to.rl.train("CartPole-v1", steps=512, **options)
    to.rl.train("CartPole-v1", steps=256, checkpoint=tmp_path / "run.pt", **options)
    resumed = to.rl.train("CartPole-v1", steps=512, checkpoint=tmp_path / "run.pt", **options)
    assert torch.equal(weights_of(straight), weights_of(resumed))
    plain = to.rl.train("CartPole-v1", steps=512, **{**options, "critic": "squared"})
    assert not torch.equal(weights_of(straight), weights_of(plain))
    assert straight.counts.oracle_calls == 4


def test_seeds_side_by_side_have_the_bits_of_each_alone() -> None:
    options = {"preset": "fma-pg", "critic": to.rl.DecisionAware(0.1), "steps": 384, **SMALL}
    many = to.rl.train_many("CartPole-v1", seeds=[0, 4], **options)
    for seed, result in zip((0, 4), many, strict=True):
        assert torch.equal(
            weights_of(result), weights_of(to.rl.train("CartPole-v1", seed=seed, **options))
        )


def test_learning_happens() -> None:
    options = {"preset": "fma-pg", "critic": "decision-aware", "seed": 0, "progress": False}
    result = to.rl.train("CartPole-v1", steps=8192, batch=1024, step=to.rl.HeldKL(0.01), **options)
    assert result.final_return() > 2 * result.history[0].mean_return


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        ("CartPole-v1", {"preset": "ppo"}, "got surrogate=Clipped"),
        ("CartPole-v1", {"preset": "mdpo"}, "presets 'fma-pg' and 'spma'"),
        ("CartPole-v1", {"preset": "sso"}, "divergence='reverse-kl'"),
        ("CartPole-v1", {"preset": "fma-pg", "critic": "bold"}, "critic='bold' must be one of"),
    ],
)
def test_other_steps_are_refused(env: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(to.BadArgument, match=said):
        to.rl.train(env, steps=128, **{"critic": "decision-aware", **SMALL, **options})


def test_other_actions_and_numbers_are_refused() -> None:
    with pytest.raises(to.MissingCapability, match="one choice of several"):
        to.rl.train("Pendulum-v1", steps=128, preset="fma-pg", critic="decision-aware", **SMALL)
    with pytest.raises(to.BadArgument, match="c=0 must be positive"):
        to.rl.DecisionAware(0)
    with pytest.raises(to.BadArgument, match="must be an inner solver"):
        to.rl.DecisionAware(inner="adam")  # type: ignore[arg-type]
