"""Families of distributions against torch.distributions and autograd in float64, their bounds, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch import distributions as td
from torch.distributions.kl import kl_divergence

import targetopt as to
from targetopt.distributions import (
    Categorical,
    CategoricalRows,
    ForwardKL,
    Gaussian,
    GaussianRows,
    KLProximity,
    Likelihood,
    MeanSquared,
    MultiDiscrete,
    Probabilities,
    ReverseKL,
)

F64 = torch.float64
N = 4


@dataclass
class Kind:
    """A family with targets, an expert that is not of its fixed spread, and torch's own distributions."""

    family: Any
    draw: Callable[[torch.Generator], Tensor]
    expert: Callable[[torch.Generator], Any]
    reference: Callable[[Any], Any]


def normal(rows: GaussianRows) -> td.Distribution:
    return td.Independent(td.Normal(rows.mean, rows.std), 1)


def choice(rows: CategoricalRows) -> td.Distribution:
    return td.Categorical(logits=rows.log_probabilities)


class Several:
    """torch has no distribution of several choices; its own, added up."""

    def __init__(self, rows: Any) -> None:
        self.parts = [choice(part) for part in rows.parts]

    def log_prob(self, actions: Tensor) -> Tensor:
        return sum(part.log_prob(a) for part, a in zip(self.parts, actions.unbind(1), strict=True))

    def entropy(self) -> Tensor:
        return sum(part.entropy() for part in self.parts)


def kl(first: Any, second: Any) -> Tensor:
    if isinstance(first, Several):
        return sum(kl_divergence(a, b) for a, b in zip(first.parts, second.parts, strict=True))
    return kl_divergence(first, second)


def spread(g: torch.Generator) -> Tensor:
    return torch.randn(N, 2, generator=g, dtype=F64) * 0.5


def any_gaussian(g: torch.Generator) -> GaussianRows:
    return GaussianRows(torch.randn(N, 2, generator=g, dtype=F64), spread(g))


def any_choice(g: torch.Generator) -> CategoricalRows:
    return CategoricalRows(2 * torch.randn(N, 3, generator=g, dtype=F64))


