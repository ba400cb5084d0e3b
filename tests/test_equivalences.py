"""What the paper says SSO is equal to, step for step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import targetopt as to

pytestmark = pytest.mark.filterwarnings("error")
F64 = torch.float64


def mlp(generator: torch.Generator, inputs: int = 3, outputs: int = 2) -> nn.Module:
    model = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=F64) * 0.5)
    return model


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


EUCLIDEAN_RULES = {
    "gradient-step": to.GradientStep(),
    "line-search": to.LineSearch(),
    "adagrad-norm": to.AdaGradNorm(),
    "adagrad": to.AdaGrad(),
    "newton": to.Newton(),
    "mirror-euclidean": to.MirrorDescent(to.SquaredEuclidean()),
    "ftrl": to.FTRL(),
}


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    eta=st.floats(1e-4, 1e4),
    alpha=st.floats(1e-3, 0.3),
    decay=st.sampled_from([0.0, 0.1]),
)
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_one_inner_step_is_sgd_whatever_eta(kind, seed, eta, alpha, decay):
    g = generator(seed)
    ours = mlp(g) if kind == "mlp" else nn.Linear(3, 2).double()
    theirs = mlp(g) if kind == "mlp" else nn.Linear(3, 2).double()
    theirs.load_state_dict(ours.state_dict())
    opt = to.SSO(
        ours.parameters(),
        lr=eta,
        inner=to.GradientDescent(step_size=alpha, max_steps=1),
        weight_decay=decay,
    )
    sgd = torch.optim.SGD(theirs.parameters(), lr=alpha, weight_decay=decay)
    for _ in range(5):
        x, y = torch.randn(7, 3, generator=g, dtype=F64), torch.randint(2, (7,), generator=g)
        opt.step(lambda x=x: ours(x), to.LossOracle(to.losses.CrossEntropy(y)))
        sgd.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        sgd.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.05, 1.5))
def test_exact_full_batch_least_squares_is_newton(seed, eta):
    g = generator(seed)
    x, y = torch.randn(12, 4, generator=g, dtype=F64), torch.randn(12, generator=g, dtype=F64)
    theta = torch.randn(4, generator=g, dtype=F64)
    w = theta.clone().requires_grad_()
    to.SSO([w], lr=eta, inner=to.Exact()).step(lambda: x @ w, to.LossOracle(to.losses.Squared(y)))
    newton = theta - eta * torch.linalg.solve(x.T @ x, x.T @ (x @ theta - y))
    torch.testing.assert_close(w.detach(), newton, rtol=1e-11, atol=1e-11)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), decay=st.floats(0.01, 2.0))
def test_exact_with_weight_decay_is_the_ridge_solution(seed, decay):
    g = generator(seed)
    x, y = torch.randn(9, 4, generator=g, dtype=F64), torch.randn(9, generator=g, dtype=F64)
    w = torch.randn(4, generator=g, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact(), weight_decay=decay)
    opt.step(lambda: x @ w, to.LossOracle(to.losses.Squared(y)))  # η = 1: q is the loss itself
    ridge = torch.linalg.solve(x.T @ x / 9 + decay * torch.eye(4, dtype=F64), x.T @ y / 9)
    torch.testing.assert_close(w.detach(), ridge, rtol=1e-10, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize("name", EUCLIDEAN_RULES)
def test_overparametrised_exact_lands_on_the_half_step(name, seed):
    """More parameters than targets: SSO is plain target-space descent with the rule's metric."""
    g = generator(seed)
    x = torch.randn(4, 10, generator=g, dtype=F64)
    y = torch.randn(4, generator=g, dtype=F64).sign()
    w = (0.3 * torch.randn(10, generator=g, dtype=F64)).requires_grad_()
    loss = to.losses.Logistic(y)
    opt = to.SSO([w], lr=1.3, rule=EUCLIDEAN_RULES[name], inner=to.Exact())
    squares, norm = torch.zeros(4, dtype=F64), 0.0
    for _ in range(3):
        z = (x @ w).detach()
        grad = loss.gradient(z)
        report = opt.step(lambda: x @ w, to.LossOracle(loss))
        squares += grad.square()
        norm += float(grad.square().mean())
        eta = {
            "line-search": report.eta,
            "adagrad-norm": 1.3 / norm**0.5,
            "adagrad": 1.3 / (squares.sqrt() + 1e-10),
            "newton": 1.3 / loss.curvature(z).clamp_min(0.03),
        }.get(name, 1.3)
        torch.testing.assert_close((x @ w).detach(), z - eta * grad, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.01, 2.0))
