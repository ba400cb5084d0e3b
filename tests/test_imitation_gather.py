"""Gathering: rounds, staggering, failures that lose nothing, and bitwise continuation."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imitation_parts import PointMass, learner, spring, teacher
from targetopt import BadAnswer, BadArgument
from targetopt import imitation as im
from targetopt.imitation.policies.network import Array


def wander(states: Array, rng: np.random.Generator) -> Array:
    return rng.uniform(-1, 1, (len(states), 1))


def points(**options: Any) -> im.Gatherer:
    return im.make_gatherer(PointMass, **options)


@settings(max_examples=25, deadline=None)
@given(
    copies=st.integers(1, 6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    seed=st.integers(0, 2**64 - 1),
)
def test_rounds_of_any_size_share_the_copies_fairly(
    copies: int, sizes: list[int], seed: int
) -> None:
    """Whatever the sizes, no copy is more than one step ahead, and no state is lost between rounds."""
    gatherer = points(copies=copies, seed=seed, burn_in=0)
    batches = [gatherer.gather(n, wander, spring) for n in sizes]
    assert [len(batch.states) for batch in batches] == sizes
    for batch in batches:
        np.testing.assert_array_equal(batch.labels, spring(batch.states))
    steps = [env.steps_ever for env in gatherer.copies.envs]  # type: ignore[attr-defined]
    assert sum(steps) == sum(sizes) == gatherer.interactions
    assert max(steps) - min(steps) <= 1


def test_a_copy_visits_what_gymnasium_shows() -> None:
    """One copy, no burn-in: the batch is the plain record of one environment."""
    gatherer = points(copies=1, seed=5)
    batch = gatherer.gather(100, wander, spring)
    env, noise = PointMass(), np.random.default_rng([5, 0])
    seeds = np.random.default_rng([5, 1, 0])
    visited, returns, lengths = [], [], []
    state, _ = env.reset(seed=int(seeds.integers(2**31)))
    total = steps = 0.0
    for _ in range(100):
        visited.append(state)
        action = noise.uniform(-1, 1, (1, 1))[0].astype(np.float32)
        state, reward, terminated, truncated, _ = env.step(action)
        total, steps = total + reward, steps + 1
        if terminated or truncated:
            returns.append(total)
            lengths.append(steps)
            total = steps = 0.0
            state, _ = env.reset(seed=int(seeds.integers(2**31)))
    np.testing.assert_array_equal(batch.states, visited)
    np.testing.assert_array_equal(batch.finished_returns, returns)
    np.testing.assert_array_equal(batch.finished_lengths, lengths)
    assert len(returns) >= 3


def test_staggered_copies_are_at_all_stages_of_an_episode() -> None:
    """HalfCheetah never falls: without a burn-in all copies would end in the same step."""

    def make() -> gymnasium.Env:  # type: ignore[type-arg]
        return gymnasium.make("HalfCheetah-v5", max_episode_steps=40)

    def push(states: Array, rng: np.random.Generator) -> Array:
        return np.zeros((len(states), 6))

    expert = lambda states: np.zeros((len(states), 6))  # noqa: E731
    gatherer = im.make_gatherer(make, copies=8, seed=0)
    ended = [len(gatherer.gather(8 * 5, push, expert).finished_returns) for _ in range(16)]
    assert gatherer.burn_in_steps == sum(range(0, 40, 5))
    assert ended == [1] * 16  # every round sees one copy end: rounds do not cycle
    together = im.make_gatherer(make, copies=8, seed=0, burn_in=0)
    ended = [len(together.gather(8 * 5, push, expert).finished_returns) for _ in range(16)]
    assert ended == ([0] * 7 + [8]) * 2


def test_whole_episodes_are_shown_by_so_few_copies_that_they_come_to_their_end() -> None:
    """Episodes of 30 steps: 60 states are two of them; and then all copies are driven apart."""

    def limited() -> gymnasium.Env:  # type: ignore[type-arg]
        return gymnasium.wrappers.TimeLimit(PointMass(), 30)

    drive = im.noisy(spring)  # which never goes far out
    gatherer = im.make_gatherer(limited, copies=3, seed=1)
    batch = gatherer.gather(60, drive, spring, whole=True)
    steps = lambda: [env.unwrapped.steps_ever for env in gatherer.copies.envs]  # type: ignore[attr-defined]  # noqa: E731
    assert batch.finished_lengths.tolist() == [30, 30]
    assert (steps(), gatherer.burn_in_steps) == ([30, 30, 0], 0)
    gatherer.gather(9, drive, spring)  # staggered by 0, 10 and 20 steps first
    assert (steps(), gatherer.burn_in_steps) == ([33, 43, 23], 30)
    short = im.make_gatherer(limited, copies=3, seed=1)
    assert (
        len(short.gather(20, drive, spring, whole=True).states) == 20
    )  # less than an episode: of one copy
    unlimited = points(copies=3, seed=1)
    unlimited.gather(60, drive, spring, whole=True)
    assert [env.steps_ever for env in unlimited.copies.envs] == [20, 20, 20]  # type: ignore[attr-defined]


@pytest.mark.parametrize("fast", [True, False])
def test_seeds_reproduce_bitwise_and_differ(fast: bool) -> None:
    def run(seed: int) -> Array:
        environment = im.Environment("Hopper-v5")
        gatherer = im.make_gatherer(environment, copies=4, seed=seed, fast=fast, burn_in=8)
        expert = teacher(environment)
        behaviour = im.mixture("online").at(1, learner(environment), expert)
        return gatherer.gather(100, behaviour, expert).states

    np.testing.assert_array_equal(run(1), run(1))
    assert not np.array_equal(run(1), run(2))


@pytest.mark.parametrize("env", ["Hopper-v5", PointMass])
@pytest.mark.parametrize("burnt", [True, False])
def test_a_saved_gatherer_goes_on_bitwise(env: Any, burnt: bool) -> None:
    """In the fast path by the simulator's state, in the plain one by playing episodes again."""
    environment = im.Environment(env)
    expert = teacher(environment)
    behaviour = im.mixture("dagger").at(2, learner(environment), expert)
    first = im.make_gatherer(environment, copies=3, seed=1, burn_in=25)
    if burnt:
        first.gather(50, behaviour, expert)
    state = first.state_dict()
    expected = [first.gather(70, behaviour, expert) for _ in range(2)]
    again = im.make_gatherer(env, copies=3, seed=99, burn_in=0)
    again.load_state_dict(state)
    for batch in expected:
        other = again.gather(70, behaviour, expert)
        np.testing.assert_array_equal(other.states, batch.states)
        np.testing.assert_array_equal(other.finished_returns, batch.finished_returns)
    assert again.interactions == first.interactions
    assert again.burn_in_steps == first.burn_in_steps
    with pytest.raises(BadArgument, match="3 copies, the gatherer has 2"):
        im.make_gatherer(env, copies=2).load_state_dict(state)


