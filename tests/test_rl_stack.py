"""Several seeds side by side: the bits of each by itself, whatever happens to the others."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import targetopt as to
from targetopt.distributions import Categorical, Family, Gaussian, KLProximity
from targetopt.imitation import EnvironmentFailed
from targetopt.rl.networks import Actor, Critic
from targetopt.rl.stack import Meeting, Perceptrons, Rows
from targetopt.rl.surrogates import PolicySurrogate, Visits

SEEDS = [0, 3, 4]


def same(a: to.rl.Result, b: to.rl.Result) -> bool:
    """Bit by bit: weights, episodes, counts, and every number of every update but times."""

    def told(result: to.rl.Result) -> list[str]:
        timeless = [
            {name: value for name, value in asdict(u).items() if not name.endswith("_time")}
            for u in result.history
        ]
        return [repr(each) for each in timeless]  # nan is nan

    pairs = zip(a.policy.actor.parameters(), b.policy.actor.parameters(), strict=True)
    return (
        all(torch.equal(p, q) for p, q in pairs)
        and np.array_equal(a.episodes, b.episodes)
        and a.counts == b.counts
        and told(a) == told(b)
    )


# -- networks ---------------------------------------------------------------------------------------------


def _actor(family: Family) -> Callable[..., Actor]:
    return lambda inputs, **more: Actor(inputs, family, **more)


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("hidden", [(64, 64), (8,), (2,), (33, 20)], ids=str)
@pytest.mark.parametrize(
    "made",
    [_actor(Categorical(2)), _actor(Gaussian(3)), _actor(Gaussian(1)), Critic],
    ids=["choices", "gaussian", "one action", "critic"],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
def test_a_stack_has_the_bits_of_each_network(
    made: Callable[..., Any], hidden: tuple[int, ...], rows: int, kind: torch.dtype
) -> None:
    """Targets and derivatives, against autograd through each network alone."""
    activation = "tanh" if rows % 2 else "relu"
    for count in (1, 4):
        nets = [
            made(11, hidden=hidden, activation=activation, seed=s, dtype=kind) for s in range(count)
        ]
        params = [[p for p in net.parameters() if p.requires_grad] for net in nets]
        stack = Perceptrons(nets, params)
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(count, rows, 11, generator=generator, dtype=kind)
        z = stack.forward(x)
        v = torch.randn(z.shape, generator=generator, dtype=kind)
        stack.pull(v)
        for i, net in enumerate(nets):
            own = slice(i * rows, (i + 1) * rows)
            alone = net(x[i].clone())  # in memory of its own
            assert torch.equal(z[own], alone)
            for g, found in zip(
                torch.autograd.grad(alone, params[i], v[own].clone()), stack.gradients, strict=True
            ):
                assert torch.equal(found[i], g)


def test_surrogates_beside_each_other_have_the_gradients_of_each() -> None:
    """With an η for every row; and one is none where the formulas differ."""
    family = Gaussian(2)
    parts = []
    for seed, eta in enumerate((0.1, 0.7, 0.1)):
        generator = torch.Generator().manual_seed(seed)
        anchor = torch.randn(5, family.size, generator=generator)
        actions = torch.randn(5, 2, generator=generator)
        visits = Visits.of(family, anchor, actions, torch.randn(5, generator=generator))
        parts.append(PolicySurrogate(visits, to.rl.Ratio(), KLProximity(family), eta, 0.01))
    joined = parts[0].beside(parts[1:])
    assert joined is not None
    z = torch.cat([q.anchor + 0.3 for q in parts])
    v = torch.ones_like(z)
    gradients, curvatures = joined.gradient(z).split(5), joined.curvature_product(z, v).split(5)
    for q, at, g, h in zip(parts, z.split(5), gradients, curvatures, strict=True):
        assert torch.equal(q.gradient(at), g)
        torch.testing.assert_close(q.curvature_product(at, v[:5]), h)
    torch.testing.assert_close(
        joined.value(z),
        torch.stack([q.value(at) for q, at in zip(parts, z.split(5), strict=True)]).mean(),
    )
    assert torch.equal(joined.rows(slice(5, 10)).gradient(z[5:10]), gradients[1])
    other = PolicySurrogate(parts[0].visits, to.rl.LogRatio(), KLProximity(family), 0.1)
    assert parts[0].beside([other]) is None


# -- training ---------------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "preset": "ppo", "batch": 256, "steps": 512},
    "ragged": {
        "env": "Hopper-v5",
        "preset": "mdpo",
        "batch": 260,
        "copies": 4,
        "steps": 520,
        "entropy": 0.01,
        "inner": to.rl.minibatch_adam(epochs=2),
    },
    "held": {  # some seeds solve again, some are refused and have younger optimisers afterwards
        "env": "CartPole-v1",
        "preset": "sso",
        "batch": 256,
        "steps": 1024,
        "inner": to.rl.minibatch_adam(lr=3e-3, epochs=2),
        "step": to.rl.HeldKL(2e-3, tries=2),
    },
    "trpo": {"env": "CartPole-v1", "preset": "trpo", "batch": 256, "steps": 512},
}


@pytest.mark.filterwarnings("ignore::targetopt.rl.RefusedStep")
@pytest.mark.parametrize("case", CASES)
def test_seeds_side_by_side_have_the_bits_of_each_alone(case: str) -> None:
    options = {**CASES[case], "progress": False}
    many = to.rl.train_many(seeds=SEEDS, **options)
    alone = [to.rl.train(seed=seed, **options) for seed in SEEDS]
    assert all(same(a, b) for a, b in zip(many, alone, strict=True))
    assert not same(many[0], many[1])
    if case == "held":
        kinds = {tuple((u.solves, u.refused) for u in result.history) for result in many}
        assert len(kinds) > 1
        assert any(u.refused for result in many for u in result.history)


@pytest.mark.parametrize("case", ["ppo", "ragged"])
def test_the_written_out_solver_has_the_bits_of_autograd(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**CASES[case], "progress": False, "seed": 2}
    ours = to.rl.train(**options)
    monkeypatch.setattr(Rows, "solver_for", lambda self, inner, surrogate, params: None)
    assert same(ours, to.rl.train(**options))


def test_a_seed_goes_on_alone_and_alone_goes_on_in_the_stack(tmp_path: Path) -> None:
    """The files of a stack are those of single runs, in both directions."""
    options = {"batch": 128, "copies": 4, "preset": "ppo", "progress": False}
    whole = to.rl.train_many("CartPole-v1", steps=512, seeds=[1, 2], **options)
    to.rl.train_many("CartPole-v1", steps=128, seeds=[1, 2], checkpoint=tmp_path, **options)
    file = tmp_path / "seed-1.pt"
    to.rl.train("CartPole-v1", steps=384, seed=1, checkpoint=file, **options)
    # seed 1 is two updates ahead of seed 2 now
    found = to.rl.train_many("CartPole-v1", steps=512, seeds=[2, 1], checkpoint=tmp_path, **options)
    assert same(found[0], whole[1])
    assert same(found[1], whole[0])


class Fragile(gymnasium.Env):  # type: ignore[misc]
    """Raises in the step after the hundredth, in the first copies that are made."""

    made = 0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.number = Fragile.made
        Fragile.made += 1
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.number <= 1 and self.steps > 100:
            raise RuntimeError("a wheel came off")
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, float(seen[action]), bool(seen[0] > 0.9), False, {}


def test_a_seed_that_fails_does_not_keep_the_others() -> None:
    Fragile.made = 0
    options = {"steps": 512, "batch": 128, "copies": 2, "preset": "ppo", "progress": False}
    with pytest.raises(
        to.rl.SeedsFailed, match=r"1 of 3 seeds failed: 0.*a wheel came off"
    ) as failed:
        to.rl.train_many(Fragile, seeds=[0, 1, 2], **options)
    assert set(failed.value.errors) == {0}
    assert isinstance(failed.value.errors[0], EnvironmentFailed)
    interactions = [r.history[-1].interactions for r in failed.value.results.values()]
    assert interactions == [128, 512, 512]
    Fragile.made = 2  # nothing breaks
    assert same(failed.value.results[2], to.rl.train(Fragile, seed=2, **options))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": []}, "seeds=.* must be different"),
        ({"seeds": [1, 1]}, "must be different"),
        ({"seeds": [-1]}, "seeds=-1"),
        ({"steps": 0}, "steps=0"),
        ({"preset": "a3c"}, "preset='a3c'"),
        ({"env": gymnasium.make("CartPole-v1")}, "every seed needs copies of its own"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(options: dict[str, Any], said: str) -> None:
    given = {"env": "CartPole-v1", "steps": 64, "seeds": [0, 1], "progress": False, **options}
    with pytest.raises(to.BadArgument, match=said):
        to.rl.train_many(**given)


# -- meetings ---------------------------------------------------------------------------------------------


def test_a_meeting_serves_all_that_ask_at_once() -> None:
    served: list[list[int]] = []

    def serve(asked: list[int]) -> list[int]:
        served.append(asked)
        return [10 * n for n in asked]

    meeting: Meeting[int, int] = Meeting(serve)

    def twice() -> int:
        return meeting.ask(meeting.ask(1))

    def failing() -> int:
        meeting.ask(3)
        raise ValueError("mine")

    found = meeting.run([twice, lambda: meeting.ask(2), failing, lambda: 7])
    assert found[:2] == [100, 20]
    assert str(found[2]) == "mine"
    assert found[3] == 7
    assert served == [[1, 2, 3], [10]]


@pytest.mark.parametrize("struck", [ValueError, KeyboardInterrupt])
def test_whoever_waits_unwinds_when_it_cannot_be_served(struck: type[BaseException]) -> None:
    """An error goes to all that asked; an interrupt ends the meeting, after everybody has cleaned up."""

    def serve(asked: list[int]) -> list[int]:
        raise struck("no")

    meeting: Meeting[int, int] = Meeting(serve)
    cleaned: list[int] = []

    def call(n: int) -> int:
        try:
            return meeting.ask(n)
        finally:
            cleaned.append(n)

    calls = [lambda: call(0), lambda: call(1)]
    if struck is ValueError:
        assert [type(each) for each in meeting.run(calls)] == [ValueError, ValueError]
    else:
        with pytest.raises(KeyboardInterrupt):
            meeting.run(calls)
    assert sorted(cleaned) == [0, 1]