def test_overparametrised_exact_entropy_lands_on_exponentiated_gradient(seed, eta):
    g = generator(seed)
    start = torch.randn(3, 4, generator=g, dtype=F64).softmax(1)
    x = torch.randn(3, 6, generator=g, dtype=F64)
    w = (torch.linalg.pinv(x) @ start).requires_grad_()
    loss = lambda z: (z * torch.arange(1.0, 5.0, dtype=F64)).sum(1) + (z**2).sum(1)  # noqa: E731
    opt = to.SSO([w], lr=eta, rule=to.MirrorDescent(to.NegativeEntropy()), inner=to.Exact())
    grad = torch.arange(1.0, 5.0, dtype=F64) + 2 * (x @ w).detach()
    opt.step(lambda: x @ w, loss)
    half = start * (-eta * grad).exp()
    torch.testing.assert_close(
        (x @ w).detach(), half / half.sum(1, keepdim=True), rtol=1e-7, atol=1e-9
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.01, 5.0))
def test_overparametrised_exact_entropy_of_one_probability_moves_its_logit(seed, eta):
    """Mirror descent with the binary entropy: logit z ← logit z − ηg."""
    g = generator(seed)
    start = torch.rand(3, generator=g, dtype=F64).mul(0.98).add(0.01)
    x = torch.randn(3, 6, generator=g, dtype=F64)
    w = (torch.linalg.pinv(x) @ start).requires_grad_()
    slopes = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
    opt = to.SSO([w], lr=eta, rule=to.MirrorDescent(to.NegativeEntropy()), inner=to.Exact())
    opt.step(lambda: x @ w, lambda z: z * slopes)
    expected = torch.sigmoid(torch.logit(start) - eta * slopes)
    torch.testing.assert_close((x @ w).detach(), expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_lemma_4_1_sso_is_projected_target_space_sgd(seed):
    """argmin_θ of the batch surrogate = projection of z − ηg, in the batch's semi-norm."""
    g = generator(seed)
    x, y = torch.randn(20, 5, generator=g, dtype=F64), torch.randn(20, generator=g, dtype=F64)
    batch = torch.randperm(20, generator=g)[:8]
    theta = torch.randn(5, generator=g, dtype=F64)
    w = theta.clone().requires_grad_()
    opt = to.SSO([w], lr=0.7, inner=to.Exact())
    opt.step(lambda: x[batch] @ w, to.LossOracle(to.losses.Squared(y[batch])))
    half = x[batch] @ theta - 0.7 * (x[batch] @ theta - y[batch])
    projected = torch.linalg.lstsq(x[batch], half.unsqueeze(1)).solution[:, 0]
    torch.testing.assert_close(x @ w.detach(), x @ projected, rtol=1e-10, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.05, 1.0))
def test_analysis_surrogate_has_no_bias_over_the_batches(seed, eta):
    """E over batches of q̃'s exact step is the full-batch step; for the batch surrogate it is not."""
    g = generator(seed)
    x, y = torch.randn(12, 3, generator=g, dtype=F64), torch.randn(12, generator=g, dtype=F64)
    theta = torch.randn(3, generator=g, dtype=F64)

    def moved(rows: Tensor, everything: bool) -> Tensor:
        w = theta.clone().requires_grad_()
        opt = to.SSO([w], lr=eta, inner=to.Exact(), check_purity=False)
        opt.step(
            lambda: x[rows] @ w,
            to.LossOracle(to.losses.Squared(y[rows])),
            regularise_on=(lambda: x @ w) if everything else None,
        )
        return w.detach()

    batches = torch.arange(12).split(4)
    full = moved(torch.arange(12), everything=False)
    unbiased = torch.stack([moved(b, everything=True) for b in batches]).mean(0)
    biased = torch.stack([moved(b, everything=False) for b in batches]).mean(0)
    torch.testing.assert_close(unbiased, full, rtol=1e-10, atol=1e-10)
    assert (biased - full).abs().max() > 1e-6


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10**6))
@pytest.mark.parametrize(
    "inner",
    [
        to.GradientDescent(step_size=0.05, max_steps=4),
        to.Armijo(max_steps=4),
        to.LBFGS(max_steps=4),
        # few CG steps: late ones on this singular system are made of rounding errors
        to.GaussNewton(max_steps=2, cg_steps=3),
        to.Torch(lambda p: torch.optim.Adam(p, lr=0.05), max_steps=4),
    ],
    ids=lambda inner: type(inner).__name__,
)
@pytest.mark.parametrize("name", EUCLIDEAN_RULES)
@pytest.mark.product(3)
def test_duplicating_every_example_changes_no_iterate(name, inner, seed):
    g = generator(seed)
    x, y = torch.randn(5, 3, generator=g, dtype=F64), torch.randint(2, (5,), generator=g)
    once, twice = mlp(g), mlp(g)
    twice.load_state_dict(once.state_dict())
    both = torch.arange(5).repeat(2)
    runs = [(once, torch.arange(5)), (twice, both)]
    for model, rows in runs:
        opt = to.SSO(model.parameters(), lr=0.5, rule=EUCLIDEAN_RULES[name], inner=inner)
        for _ in range(3):
            opt.step(
                lambda model=model, rows=rows: model(x[rows]),
                to.LossOracle(to.losses.CrossEntropy(y[rows])),
                index=rows,
            )
    for a, b in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_lbfgs_without_room_for_two_pairs_is_armijo():
    """Where its pairs would not fit into the memory that it may take, it makes the steps that need none."""
    models = [mlp(generator(5)) for _ in range(3)]
    size = 8 * sum(p.numel() for p in models[0].parameters())
    solvers = (to.Armijo(7), to.LBFGS(7, memory=3.9 * size), to.LBFGS(7, memory=4.0 * size))
    x, oracle = torch.randn(20, 3, dtype=F64, generator=generator(6)), squared_oracle(20)
    for model, inner in zip(models, solvers, strict=True):
        opt = to.SSO(model.parameters(), lr=0.5, inner=inner)
        for _ in range(3):
            opt.step(lambda model=model: model(x), oracle)
    armijo, none, two = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(armijo, none)
    assert not torch.equal(armijo, two)


def squared_oracle(n: int) -> to.LossOracle:
    y = torch.randn(n, 2, dtype=F64, generator=generator(7))
    return to.LossOracle(to.losses.Squared(y))