def test_an_environment_that_does_not_obey_its_seed_cannot_be_resumed() -> None:
    class Moody(PointMass):
        moods = iter(np.linspace(0, 1, 1000))

        def step(self, action: Array) -> Any:
            self.state[0] += next(self.moods)
            return super().step(action)

    gatherer = im.make_gatherer(Moody, copies=2, burn_in=0)
    gatherer.gather(10, wander, spring)
    state = gatherer.state_dict()
    with pytest.raises(im.EnvironmentFailed, match="'Moody' did not repeat the episode of copy 0"):
        im.make_gatherer(Moody, copies=2).load_state_dict(state)


@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_failure_in_mid_round_loses_nothing(how: str) -> None:
    """The second of three copies fails at its fifth step; the round goes on where it was."""
    made: list[PointMass] = []

    def make() -> PointMass:
        made.append(PointMass(fail_at=5 if len(made) == 2 else None, how=how))
        return made[-1]

    gatherer = im.make_gatherer(make, copies=3, seed=4, burn_in=0)
    kept = gatherer.gather(6, wander, spring)
    message = {
        "raise": r"'PointMass', copy 1: step\(.*\) raised RuntimeError\(\"the simulator's licence expired\"\)",
        "nan": r"'PointMass', copy 1: its observation is not finite at entries \[0\]",
    }[how]
    with pytest.raises(
        im.EnvironmentFailed, match=f"{message}.*The 9 states of this round are kept"
    ):
        gatherer.gather(30, wander, spring)
    state = gatherer.state_dict()
    batch = gatherer.gather(30, wander, spring)
    assert gatherer.interactions == 36
    assert [env.steps_ever for env in made[1:]] == [12, 12, 12]
    # the same states as without the failure, up to and including the step that failed
    smooth = points(copies=3, seed=4, burn_in=0)
    np.testing.assert_array_equal(smooth.gather(6, wander, spring).states, kept.states)
    whole = smooth.gather(30, wander, spring)
    np.testing.assert_array_equal(batch.states[:9], whole.states[:9])
    assert not np.array_equal(batch.states[10], whole.states[10])  # copy 1 began anew
    np.testing.assert_array_equal(batch.states[9::3], whole.states[9::3])  # the others did not
    np.testing.assert_array_equal(batch.states[11::3], whole.states[11::3])
    # and an unfinished round can be saved
    other = points(copies=3, seed=0, burn_in=0)
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.gather(30, wander, spring).states, batch.states)


