"""The fast path against Gymnasium: the same trajectories, and the same distribution of returns."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from imitation_parts import learner, teacher
from targetopt import BadArgument
from targetopt import imitation as im
from targetopt.imitation.simulation.gather import make_copies
from targetopt.imitation.simulation.loop import LoopCopies
from targetopt.imitation.simulation.simulator import SimulatorCopies

RUNNERS = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Swimmer-v5"]


@pytest.mark.parametrize("name", RUNNERS)
def test_steps_equal_gymnasium_from_the_same_state_and_actions(name: str) -> None:
    """Through resets, falls and the time limit; our own loop over ``env.step`` is the reference."""
    environment = im.Environment(lambda: gymnasium.make(name, max_episode_steps=60))
    copies = make_copies(environment, 3, fast=True)
    assert isinstance(copies, SimulatorCopies)
    envs = [gymnasium.make(name, max_episode_steps=60) for _ in range(3)]
    rng = np.random.default_rng(0)
    seeds = iter(rng.integers(2**31, size=1000).tolist())
    ends = 0
    for copy, env in enumerate(envs):
        seed = next(seeds)
        copies.reset(copy, seed)
        np.testing.assert_array_equal(copies.observations[copy], env.reset(seed=seed)[0])
    for step in range(150):
        # sometimes only some of the copies, in any order
        ids = rng.permutation(3)[: 3 if step % 3 else 2]
        scale = 1.0 if step % 50 < 25 else 0.1
        actions = environment.clipped(
            scale * rng.standard_normal((len(ids), environment.action_size))
        )
        outcome = copies.step(ids, actions)
        for row, copy in enumerate(ids):
            seen, reward, terminated, truncated, _ = envs[copy].step(actions[row])
            np.testing.assert_allclose(copies.observations[copy], seen, rtol=0, atol=1e-9)
            assert outcome.rewards[row] == pytest.approx(float(reward), abs=1e-9)
            assert outcome.terminated[row] == terminated
            assert outcome.truncated[row] == truncated
            if outcome.ended[row]:
                ends += 1
                seed = next(seeds)
                copies.reset(int(copy), seed)
                envs[copy].reset(seed=seed)
    assert ends >= 3
    assert not outcome.failures


@pytest.mark.parametrize("name", ["Hopper-v5", "Walker2d-v5"])
def test_gathering_equals_the_plain_loop(name: str) -> None:
    """Whole rounds with a sampled learner: states, labels and finished episodes."""
    batches = {}
    for fast in (True, False):
        environment = im.Environment(name)
        expert = teacher(environment)
        gatherer = im.make_gatherer(environment, copies=5, seed=3, fast=fast, burn_in=30)
        behaviour = im.mixture("dagger").at(2, learner(environment), expert)
        batches[fast] = [gatherer.gather(123, behaviour, expert) for _ in range(4)]
        assert gatherer.interactions == 4 * 123
        assert gatherer.burn_in_steps == 6 + 12 + 18 + 24
    for ours, theirs in zip(batches[True], batches[False], strict=True):
        np.testing.assert_allclose(ours.states, theirs.states, rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours.labels, theirs.labels, rtol=0, atol=1e-9)
        np.testing.assert_allclose(ours.finished_returns, theirs.finished_returns, atol=1e-9)
        np.testing.assert_array_equal(ours.finished_lengths, theirs.finished_lengths)
    assert sum(len(batch.finished_returns) for batch in batches[True]) >= 4


def test_options_of_the_environment_are_honoured() -> None:
    def make() -> gymnasium.Env:  # type: ignore[type-arg]
        return gymnasium.make(
            "Hopper-v5",
            frame_skip=2,
            exclude_current_positions_from_observation=False,
            healthy_z_range=(1.0, 2.0),
            healthy_reward=0.25,
            ctrl_cost_weight=0.1,
            forward_reward_weight=2.0,
            terminate_when_unhealthy=False,
            max_episode_steps=7,
        )

    for fast in (True, False):
        evaluation = im.evaluate(lambda s: np.full((len(s), 3), 0.7), make, episodes=3, fast=fast)
        assert evaluation.lengths.tolist() == [7, 7, 7]
        if fast:
            ours = evaluation.returns
    np.testing.assert_allclose(ours, evaluation.returns, rtol=0, atol=1e-9)


def test_the_number_of_threads_changes_no_bit() -> None:
    states = []
    for threads in (1, 2):
        environment = im.Environment("Hopper-v5")
        expert = teacher(environment)
        gatherer = im.make_gatherer(environment, copies=6, seed=1, burn_in=0, threads=threads)
        behaviour = im.mixture("online").at(1, learner(environment), expert)
        states.append(gatherer.gather(300, behaviour, expert).states)
    np.testing.assert_array_equal(states[0], states[1])


def test_returns_agree_in_distribution_over_100_episodes() -> None:
    """Different seeds on both sides: means within four standard errors, spreads within a third."""
    environment = im.Environment("Hopper-v5")
    policy = learner(environment, seed=3)
    fast = im.evaluate(policy, environment, episodes=100, seed=1)
    plain = im.evaluate(policy, "Hopper-v5", episodes=100, seed=2, fast=False)
    error = np.hypot(fast.standard_error, plain.standard_error)
    assert abs(fast.mean - plain.mean) < 4 * error
    assert fast.std == pytest.approx(plain.std, rel=1 / 3)
    assert fast.lengths.mean() == pytest.approx(plain.lengths.mean(), rel=0.05)
    assert fast.std > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Hopper-v5", "Walker2d-v5"])
def test_the_expert_returns_the_same_on_both_paths(name: str) -> None:
    """100 whole episodes of the shipped expert a side, with different seeds."""
    expert = im.load_expert(name)
    fast = im.evaluate(expert, name, episodes=100, seed=11, fast=True)
    plain = im.evaluate(expert, name, episodes=100, seed=12, fast=False)
    error = np.hypot(fast.standard_error, plain.standard_error)
    assert abs(fast.mean - plain.mean) < 4 * error
    assert fast.lengths.mean() == pytest.approx(plain.lengths.mean(), rel=0.02)


def test_an_older_mujoco_takes_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco.batch", None)
    environment = im.Environment("Hopper-v5")
    assert type(make_copies(environment, 2, "auto")) is LoopCopies
    with pytest.raises(BadArgument, match=r"the installed mujoco has no mujoco.batch"):
        make_copies(environment, 2, fast=True)


def test_which_environments_take_the_fast_path() -> None:
    class Altered(HopperEnv):
        def step(self, action):  # type: ignore[no-untyped-def]
            return super().step(-action)

    def doubled() -> gymnasium.Env:  # type: ignore[type-arg]
        return gymnasium.wrappers.TransformReward(gymnasium.make("Hopper-v5"), lambda r: 2 * r)

    def path(env: im.simulation.environment.EnvLike) -> type:
        return type(make_copies(im.Environment(env), 2, "auto"))

    assert path("Hopper-v5") is SimulatorCopies
    assert path("Pendulum-v1") is LoopCopies
    assert path(Altered) is LoopCopies
    assert path(doubled) is LoopCopies
    with pytest.raises(BadArgument, match=r"fast=True.*wrapped in TransformReward.*fast='auto'"):
        make_copies(im.Environment(doubled), 2, fast=True)
    with pytest.raises(
        BadArgument, match=r"fast=True.*there is a fast path for HalfCheetah-v5, Hopper-v5"
    ):
        make_copies(im.Environment("Pendulum-v1"), 2, fast=True)


def test_one_instance_is_multiplied_on_the_fast_path_with_what_was_done_to_it() -> None:
    """A heavier hopper falls otherwise; the copies are of the instance, not of its name."""
    env = gymnasium.make("Hopper-v5")
    env.unwrapped.model.body_mass[:] *= 3.0  # type: ignore[attr-defined]
    still = lambda states: np.full((len(states), 3), 0.3)  # noqa: E731
    heavy = im.evaluate(still, env, episodes=4)
    light = im.evaluate(still, "Hopper-v5", episodes=4)
    plain = im.evaluate(still, env, episodes=4, fast=False)
    assert not np.allclose(heavy.returns, light.returns, atol=1e-3)
    np.testing.assert_allclose(heavy.returns, plain.returns, atol=1e-9)