def randn(k: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.randn(N, k, generator=g, dtype=F64)


KINDS = {
    "gaussian, fixed": Kind(Gaussian(2, std=(0.5, 2.0)), randn(2), any_gaussian, normal),
    "gaussian": Kind(Gaussian(2), randn(4), any_gaussian, normal),
    "categorical": Kind(Categorical(3), randn(3), any_choice, choice),
    "probabilities": Kind(
        Probabilities(3), lambda g: randn(3)(g).softmax(dim=1), any_choice, choice
    ),
    "multi-discrete": Kind(
        MultiDiscrete((3, 2)),
        randn(5),
        lambda g: MultiDiscrete((3, 2)).from_targets(randn(5)(g)),
        Several,
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
seeds = given(seed=st.integers(0, 10_000))
few = settings(max_examples=15, deadline=None)
CLOSE = {"rtol": 1e-10, "atol": 1e-11}


@each_kind
@seeds
@few
def test_rows_are_torchs_distributions(kind: Kind, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows, other = kind.family.from_targets(kind.draw(g)), kind.expert(g)
    torchs = kind.reference(rows)
    actions = rows.sample(g)
    torch.testing.assert_close(rows.log_prob(actions), torchs.log_prob(actions), **CLOSE)
    torch.testing.assert_close(rows.entropy(), torchs.entropy(), **CLOSE)
    torch.testing.assert_close(rows.kl(other), kl(torchs, kind.reference(other)), **CLOSE)
    torch.testing.assert_close(other.kl(rows), kl(kind.reference(other), torchs), **CLOSE)
    assert (rows.kl(rows) == 0).all()
    assert (rows.log_prob(rows.mode()) >= rows.log_prob(actions)).all()
    torch.testing.assert_close(
        kind.family.from_targets(kind.family.targets(rows)).kl(rows),
        torch.zeros(N, dtype=F64),
        **CLOSE,
    )


def losses(kind: Kind, g: torch.Generator) -> list[Any]:
    expert = kind.expert(g)
    made = [ForwardKL(kind.family, expert), ReverseKL(kind.family, expert)]
    made.append(Likelihood(kind.family, expert.sample(g)))
    if isinstance(kind.family, Gaussian):
        made.append(MeanSquared(kind.family, expert.mode()))
    return made


@each_kind
@seeds
@few
def test_derivatives_are_those_of_the_value(kind: Kind, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    z = kind.draw(g).requires_grad_()
    for loss in losses(kind, g):
        (gradient,) = torch.autograd.grad(loss.value(z).sum(), z, create_graph=True)
        torch.testing.assert_close(loss.gradient(z), gradient, **CLOSE)
        columns = [
            torch.autograd.grad(loss.gradient(z)[:, j].sum(), z, allow_unused=True)[0]
            for j in range(z.shape[1])
        ]
        hessian = torch.stack([torch.zeros_like(z) if c is None else c for c in columns], dim=1)
        found = loss.curvature(z.detach())
        full = torch.diag_embed(found) if found.ndim == 2 else found
        torch.testing.assert_close(full, hessian.detach(), **CLOSE)


@each_kind
@seeds
@few
def test_smoothness_bounds_every_curvature(kind: Kind, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for loss in losses(kind, g):
        if loss.smoothness is None:
            continue
        for scale in (0.1, 1.0, 5.0, 30.0):
            found = loss.curvature(scale * kind.draw(g))
            full = torch.diag_embed(found) if found.ndim == 2 else found
            assert torch.linalg.eigvalsh(full).abs().max() <= loss.smoothness * (1 + 1e-12)


def test_which_losses_have_a_bound() -> None:
    g = torch.Generator().manual_seed(0)
    bounded = {name: [x.smoothness is not None for x in losses(k, g)] for name, k in KINDS.items()}
    assert bounded == {
        "gaussian, fixed": [True, True, True, True],
        "gaussian": [False, False, False, True],
        "categorical": [True, True, True],
        "probabilities": [False, False, False],
        "multi-discrete": [True, True, True],
    }


def test_likelihood_of_choices_is_the_cross_entropy_and_equal_spreads_give_the_papers_loss() -> (
    None
):
    g = torch.Generator().manual_seed(1)
    z, labels = torch.randn(N, 3, generator=g, dtype=F64), torch.tensor([0, 2, 1, 1])
    ours, known = Likelihood(Categorical(3), labels), to.losses.CrossEntropy(labels)
    torch.testing.assert_close(ours.value(z), known.value(z), **CLOSE)
    torch.testing.assert_close(ours.gradient(z), known.gradient(z), **CLOSE)
    mean = torch.randn(N, 3, generator=g, dtype=F64)
    std = torch.tensor([0.5, 1.0, 2.0], dtype=F64)
    expert = GaussianRows(mean, std.log())
    papers = to.losses.GaussianKL(mean, std**2)
    for loss in (ForwardKL, ReverseKL):
        made = loss(Gaussian(3, std=tuple(std.tolist())), expert)
        torch.testing.assert_close(made.value(z), papers.value(z), **CLOSE)
        torch.testing.assert_close(made.gradient(z), papers.gradient(z), **CLOSE)
        assert made.smoothness == pytest.approx(papers.smoothness, rel=1e-14)


@each_kind
def test_part_of_a_loss_is_the_loss_of_the_part(kind: Kind) -> None:
    g = torch.Generator().manual_seed(2)
    z, index = kind.draw(g), torch.tensor([3, 1])
    for loss in losses(kind, g):
        part = loss.rows(index)
        torch.testing.assert_close(part.value(z[index]), loss.value(z)[index])
        torch.testing.assert_close(part.gradient(z[index]), loss.gradient(z)[index])


@pytest.mark.parametrize("rows", [any_gaussian, any_choice])
def test_natural_and_mean_parameters(rows) -> None:
    """Each determines the distribution, and KL is the Bregman divergence between them."""
    g = torch.Generator().manual_seed(3)
    p, q = rows(g), rows(g)
    zeros = torch.zeros(N, dtype=F64)
    torch.testing.assert_close(type(p).from_natural(p.natural()).kl(p), zeros, **CLOSE)
    means = p.mean_parameters()
    torch.testing.assert_close(type(p).from_mean_parameters(means).kl(p), zeros, **CLOSE)
    # KL(p‖q) + KL(q‖p) = ⟨η_p − η_q, μ_p − μ_q⟩ for every exponential family
    both = ((p.natural() - q.natural()) * (means - q.mean_parameters())).sum(dim=1)
    torch.testing.assert_close(p.kl(q) + q.kl(p), both, **CLOSE)


@pytest.mark.parametrize("kind", ["gaussian", "categorical", "multi-discrete"])
def test_samples_have_the_moments_of_the_distribution(kind: str) -> None:
    g = torch.Generator().manual_seed(4)
    family = KINDS[kind].family
    z = KINDS[kind].draw(g)[:1].expand(40_000, -1)
    rows = family.from_targets(z)
    found, expected = family.moments(rows.sample(g)).mean(dim=0), family.moments(rows)[0]
    if kind == "gaussian":  # of samples the second half is zero: what spreads them is measured here
        found = torch.cat([found[:2], rows.sample(g).var(dim=0)])
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)
    again = [rows.sample(torch.Generator().manual_seed(7)) for _ in range(2)]
    assert torch.equal(*again)


def test_mirror_descent_steps_in_closed_form() -> None:
    """Forward KL in logits: mean parameters move by −ηg. Reverse, in probabilities: exponentiated gradient."""
    g = torch.Generator().manual_seed(5)
    labels = torch.tensor([0, 1])
    start = torch.randn(2, 3, generator=g, dtype=F64)
    logits = start.clone().requires_grad_()
    rule = to.MirrorDescent(KLProximity(Categorical(3)))
    opt = to.SSO([logits], lr=0.3, rule=rule, inner=to.LBFGS(max_steps=200))
    opt.step(lambda: 1 * logits, to.LossOracle(to.losses.CrossEntropy(labels)))
    p = start.softmax(1)
    expected = p - 0.3 * (p - torch.nn.functional.one_hot(labels, 3))
    torch.testing.assert_close(logits.detach().softmax(1), expected, rtol=1e-6, atol=1e-8)

    both = []
    for divergence in (to.NegativeEntropy(), KLProximity(Probabilities(3), reverse=True)):
        logits = start.clone().requires_grad_()
        rule = to.MirrorDescent(divergence)
        opt = to.SSO([logits], lr=0.3, rule=rule, inner=to.LBFGS(max_steps=200))
        opt.step(lambda x=logits: x.softmax(1), lambda q: -q[torch.arange(2), labels].log())
        both.append(logits.detach().softmax(1))
    torch.testing.assert_close(*both, rtol=1e-6, atol=1e-8)


def test_a_gaussian_step_is_a_natural_gradient() -> None:
    start = torch.tensor([[1.0, -2.0]], dtype=F64)
    z = start.clone().requires_grad_()
    family = Gaussian(2, std=(0.5, 3.0))
    rule = to.MirrorDescent(KLProximity(family))
    opt = to.SSO([z], lr=0.1, rule=rule, inner=to.LBFGS(max_steps=100))
    opt.step(lambda: 1 * z, to.LossOracle(to.losses.Squared(torch.zeros(1, 2, dtype=F64))))
    expected = start - 0.1 * torch.tensor([[0.25, 9.0]], dtype=F64) * start
    torch.testing.assert_close(z.detach(), expected, rtol=1e-7, atol=1e-9)


@each_kind
def test_newton_and_sso_work_on_every_loss(kind: Kind) -> None:
    """One step with the theory's step size decreases every smooth loss."""
    g = torch.Generator().manual_seed(6)
    for loss in losses(kind, g):
        if loss.smoothness is None:
            continue
        z = kind.draw(g).requires_grad_()
        before = loss.value(z.detach()).mean()
        opt = to.SSO([z], rule=to.GradientStep(), inner=to.LBFGS(max_steps=20))
        opt.step(lambda x=z: 1 * x, to.LossOracle(loss))
        assert loss.value(z.detach()).mean() < before


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Gaussian(2, std=0.0), r"std=0.0 must be positive"),
        (lambda: Gaussian(2, std=(1.0, 1.0, 1.0)), r"one for each of the 2 actions"),
        (lambda: Categorical(1), r"choices=1 must be at least 2"),
        (lambda: MultiDiscrete(()), r"at least one choice"),
        (
            lambda: Gaussian(2).from_targets(torch.zeros(3, 2)),
            r"\(n, 4\), the mean and log std of 2 actions",
        ),
        (lambda: Likelihood(Categorical(3), torch.tensor([0, 3])), r"action 3 of row 1 is outside"),
        (lambda: Likelihood(Categorical(3), torch.tensor([0.5])), r"whole numbers; found 0.5"),
        (
            lambda: Likelihood(MultiDiscrete((2, 3)), torch.tensor([[0, 3]])),
            r"action \[0, 3\] of row 0",
        ),
        (lambda: Likelihood(MultiDiscrete((2, 3)), torch.tensor([0])), r"shape \(n, 2\)"),
        (lambda: MeanSquared(Categorical(3), torch.zeros(1, 3)), r"no mean action"),
        (
            lambda: ForwardKL(Gaussian(1), GaussianRows(torch.zeros(2, 1), torch.zeros(1))).value(
                torch.zeros(3, 2)
            ),
            r"3 rows of targets and 2 of labels",
        ),
    ],
)
def test_bad_input_is_refused_with_the_remedy(ask: Callable[[], Any], said: str) -> None:
    with pytest.raises(to.BadArgument, match=said):
        ask()


def test_a_choice_that_is_never_made() -> None:
    never = CategoricalRows(torch.tensor([[0.0, 0.0, -torch.inf]], dtype=F64))
    assert never.entropy().item() == pytest.approx(0.6931471805599453)
    loss = ForwardKL(Categorical(3), never)
    assert torch.isfinite(loss.value(torch.zeros(1, 3, dtype=F64))).all()
    assert ReverseKL(Categorical(3), never).smoothness is None
