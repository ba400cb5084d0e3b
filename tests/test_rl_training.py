"""Training policies: estimates by hand, every preset, resuming after a kill, and what goes wrong."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import targetopt as to
from forked import Forked, forked
from targetopt.distributions import Categorical, Gaussian
from targetopt.imitation import EnvironmentFailed
from targetopt.rl.normalise import Moments, Normaliser, RewardScale
from targetopt.rl.recipes import PRESETS, Recipe

SMALL: dict[str, Any] = {"batch": 64, "copies": 4, "hidden": (8,), "progress": False}


def weights_of(result: to.rl.Result) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in result.policy.actor.parameters()])


# -- estimates ------------------------------------------------------------------------------------------


def test_advantages_by_the_definition() -> None:
    """Against the sum of γλ-weighted surprises, episode by episode, with both kinds of ends."""
    rng = np.random.default_rng(0)
    rewards, values, ahead = (rng.normal(size=(9, 3)) for _ in range(3))
    terminated = rng.random((9, 3)) < 0.2
    ended = terminated | (rng.random((9, 3)) < 0.2)
    found = to.rl.advantages(rewards, values, ahead, terminated, ended, discount=0.9, trace=0.8)
    for copy in range(3):
        for t in range(9):
            total, weight = 0.0, 1.0
            for k in range(t, 9):
                after = 0.0 if terminated[k, copy] else ahead[k, copy]
                total += weight * (rewards[k, copy] + 0.9 * after - values[k, copy])
                weight *= 0.9 * 0.8
                if ended[k, copy]:
                    break
            assert found[t, copy] == pytest.approx(total, abs=1e-12)


def test_an_episode_that_was_cut_off_goes_on_in_the_critic_and_one_that_ended_does_not() -> None:
    one, yes, no = np.ones((1, 1)), np.ones((1, 1), bool), np.zeros((1, 1), bool)
    known = {"rewards": one, "values": 0 * one, "next_values": 10 * one, "discount": 0.5}
    assert to.rl.advantages(terminated=no, ended=yes, trace=1.0, **known) == 6.0  # type: ignore[arg-type]
    assert to.rl.advantages(terminated=yes, ended=yes, trace=1.0, **known) == 1.0  # type: ignore[arg-type]


def test_running_moments_are_those_of_all_rows() -> None:
    rows = np.random.default_rng(0).normal(3.0, 2.0, size=(100, 2))
    seen = Moments(2)
    for piece in np.split(rows, [1, 7, 7, 60]):
        seen.update(piece)
    np.testing.assert_allclose(seen.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(seen.variance, rows.var(axis=0), rtol=1e-12)
    scale = Normaliser(2, clip=1.0)
    scale.learn(rows)
    assert np.abs(scale(rows)).max() == 1.0


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return() -> None:
    rewards = np.random.default_rng(0).normal(size=(50, 2))
    ended = np.random.default_rng(1).random((50, 2)) < 0.1
    sums, total = [], np.zeros(2)
    for r, e in zip(rewards, ended, strict=True):
        total = 0.9 * total + r
        sums.append(total)
        total = np.where(e, 0.0, total)
    scale = RewardScale(2, 0.9)
    halves = np.concatenate([scale(rewards[:25], ended[:25]), scale(rewards[25:], ended[25:])])
    expected = rewards[25:] / np.sqrt(np.var(sums) + 1e-8)
    np.testing.assert_allclose(halves[25:], expected, rtol=1e-12)


# -- presets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_every_preset_trains_with_choices_and_with_numbers(name: str, env: str) -> None:
    first = to.rl.train(env, steps=128, preset=name, seed=1, **SMALL)
    again = to.rl.train(env, steps=128, preset=name, seed=1, **SMALL)
    other = to.rl.train(env, steps=128, preset=name, seed=2, **SMALL)
    assert torch.equal(weights_of(first), weights_of(again))
    assert not torch.equal(weights_of(first), weights_of(other))
    assert first.counts.oracle_calls == 2
    assert first.counts.interactions == 128 == first.history[-1].interactions
    assert all(np.isfinite(update.kl) and np.isfinite(update.entropy) for update in first.history)
    assert any(update.kl > 0 for update in first.history)


def test_presets_are_cells_of_the_grid() -> None:
    cells = {
        name: (
            type(r.surrogate).__name__,
            r.divergence,
            type(r.step).__name__,
            type(r.inner).__name__,
        )
        for name, r in PRESETS.items()
    }
    assert cells == {
        "ppo": ("Clipped", "none", "ConstantStep", "Torch"),
        "trpo": ("Ratio", "forward-kl", "HeldKL", "GaussNewton"),
        "mdpo": ("Ratio", "reverse-kl", "ConstantStep", "Torch"),
        "fma-pg": ("Linear", "forward-kl", "ConstantStep", "Torch"),
        "spma": ("LogRatio", "forward-kl", "ArmijoStep", "Torch"),
        "sso": ("Linear", "reverse-kl", "HeldKL", "Torch"),
    }


def test_the_policy_update_of_ppo_is_that_of_a_loop_of_ones_own() -> None:
    """Clipped ratio, Adam in mini-batches with clipped gradients: written out with torch alone."""
    generator = torch.Generator().manual_seed(0)
    family, states = Gaussian(2), torch.randn(40, 3, generator=generator, dtype=torch.float64)
    actor = to.rl.Actor(3, family, hidden=(8,), seed=1, dtype=torch.float64)
    plain = to.rl.Actor(3, family, hidden=(8,), seed=1, dtype=torch.float64)
    actions = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    gains = torch.randn(40, generator=generator, dtype=torch.float64)
    inner = replace(to.rl.minibatch_adam(lr=1e-2, epochs=3, batch_size=16), seed=5)
    opt = to.SSO(actor.parameters(), rule=PRESETS["ppo"].rule(family), inner=inner)
    opt.step(to.ByRows(actor, states), to.rl.PolicyOracle(family, actions, gains))

    adam = torch.optim.Adam(plain.parameters(), lr=1e-2, eps=1e-5)
    before = torch.distributions.Normal(plain(states)[:, :2], plain(states)[:, 2:].exp())
    old = before.log_prob(actions).sum(dim=1).detach()
    for epoch in range(3):
        for i in inner.order(40, epoch).split(16):
            z = plain(states[i])
            log_prob = torch.distributions.Normal(z[:, :2], z[:, 2:].exp()).log_prob(actions[i])
            ratio = (log_prob.sum(dim=1) - old[i]).exp()
            plain_gains = (gains[i] - gains[i].mean()) / (gains[i].std() + 1e-8)
            least = torch.minimum(plain_gains * ratio, plain_gains * ratio.clamp(0.8, 1.2))
            adam.zero_grad()
            (-least.mean()).backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
            adam.step()
    for ours, theirs in zip(actor.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=0, atol=1e-7
        )  # their clip adds 1e-6 to the norm


def test_trpo_makes_a_natural_gradient_step_of_the_right_kl() -> None:
    """F d ∥ −g in the parameters, with F the Fisher matrix of the visited states, and KL near the target."""
    generator = torch.Generator().manual_seed(0)
    family, x = Categorical(3), torch.randn(50, 4, generator=generator, dtype=torch.float64)
    weights = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(3, (50,), generator=generator)
    gains = torch.randn(50, generator=generator, dtype=torch.float64)
    recipe = replace(
        PRESETS["trpo"],
        step=to.rl.HeldKL(1e-4, least=0.8, most=1.2),
        inner=to.GaussNewton(max_steps=1, cg_steps=50, cg_tolerance=1e-8, initial_damping=1e-9),
    )
    opt = to.SSO([weights], rule=recipe.rule(family), inner=recipe.inner)  # type: ignore[arg-type]
    report = opt.step(lambda: x @ weights, to.rl.PolicyOracle(family, actions, gains))
    assert 0.8e-4 <= report.measures["kl"] <= 1.2e-4
    step = weights.detach()
    score = torch.eye(3, dtype=torch.float64)[actions] - 1 / 3
    gradient = x.T @ (gains[:, None] * score) / 50
    fisher = torch.eye(3, dtype=torch.float64) / 3 - 1 / 9
    pushed = x.T @ (x @ step @ fisher) / 50
    cosine = float((pushed * gradient).sum() / (pushed.norm() * gradient.norm()))
    assert cosine == pytest.approx(1.0, abs=1e-6)


def test_a_held_kl_is_held() -> None:
    step = to.rl.HeldKL(0.005)
    found = to.rl.train("CartPole-v1", steps=512, step=step, seed=0, **SMALL)
    assert all(update.kl <= 1.5 * 0.005 for update in found.history)
    assert sum(update.kl for update in found.history) > 0


def test_networks_of_ones_own_train_and_act() -> None:
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 2))
    values = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
    found = to.rl.train(
        "CartPole-v1", steps=64, actor=actor, critic_network=values, seed=0, **SMALL
    )
    assert found.policy.actor is actor
    assert found.policy.act(np.zeros((2, 4))).shape == (2,)


def test_learning_happens() -> None:
    """Ten batches on the cart: random play lasts some 22 steps."""
    found = to.rl.train("CartPole-v1", steps=8192, batch=1024, seed=0, progress=False)
    assert found.history[0].mean_return < 40 < 60 < found.final_return(0.2)


# -- files and resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_policies_are_saved_and_loaded_bitwise(env: str, tmp_path: Path) -> None:
    found = to.rl.train(env, steps=64, seed=0, **SMALL)
    again = to.rl.Policy.load(found.policy.save(tmp_path / "policy.safetensors"))
    size = found.policy.normaliser.mean.shape[0]
    states = np.random.default_rng(0).normal(size=(5, size))
    assert np.array_equal(found.policy.targets(states), again.targets(states))
    assert np.array_equal(found.policy.act(states), again.act(states))
    assert again.environment == env


@pytest.mark.parametrize(
    ("env", "preset"), [("CartPole-v1", "ppo"), ("Hopper-v5", "sso"), ("Pendulum-v1", "trpo")]
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    env: str, preset: str, tmp_path: Path
) -> None:
    options = {"preset": preset, "seed": 3, "checkpoint_every": 1, **SMALL}
    straight = to.rl.train(env, steps=256, **options)
    to.rl.train(env, steps=128, checkpoint=tmp_path / "run.pt", **options)
    resumed = to.rl.train(env, steps=256, checkpoint=tmp_path / "run.pt", **options)
    assert torch.equal(weights_of(straight), weights_of(resumed))
    assert np.array_equal(straight.episodes, resumed.episodes)
    for ours, theirs in zip(straight.history, resumed.history, strict=True):
        timeless = {"gathering_time": 0.0, "updating_time": 0.0}
        assert replace(ours, **timeless) == replace(theirs, **timeless) or np.isnan(
            ours.mean_return
        )


def hop(checkpoint: Path, out: Path) -> None:
    result = to.rl.train(
        "Hopper-v5", steps=960, preset="ppo", seed=5, checkpoint=checkpoint, checkpoint_every=1,
        after=lambda training: print(training.collector.interactions, flush=True), **SMALL,
    )  # fmt: skip
    torch.save([p.detach() for p in result.policy.actor.parameters()], out)


def test_a_run_that_is_killed_goes_on_bitwise(tmp_path: Path) -> None:
    with Forked(hop, tmp_path / "run.pt", tmp_path / "never.pt") as victim:
        for line in victim.said:
            if int(line) >= 320:
                break
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
    assert not (tmp_path / "never.pt").exists()
    told = forked(hop, tmp_path / "run.pt", tmp_path / "resumed.pt")
    assert int(told.split()[0]) >= 384  # it went on, and did not begin anew
    straight = to.rl.train("Hopper-v5", steps=960, preset="ppo", seed=5, **SMALL)
    resumed = torch.load(tmp_path / "resumed.pt", weights_only=True)
    for ours, theirs in zip(straight.policy.actor.parameters(), resumed, strict=True):
        assert torch.equal(ours, theirs)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    to.rl.train("CartPole-v1", steps=64, checkpoint=file, **SMALL)
    with pytest.raises(to.BadArgument, match=r"recipe discount: 0\.99 there, 0\.9 here"):
        to.rl.train("CartPole-v1", steps=64, checkpoint=file, discount=0.9, **SMALL)


# -- what goes wrong --------------------------------------------------------------------------------------


class Broken(gymnasium.Env[Any, Any]):
    """Works for some steps, then does what it is told."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float64)

    def __init__(self, how: str = "", actions: Any = None) -> None:
        self.how, self.steps = how, 0
        self.action_space = gymnasium.spaces.Discrete(2) if actions is None else actions

    def reset(self, **_: Any) -> Any:
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 30:
            if self.how == "raises":
                raise RuntimeError("the motor is hot")
            if self.how == "reward":
                return np.zeros(2), float("nan"), False, False, {}
            if self.how == "observation":
                return np.full(2, np.inf), 0.0, False, False, {}
        return np.full(2, 0.1), 1.0, self.steps % 7 == 0, False, {}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "the motor is hot"),
        ("reward", "its reward for the action . is nan"),
        ("observation", "observation is not finite"),
    ],
)
def test_an_environment_that_fails_is_named_and_nothing_is_lost(how: str, said: str) -> None:
    with pytest.raises(EnvironmentFailed, match=said) as failed:
        to.rl.train(lambda: Broken(how), steps=256, **SMALL)
    assert failed.value.result.history[-1].interactions == 64
    assert failed.value.result.policy.act(np.zeros((1, 2))).shape == (1,)


