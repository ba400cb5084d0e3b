"""What theory promises of policy steps: gradients, equal first steps, and exact runs in solved worlds."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import targetopt as to
from targetopt.distributions import Categorical, Family, Gaussian, KLProximity, MultiDiscrete
from targetopt.divergence import Divergence
from targetopt.rl.surrogates import PolicySurrogate, Term, Visits
from targetopt.rl.tabular import exact_oracle

FAMILIES = [Categorical(4), MultiDiscrete((2, 3)), Gaussian(3), Gaussian(2, std=0.7)]
TERMS = [to.rl.Linear(), to.rl.Ratio(), to.rl.LogRatio(), to.rl.Clipped(0.2)]
DIVERGENCES = [None, "euclidean", "forward", "reverse"]


def divergence_of(name: str | None, family: Family) -> Divergence | None:
    if name is None:
        return None
    if name == "euclidean":
        return to.SquaredEuclidean()
    return KLProximity(family, reverse=name == "reverse")


def visits_of(family: Family, rows: int = 7, seed: int = 0, weighted: bool = True) -> Visits:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    anchor = 0.5 * normal(rows, family.size)
    actions = family.from_targets(anchor).sample(generator)
    weights = normal(rows).abs() if weighted else None
    return Visits.of(family, anchor, actions, normal(rows), weights)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("term", TERMS, ids=repr)
@pytest.mark.parametrize("held_by", DIVERGENCES)
def test_the_gradient_at_the_visited_policy_is_the_policy_gradient(
    family: Family, term: Term, held_by: str | None
) -> None:
    """∇q(z_t) = −w A ∇ log π_t(a), by autograd of the log-probability itself."""
    seen = visits_of(family)
    q = PolicySurrogate(seen, term, divergence_of(held_by, family), eta=0.3)
    z = seen.anchor.clone().requires_grad_()
    drawn = torch.Generator().manual_seed(0)
    anchor_again = 0.5 * torch.randn(7, family.size, generator=drawn, dtype=torch.float64)
    actions = family.from_targets(anchor_again).sample(drawn)
    log_prob = family.from_targets(z).log_prob(actions)
    assert seen.weights is not None
    (score,) = torch.autograd.grad((seen.weights * seen.advantages * log_prob).sum(), z)
    torch.testing.assert_close(q.gradient(seen.anchor), -score, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("term", TERMS, ids=repr)
@pytest.mark.parametrize("held_by", DIVERGENCES)
def test_gradients_are_those_of_the_values(family: Family, term: Term, held_by: str | None) -> None:
    """Away from z_t: central differences of the value, the entropy included; and changes are differences."""
    seen = visits_of(family)
    q = PolicySurrogate(seen, term, divergence_of(held_by, family), eta=0.3, entropy=0.1)
    generator = torch.Generator().manual_seed(5)
    z = seen.anchor + 0.3 * torch.randn(seen.anchor.shape, generator=generator, dtype=torch.float64)
    d = torch.randn(z.shape, generator=generator, dtype=torch.float64)
    h = 1e-5
    slope = float((q.gradient(z) * d).sum() / len(z))
    assert slope == pytest.approx(
        float(q.value(z + h * d) - q.value(z - h * d)) / (2 * h), rel=1e-6
    )
    change = q.change(z, z + d, q.gradient(z))
    torch.testing.assert_close(change, q.value(z + d) - q.value(z), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("held_by", ["euclidean", "forward", "reverse"])
def test_curvature_is_that_of_the_divergence(family: Family, held_by: str) -> None:
    seen = visits_of(family)
    divergence = divergence_of(held_by, family)
    assert divergence is not None
    q = PolicySurrogate(seen, to.rl.Linear(), divergence, eta=0.3)
    z = seen.anchor.clone()
    v = torch.randn(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    h = 1e-6
    difference = (q.gradient(z + h * v) - q.gradient(z - h * v)) / (2 * h)
    torch.testing.assert_close(q.curvature_product(z, v), difference, rtol=1e-6, atol=1e-7)
    assert float((q.curvature_product(z, v) * v).sum()) >= -1e-12


@pytest.mark.parametrize("term", TERMS, ids=repr)
def test_rows_of_a_surrogate_are_its_rows(term: Term) -> None:
    """A mini-batch's gradient is that of the whole on these rows, and their means add up to the whole's."""
    family = Gaussian(2)
    seen = visits_of(family, rows=6)
    q = PolicySurrogate(seen, term, KLProximity(family), eta=0.5, entropy=0.2)
    z = seen.anchor + 0.1
    halves = [torch.tensor([0, 2, 4]), torch.tensor([5, 3, 1])]
    for half in halves:
        torch.testing.assert_close(q.rows(half).gradient(z[half]), q.gradient(z)[half])
    mean = sum(q.rows(half).value(z[half]) for half in halves) / 2
    torch.testing.assert_close(mean, q.value(z))


def _first_step(term: Term, held_by: str | None) -> Tensor:
    """One gradient step of size 0.1 on a linear policy, from one batch."""
    family = Categorical(3)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    actions = torch.randint(3, (20,), generator=generator)
    gains = torch.randn(20, generator=generator, dtype=torch.float64)
    step = to.rl.ConstantStep(0.7)
    rule = to.rl.PolicyStep(family, term, divergence_of(held_by, family), step)
    inner = to.GradientDescent(step_size=0.1, max_steps=1)
    opt = to.SSO([weights], rule=rule, inner=inner)
    opt.step(lambda: x @ weights, to.rl.PolicyOracle(family, actions, gains))
    return weights.detach()


def test_with_one_inner_step_all_surrogates_make_the_same_step() -> None:
    """m = 1: a plain policy-gradient step, whatever is promised away from z_t and whatever holds it."""
    reference = _first_step(to.rl.Ratio(), "forward")
    assert float(reference.abs().max()) > 1e-3
    for term in TERMS:
        for held_by in DIVERGENCES:
            if isinstance(term, to.rl.Linear) and held_by is None:
                continue
            torch.testing.assert_close(_first_step(term, held_by), reference, rtol=0, atol=1e-15)


def test_linear_with_kl_is_mirror_descent() -> None:
    """The cell of the grid and the core's own rule are the same step."""
    family = Categorical(3)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64)
    actions = torch.randint(3, (20,), generator=generator)
    gains = torch.randn(20, generator=generator, dtype=torch.float64)
    found = []
    for rule in (
        to.rl.PolicyStep(family, to.rl.Linear(), KLProximity(family), to.rl.ConstantStep(0.7)),
        to.MirrorDescent(KLProximity(family)),
    ):
        weights = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
        lr = 0.7 if isinstance(rule, to.MirrorDescent) else None
        opt = to.SSO([weights], lr=lr, rule=rule, inner=to.LBFGS(max_steps=30))
        report = opt.step(lambda w=weights: x @ w, to.rl.PolicyOracle(family, actions, gains))  # type: ignore[misc]
        found.append(weights.detach())
        assert np.isnan(report.loss)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-7)