def test_an_expert_that_raises_while_driving_loses_no_state() -> None:
    """Cloning: the expert acts, and fails once in mid-round; no state is visited twice."""
    calls = 0

    def tired(states: Array) -> Array:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise TimeoutError("the expert is asleep")
        return spring(states)

    gatherer = points(copies=2, seed=1, burn_in=0)
    with pytest.raises(TimeoutError):
        gatherer.gather(20, im.noisy(tired), spring)
    batch = gatherer.gather(20, im.noisy(tired), spring)
    smooth = points(copies=2, seed=1, burn_in=0)
    np.testing.assert_array_equal(batch.states, smooth.gather(20, im.noisy(spring), spring).states)


def test_an_expert_that_raises_loses_no_state() -> None:
    gatherer = points(copies=2, seed=1, burn_in=0)

    def absent(states: Array) -> Array:
        raise TimeoutError("the expert is asleep")

    with pytest.raises(TimeoutError):
        gatherer.gather(10, wander, absent)
    batch = gatherer.gather(10, wander, spring)
    assert gatherer.interactions == 10
    np.testing.assert_array_equal(
        batch.states, points(copies=2, seed=1, burn_in=0).gather(10, wander, spring).states
    )
    with pytest.raises(TimeoutError):
        gatherer.gather(10, wander, absent)
    rounds = [gatherer.gather(n, wander, spring).states for n in (4, 6)]  # shorter ones, then
    assert gatherer.interactions == 20
    assert [len(states) for states in rounds] == [4, 6]


def test_answers_of_the_wrong_shape_are_refused() -> None:
    gatherer = points(copies=2)
    with pytest.raises(BadAnswer, match=r"expert.*shape \(4, 1\) for 'PointMass'.*got \(4, 3\)"):
        gatherer.gather(4, wander, lambda states: np.zeros((len(states), 3)))
    with pytest.raises(BadAnswer, match="not finite in 4 of 4 rows"):
        gatherer.gather(4, wander, lambda states: np.full((len(states), 1), np.nan))
    with pytest.raises(BadAnswer, match=r"actions of shape \(2, 2\) for 2 states"):
        gatherer.gather(9, lambda s, rng: np.zeros((len(s), 2)), spring)
    with pytest.raises(BadAnswer, match="actions that are not finite"):
        gatherer.gather(9, lambda s, rng: np.full((len(s), 1), np.nan), spring)
    assert gatherer.interactions == 4  # of the rounds that failed at the label, then nothing
    with pytest.raises(BadArgument, match="n=0"):
        gatherer.gather(0, wander, spring)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed=-1 must be a whole number, at least 0"),
        ({"burn_in": -5}, "burn_in=-5"),
        ({"copies": 0}, "copies=0"),
        ({"fast": "maybe"}, "fast='maybe' must be True, False or 'auto'"),
    ],
)
def test_gatherers_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        points(**options)


def test_an_instance_has_no_copies() -> None:
    env = PointMass()
    assert im.make_gatherer(env).copies.count == 1
    with pytest.raises(BadArgument, match="copies=4: env='PointMass' was passed as one instance"):
        im.make_gatherer(env, copies=4)


class Grid(PointMass):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2, 2))


class Words(PointMass):
    observation_space = gymnasium.spaces.Text(5)  # type: ignore[assignment]


class Nested(PointMass):
    observation_space = gymnasium.spaces.Dict({"x": gymnasium.spaces.Dict({})})  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Grid, "action space Box.*1-D Box, Discrete or 1-D MultiDiscrete.*ActionWrapper"),
        (Words, "observation space Text.*FlattenObservation"),
        (Nested, "observation space Dict.*FlattenObservation"),
        ("Hoper-v5", "env='Hoper-v5' cannot be made"),
        (3, "env=3 must be a Gymnasium id"),
        (lambda: 3, "must make a gymnasium.Env or a vector environment; it made int"),
    ],
)
def test_environments_that_do_not_fit(env: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        im.Environment(env)


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_an_environment_of_a_version_given_up() -> None:
    with pytest.raises(BadArgument, match=r"'Hopper-v3' cannot be made.*v"):
        im.Environment("Hopper-v3")


def test_a_seed_of_numpy_is_a_seed() -> None:
    def states(seed: Any) -> Any:
        gatherer = im.make_gatherer("Pendulum-v1", copies=2, seed=seed, burn_in=0)
        return gatherer.gather(10, still, still).states

    def still(states: Any, rng: Any = None, /) -> Any:
        return np.zeros((len(states), 1))

    np.testing.assert_array_equal(states(np.int64(3)), states(3))


def test_evaluating_closes_what_it_made() -> None:
    closed = []

    class Counted(gymnasium.Wrapper):  # type: ignore[type-arg]
        def close(self) -> None:
            closed.append(self)
            super().close()

    made = []

    def make() -> Any:
        made.append(Counted(gymnasium.make("Pendulum-v1", max_episode_steps=5)))
        return made[-1]

    im.evaluate(lambda states: np.zeros((len(states), 1)), make, episodes=3)
    assert {id(env) for env in closed} == {id(env) for env in made}