@pytest.mark.parametrize(
    "actions",
    [
        gymnasium.spaces.Box(-1, 1, (2, 2)),
        gymnasium.spaces.MultiBinary(3),
        gymnasium.spaces.Text(3),
    ],
    ids=str,
)
def test_unsupported_actions_are_refused(actions: Any) -> None:
    with pytest.raises(to.BadArgument, match="action space"):
        to.rl.train(lambda: Broken(actions=actions), steps=64, **SMALL)


def test_multi_discrete_actions_with_an_offset_are_what_the_environment_gets() -> None:
    taken: list[Any] = []

    class Seen(Broken):
        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            taken.append(tuple(action))
            return super().step(action)

    space = gymnasium.spaces.MultiDiscrete([2, 3], start=[5, 0])
    to.rl.train(lambda: Seen(actions=space), steps=128, **SMALL)
    assert {a for a, _ in taken} == {5, 6}
    assert {b for _, b in taken} == {0, 1, 2}


def test_a_kl_that_cannot_be_held_is_said_and_the_policy_stays() -> None:
    """Adam's steps have a length of their own, whatever η: a tiny target with a long step is out of reach."""
    wild = to.rl.full_adam(lr=0.3, max_steps=2)
    step = to.rl.HeldKL(1e-9, tries=2)
    options = {"inner": wild, "step": step, "seed": 0, **SMALL}
    with (
        pytest.warns(to.rl.RefusedStep, match="the inner solver goes too far"),
        pytest.raises(to.rl.CannotHold, match="20 policy steps were refused") as refused,
    ):
        to.rl.train("CartPole-v1", steps=64 * 30, **options)
    history = refused.value.result.history
    assert len(history) == 20
    assert all(update.refused and update.eta == 0 for update in history)
    first = to.rl.Actor(4, Categorical(2), hidden=(8,), seed=0)
    for p, q in zip(
        refused.value.result.policy.actor.parameters(), first.parameters(), strict=True
    ):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"surrogate": "quadratic"}, "surrogate='quadratic' must be one of 'linear'"),
        ({"divergence": "tv"}, "divergence='tv' must be one of"),
        ({"preset": "a3c"}, "preset='a3c' must be one of 'ppo'"),
        ({"learning_rate": 1}, "no setting learning_rate"),
        ({"batch": 65}, "cannot be dealt out"),
        ({"steps": 0}, "steps=0"),
        ({"seed": -1}, "seed=-1"),
        ({"divergence": "none"}, "does nothing without a divergence"),
        ({"divergence": "none", "step": "constant"}, "must be held by a divergence"),
        ({"env": "Nothing-v0"}, "cannot be made"),
        ({"inner": "newton"}, "inner='newton' must be one of"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"scale_advantages": "row"}, "scale_advantages='row' must be"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(to.BadArgument, match=said):
        to.rl.train(**{"env": "CartPole-v1", "steps": 64, **SMALL, **options})


def test_recipes_describe_themselves_the_same_in_every_process() -> None:
    described = Recipe(inner=to.Torch(torch.optim.Adam, max_steps=3)).described()
    assert described["inner"]["factory"] == "Adam"
    assert " at 0x" not in repr(described)