# -- solved worlds ---------------------------------------------------------------------------------------

WORLDS = [to.rl.cliff_world(3, 4, fall=5.0), to.rl.deep_sea(4)]
ENOUGH = to.LBFGS(max_steps=15, stopping=to.Stopping(gradient_tolerance=1e-6))


def rule_of(term: Term, held_by: str, eta: float) -> Callable[[Categorical], to.rl.PolicyStep]:
    return lambda family: to.rl.PolicyStep(
        family, term, divergence_of(held_by, family), to.rl.ConstantStep(eta)
    )


@pytest.mark.parametrize("world", WORLDS, ids=lambda w: w.name)
def test_the_exact_oracle_has_the_gradient_of_the_value(world: to.rl.MDP) -> None:
    """Σ over the rows of weight × gradient is −∂J/∂logits, by finite differences of the solved values."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(world.states, world.actions))

    def policy_of(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    oracle, states = exact_oracle(world, policy_of(logits))
    point = oracle.query(torch.from_numpy(logits)[states])
    rows = point.weighted(point.gradients) / len(states)
    total = torch.zeros(world.states, world.actions, dtype=torch.float64)
    total.index_add_(0, states, rows)
    d, h = generator.normal(size=logits.shape), 1e-6
    up, down = world.value(policy_of(logits + h * d)), world.value(policy_of(logits - h * d))
    assert -float((total.numpy() * d).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("world", WORLDS, ids=lambda w: w.name)
@pytest.mark.parametrize("held_by", ["forward", "reverse"])
@pytest.mark.parametrize("term", TERMS[:3], ids=repr)
def test_small_steps_improve_the_policy_every_time(
    world: to.rl.MDP, held_by: str, term: Term
) -> None:
    found = to.rl.solve(world, rule_of(term, held_by, 0.02), iterations=12, inner=ENOUGH)
    assert (np.diff(found.values) >= -1e-12).all()
    assert found.values[-1] > found.values[0] + 1e-5


@pytest.mark.parametrize(
    ("world", "eta"), [(WORLDS[0], 0.1), (WORLDS[1], 1.0)], ids=["cliff world", "deep sea"]
)
@pytest.mark.parametrize(
    ("term", "held_by"),
    [(to.rl.LogRatio(), "forward"), (to.rl.Ratio(), "reverse")],
    ids=["spma", "mdpo"],
)
def test_exact_runs_reach_the_optimal_value(
    world: to.rl.MDP, eta: float, term: Term, held_by: str
) -> None:
    """Steps of at most 1/max|A|, for which softmax policy mirror ascent converges linearly."""
    found = to.rl.solve(world, rule_of(term, held_by, eta), iterations=60, inner=ENOUGH)
    gaps = world.best_value() - found.values
    assert 0 <= gaps[-1] < 0.01 * gaps[0]
    for before, after in pairwise(gaps[::10]):  # until the inner solver's tolerance is met
        assert after < 0.75 * before or after < 1e-4


def test_linear_features_that_know_the_states_reach_the_optimum_too() -> None:
    """Logits that are linear in an invertible matrix of features are the table in other coordinates."""
    world = to.rl.deep_sea(2)
    features = np.random.default_rng(0).normal(size=(world.states, world.states)) / 3 + np.eye(
        world.states
    )
    found = to.rl.solve(
        world,
        rule_of(to.rl.LogRatio(), "forward", 1.0),
        iterations=40,
        inner=to.LBFGS(max_steps=20),
        features=features,
    )
    assert found.values[-1] == pytest.approx(0.99, abs=0.01)


def test_optimal_values_are_known() -> None:
    world = to.rl.cliff_world(4, 12, discount=0.9)
    assert world.best_value() == pytest.approx(-(1 - 0.9**13) / 0.1, abs=1e-12)
    assert to.rl.deep_sea(8).best_value() == pytest.approx(0.99, abs=1e-12)
    uniform = np.full((world.states, world.actions), 0.25)
    occupancy, advantages = world.occupancy(uniform), world.advantages(uniform)
    assert (occupancy[:, None] * uniform * advantages).sum() == pytest.approx(0.0, abs=1e-9)
