"""How fast exact policy steps converge, against theory: step by step where it is an identity, and in the limit."""

from collections.abc import Callable

import numpy as np
import pytest

import targetopt as to
from targetopt.distributions import Categorical, KLProximity
from targetopt.rl.tabular.mdp import MDP, Array

EXACT = to.LBFGS(max_steps=60, stopping=to.Stopping(gradient_tolerance=1e-13))


def bandit(*rewards: float) -> MDP:
    """One state, one step, one reward for each arm."""
    arms = len(rewards)
    return MDP(np.zeros((1, arms, 1)), np.array([rewards]), np.ones(1), 0.0, "bandit")


def spma(eta: float) -> Callable[[Categorical], to.rl.PolicyStep]:
    return lambda family: to.rl.PolicyStep(
        family, to.rl.LogRatio(), KLProximity(family), to.rl.ConstantStep(eta)
    )


def fma(eta: float) -> Callable[[Categorical], to.rl.PolicyStep]:
    return lambda family: to.rl.PolicyStep(
        family, to.rl.Linear(), KLProximity(family), to.rl.ConstantStep(eta)
    )


def mdpo(eta: float) -> Callable[[Categorical], to.rl.PolicyStep]:
    return lambda family: to.rl.PolicyStep(
        family, to.rl.Ratio(), KLProximity(family, reverse=True), to.rl.ConstantStep(eta)
    )


def gradient(eta: float) -> Callable[[Categorical], to.rl.PolicyStep]:
    return lambda family: to.rl.PolicyStep(
        family, to.rl.Linear(), to.SquaredEuclidean(), to.rl.ConstantStep(eta)
    )


def gaps(world: MDP, rule: Callable[[Categorical], to.rl.PolicyStep], iterations: int) -> Array:
    found = to.rl.solve(world, rule, iterations=iterations, inner=EXACT)
    return world.best_value() - found.values


@pytest.mark.parametrize("rule", [spma, fma], ids=["spma", "fma-pg"])
def test_two_arms_contract_by_the_share_that_theory_says(
    rule: Callable[[float], Callable[[Categorical], to.rl.PolicyStep]],
) -> None:
    """π ← π(1 + ηA) gives δ_{t+1} = δ_t (1 − ηΔ π_t(a*)): a linear rate, step by step, for both surrogates."""
    eta, gap = 0.5, 0.8
    found = gaps(bandit(0.1, 0.9), rule(eta), 15)
    best = 1.0 - found / gap
    np.testing.assert_allclose(found[1:], found[:-1] * (1 - eta * gap * best[:-1]), rtol=1e-6)
    assert found[-1] / found[-2] == pytest.approx(1 - eta * gap, rel=2e-3)


@pytest.mark.parametrize(
    ("rule", "rate"),
    [(spma(0.6), lambda gap: 1 - 0.6 * gap), (mdpo(0.8), lambda gap: np.exp(-0.8 * gap))],
    ids=["spma", "mdpo"],
)
def test_many_arms_converge_at_the_rate_of_the_second_best(
    rule: Callable[[Categorical], to.rl.PolicyStep], rate: Callable[[float], float]
) -> None:
    """In the limit by 1 − ηΔ_min with the mirror map of SPMA, by exp(−ηΔ_min) with π ← π exp(ηA)."""
    found = gaps(bandit(1.0, 0.6, 0.3, -0.5, 0.0), rule, 40)
    assert (np.diff(found) < 0).all()
    assert found[-1] / found[-2] == pytest.approx(rate(0.4), rel=2e-3)


def test_the_policy_gradient_is_slower_than_any_linear_rate() -> None:
    """Softmax policy gradient on two arms: t δ_t → 1/(2η), which mirror ascent beats by orders of magnitude."""
    found = gaps(bandit(1.0, 0.0), gradient(1.0), 200)
    at = np.arange(len(found))
    assert at[-1] * found[-1] == pytest.approx(0.5, rel=0.05)
    assert abs(at[-1] * found[-1] - 0.5) < abs(at[50] * found[50] - 0.5)
    assert gaps(bandit(1.0, 0.0), spma(1.0), 8)[-1] < 0.1 * found[-1]


@pytest.mark.parametrize(
    ("world", "eta"),
    [(to.rl.cliff_world(3, 4, fall=5.0), 0.08), (to.rl.deep_sea(3), 0.9)],
    ids=["cliff world", "deep sea"],
)
def test_every_step_of_spma_improves_by_what_theory_says(world: MDP, eta: float) -> None:
    """J(π_{t+1}) − J(π_t) = η Σ_s d_{t+1}(s) Σ_a π_t(a|s) A_t(s, a)² ≥ 0, for η ≤ 1/max|A|."""
    policy = np.full((world.states, world.actions), 1 / world.actions)
    for steps in range(1, 5):
        found = to.rl.solve(world, spma(eta), iterations=steps, inner=EXACT)
        before = found.values[-2]
        advantages, occupancy = world.advantages(policy), world.occupancy(found.policy)
        assert eta * np.abs(advantages).max() <= 1.0
        promised = eta * float(occupancy @ (policy * advantages**2).sum(axis=1))
        assert found.values[-1] - before == pytest.approx(promised, rel=1e-6)
        assert promised > 0
        policy = found.policy


def test_spma_in_a_sea_converges_at_the_rate_of_its_smallest_gap() -> None:
    """In the limit by 1 − η min |A*(s, a)| over the states of the best way and the actions that leave it."""
    world, eta = to.rl.deep_sea(3), 0.5
    best = world.best_policy()
    visited = world.occupancy(best) > 0
    leaving = np.where(best > 0.5, np.inf, -world.advantages(best))[visited]
    found = gaps(world, spma(eta), 18)
    assert found[-1] / found[-2] == pytest.approx(1 - eta * leaving.min(), rel=0.01)
