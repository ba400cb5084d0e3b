"""Surrogates: upper bounds where theory says so, tight at z_t, consistent with autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import targetopt as to
from targetopt.types import TargetPoint

F64 = torch.float64


def labels(kind: str, g: torch.Generator, n: int = 6, k: int = 3) -> to.losses.Loss:
    normal = torch.randn(n, k, generator=g, dtype=F64)
    return {
        "squared": lambda: to.losses.Squared(normal),
        "logistic": lambda: to.losses.Logistic(normal.sign()),
        "cross-entropy": lambda: to.losses.CrossEntropy(torch.randint(k, (n,), generator=g)),
        "soft-cross-entropy": lambda: to.losses.CrossEntropy(normal.softmax(1)),
        "huber": lambda: to.losses.Huber(normal, delta=0.7),
        "gaussian-kl": lambda: to.losses.GaussianKL(
            normal, covariance=torch.eye(k, dtype=F64) * 0.5 + 0.2
        ),
    }[kind]()


FINITE_L = [
    "squared", "logistic", "cross-entropy", "soft-cross-entropy", "huber", "gaussian-kl",
]  # fmt: skip


def point_at(loss: to.losses.Loss, z: Tensor) -> TargetPoint:
    return to.LossOracle(loss).query(z)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3), fraction=st.floats(0.01, 1.0))
@pytest.mark.parametrize("kind", FINITE_L)
def test_surrogate_majorises_the_loss_for_eta_up_to_one_over_L(kind, seed, scale, fraction):
    g = torch.Generator().manual_seed(seed)
    loss = labels(kind, g)
    z_t, z = (scale * torch.randn(6, 3, generator=g, dtype=F64) for _ in range(2))
    eta = fraction / loss.smoothness
    surrogate = to.GradientStep().propose(point_at(loss, z_t), eta, 1.0, {}).surrogate
    bound, value = surrogate.value(z), loss.value(z).mean()
    assert bound >= value - 1e-10 * (1 + value.abs())
    torch.testing.assert_close(surrogate.value(z_t), loss.value(z_t).mean())


@pytest.mark.parametrize("kind", FINITE_L)
def test_smoothness_constants_are_not_loose(kind):
    """At η = 1.3/L some pair of points breaks the bound: L is the constant, not merely one."""
    g = torch.Generator().manual_seed(0)
    broken = 0
    for _ in range(200):
        loss = labels(kind, g)
        near = loss.y if kind in ("logistic", "huber") else torch.zeros(6, 3, dtype=F64)
        z_t = 0.02 * torch.randn(6, 3, generator=g, dtype=F64) + (near if kind == "huber" else 0)
        z_t[:, 2] -= 30 if "cross" in kind else 0  # two classes at ½: where ‖diag p − ppᵀ‖ = ½
        direction = torch.randn(6, 3, generator=g, dtype=F64)
        if "cross" in kind:
            direction = torch.tensor([1.0, -1.0, 0.0], dtype=F64).expand(6, 3)
        if kind == "gaussian-kl":
            direction = torch.tensor([1.0, -1.0, 0.0], dtype=F64).expand(6, 3)
        z = z_t + 0.05 * direction
        surrogate = to.GradientStep().propose(point_at(loss, z_t), 1.3 / loss.smoothness, 1.0, {})
        broken += bool(surrogate.surrogate.value(z) < loss.value(z).mean() - 1e-12)
    assert broken > 150


RULES = {
    "gradient-step": to.GradientStep(),
    "line-search": to.LineSearch(),
    "adagrad-norm": to.AdaGradNorm(),
    "adagrad": to.AdaGrad(),
    "newton": to.Newton(),
    "mirror": to.MirrorDescent(),
    "entropy": to.MirrorDescent(to.NegativeEntropy()),
    "ftrl": to.FTRL(),
}


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.01, 10.0))
@pytest.mark.parametrize("name", RULES)
def test_surrogate_is_consistent_with_itself(name, seed, eta):
    """Value, gradient, change, curvature and minimiser of one surrogate agree with each other."""
    g = torch.Generator().manual_seed(seed)
    probabilities = name == "entropy"
    loss = labels("cross-entropy", g)

    def targets() -> Tensor:
        z = torch.randn(6, 3, generator=g, dtype=F64)
        return z.softmax(1) if probabilities else z

    z_t, z, other = targets(), targets(), targets()
    state: dict[str, object] = {}
    for _ in range(2):  # a second step, so that memories are not empty
        point = point_at(loss, z_t)
        proposal = RULES[name].propose(point, eta, 1.0, state)
        state = proposal.state
    q = proposal.surrogate

    torch.testing.assert_close(q.value(z_t), point.loss, rtol=1e-9, atol=1e-9)
    leaf = z.clone().requires_grad_()
    (auto,) = torch.autograd.grad(q.value(leaf), leaf)
    torch.testing.assert_close(q.gradient(z) / 6, auto, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        q.change(z, other, q.gradient(z)), q.value(other) - q.value(z), rtol=1e-8, atol=1e-8
    )
    v = torch.randn(6, 3, generator=g, dtype=F64)
    difference = (q.gradient(z + 1e-6 * z * v) - q.gradient(z - 1e-6 * z * v)) / 2e-6
    torch.testing.assert_close(q.curvature_product(z, z * v), difference, rtol=1e-4, atol=1e-4)
    best = q.minimiser()
    torch.testing.assert_close(q.gradient(best), torch.zeros_like(best), rtol=0, atol=1e-7)


def test_change_keeps_its_digits_where_values_lose_them():
    z_t = torch.full((4,), 1e4, dtype=F64)
    q = to.Quadratic(
        z_t, torch.ones(4, dtype=F64), torch.tensor(2.0, dtype=F64), torch.tensor(1e8, dtype=F64)
    )
    before, after = z_t + 3.0, z_t + 3.0 + 2.0**-20
    exact = 2.0**-20 * (1 + 2 * 3.0) + 2.0**-40
    change = float(q.change(before, after, q.gradient(before)))
    assert abs(change / exact - 1) < 1e-12
    assert abs(float(q.value(after) - q.value(before)) / exact - 1) > 1e-8


def test_newton_floors_eigenvalues_of_matrix_curvature():
    z = torch.tensor([[50.0, 0.0, 0.0]], dtype=F64)
    point = point_at(to.losses.CrossEntropy(torch.tensor([1])), z)
    metric = to.Newton(floor=1e-3).propose(point, 1.0, 1.0, {}).surrogate.metric
    assert torch.linalg.eigvalsh(metric).min() >= 1e-3 * (1 - 1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), c=st.floats(0.1, 0.9))
def test_line_search_step_satisfies_its_condition_and_the_next_larger_does_not(seed, c):
    g = torch.Generator().manual_seed(seed)
    loss = labels("logistic", g)
    z = torch.randn(6, 3, generator=g, dtype=F64)
    rule = to.LineSearch(c=c)
    point = point_at(loss, z)
    proposal = rule.propose(point, 1e3, 1.0, {})

    def holds(eta: float) -> bool:
        trial = loss.value(z - eta * point.gradients).mean()
        return bool(trial <= point.loss - c * eta * point.gradient_norm_squared)

    assert holds(proposal.eta)
    assert proposal.eta == 1e3 or not holds(2 * proposal.eta)
    again = rule.propose(point, 1e3, 1.0, proposal.state)
    assert again.eta == proposal.eta  # warm start finds the same step
    assert rule.propose(point, 1e3, 0.5, proposal.state).eta == 0.5 * proposal.eta


@given(seed=st.integers(0, 10**6), c=st.floats(0.1, 0.9), doublings=st.integers(0, 1100))
def test_line_search_holds_however_far_the_step_has_grown(seed, c, doublings):
    """Where losses vanish the step doubles every time; the first batch that is not fitted must not suffer."""
    g = torch.Generator().manual_seed(seed)
    loss = labels("logistic", g)
    z = torch.randn(6, 3, generator=g, dtype=F64)
    point = point_at(loss, z)
    rule = to.LineSearch(c=c)
    eta = rule.propose(point, None, 1.0, {"eta": 2.0 ** min(doublings, 1023)}).eta
    trial = loss.value(z - eta * point.gradients).mean()
    assert trial <= point.loss - c * eta * point.gradient_norm_squared
    if doublings > 100:  # sixty trials do not take that back
        assert eta == rule.safe_step(0.25) == 8 * (1 - c)


def test_line_search_learns_nothing_from_a_gradient_of_nought():
    """Any step would do, so none is tried, and the next search begins where this one would have."""
    asked = []

    def value(z):
        asked.append(z)
        return torch.zeros(3, dtype=F64)

    flat = TargetPoint(*torch.zeros(3, 3, dtype=F64), value=value)
    rule = to.LineSearch()
    for lr, state, eta in [
        (None, {}, 1.0),
        (0.3, {}, 0.3),
        (None, {"eta": 5.0}, 5.0),
        (2.0, {"eta": 5.0}, 2.0),
    ]:
        proposal = rule.propose(flat, lr, 0.5, state)
        assert proposal.eta == 0.5 * eta
        assert proposal.state == state
        assert float(proposal.surrogate.metric) == pytest.approx(2.0 / eta)
    assert not asked


def test_line_search_takes_no_step_that_was_refused():
    """Without L there is no safe one: the targets stay, and the next search goes on from there."""
    w = torch.tensor([1.0], dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.LineSearch(max_backtracks=3), inner=to.Exact())
    steep = to.LossOracle(lambda z: 500.0 * z.square())  # accepts η ≤ 1e-3
    reports = [opt.step(lambda: 1 * w, steep) for _ in range(3)]
    assert [r.value_calls for r in reports] == [4, 4, 3]
    assert [r.eta for r in reports[:2]] == [0.0, 0.0]
    assert [r.stop_reason for r in reports] == ["zero-step", "zero-step", "exact"]
    assert [r.loss for r in reports] == [500.0] * 3
    assert reports[2].eta == 2.0**-10
    assert abs(float(w.detach())) < 0.1


def test_line_search_that_is_refused_whatever_it_tries_begins_afresh():
    """An oracle whose values contradict its gradients: nothing moves, and nothing under- or overflows."""
    w = torch.tensor([1.0], dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.LineSearch(), weight_decay=0.1, warn=False)
    liar = to.GradientOracle(lambda z: (0 * z, z), value=lambda z: 1 + 0 * z)
    for _ in range(30):
        report = opt.step(lambda: 1 * w, liar)
        assert (report.eta, report.stop_reason, report.inner_steps) == (0.0, "zero-step", 0)
    assert float(w.detach()) == 1.0
    honest = to.LossOracle(lambda z: z.square() / 2)
    assert opt.step(lambda: 1 * w, honest).eta == pytest.approx(1.0, rel=0.5)


@pytest.mark.parametrize("rule", [to.AdaGrad(), to.FTRL()])
def test_rows_that_occur_twice_are_remembered_by_their_mean(rule):
    z = torch.tensor([[1.0], [2.0], [1.5], [1.0]], dtype=F64)
    g = torch.tensor([[1.0], [-1.0], [4.0], [7.0]], dtype=F64)
    index = torch.tensor([3, 0, 3, 3])
    state: dict[str, Tensor] = {}
    for _ in range(2):
        point = TargetPoint(z, torch.zeros(4, dtype=F64), g, index=index)
        proposal = rule.propose(point, 0.5, 1.0, state)
        state = proposal.state
    if isinstance(rule, to.AdaGrad):
        assert state["sum_squares"][:, 0].tolist() == [2.0, 0.0, 0.0, 2 * (1 + 16 + 49) / 3]
    else:
        assert state["gradient_sum"][:, 0].tolist() == [-2.0, 0.0, 0.0, 2 * 4.0]
        assert state["start"][:, 0].tolist() == [2.0, 0.0, 0.0, 3.5 / 3]
        assert state["count"].tolist() == [2, 0, 0, 2]
    # the order in which they stand decides nothing
    swapped = torch.tensor([2, 1, 3, 0])
    point = TargetPoint(z[swapped], torch.zeros(4, dtype=F64), g[swapped], index=index[swapped])
    again = rule.propose(point, 0.5, 1.0, rule.propose(point, 0.5, 1.0, {}).state)
    for name, table in state.items():
        torch.testing.assert_close(again.state[name], table, rtol=1e-15, atol=0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), eta=st.floats(0.01, 10.0))
def test_one_probability_a_row_is_the_simplex_of_two(seed, eta):
    """Every part of the surrogate of z is that of (z, 1 − z), along the line on which these lie."""
    g = torch.Generator().manual_seed(seed)
    z_t, z, other = (torch.rand(6, generator=g, dtype=F64) for _ in range(3))
    slopes, losses = torch.randn(6, generator=g, dtype=F64), torch.rand(6, generator=g, dtype=F64)
    pairs = lambda v: torch.stack([v, 1 - v], dim=1)  # noqa: E731
    split = torch.stack([0.3 * slopes, -0.7 * slopes], dim=1)  # the same slope along the line
    rule = to.MirrorDescent(to.NegativeEntropy())
    q = rule.propose(TargetPoint(z_t, losses, slopes), eta, 1.0, {}).surrogate
    two = rule.propose(TargetPoint(pairs(z_t), losses, split), eta, 1.0, {}).surrogate
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(q.value(z), two.value(pairs(z)), **close)
    torch.testing.assert_close(q.minimiser(), two.minimiser()[:, 0], **close)
    along = two.gradient(pairs(z))
    torch.testing.assert_close(q.gradient(z), along[:, 0] - along[:, 1], **close)
    leaf = z.clone().requires_grad_()
    (auto,) = torch.autograd.grad(q.value(leaf), leaf)
    torch.testing.assert_close(q.gradient(z) / 6, auto, **close)
    change = q.change(z, other, q.gradient(z))
    torch.testing.assert_close(change, q.value(other) - q.value(z), rtol=1e-8, atol=1e-8)
    exact = slopes * (z - z_t) + to.NegativeEntropy().value(z, z_t) / eta
    torch.testing.assert_close(q.value(z), (losses + exact).mean(), **close)
    expected = 6 * torch.autograd.functional.hessian(q.value, z).diagonal()
    torch.testing.assert_close(q.curvature_product(z, torch.ones(6, dtype=F64)), expected, **close)


@pytest.mark.parametrize("small", [0.2, 1e-3, 1e-17, 1e-300, 0.0])
def test_entropic_change_to_a_probability_that_rounding_takes_for_none(small):
    """From ½ to 1e-17 the step is −½ to rounding, and its logarithm is not that of nothing."""
    z_t = torch.tensor([[0.5, 0.5]], dtype=F64)
    point = TargetPoint(z_t, torch.zeros(1, dtype=F64), torch.tensor([[1.0, -1.0]], dtype=F64))
    q = to.MirrorDescent(to.NegativeEntropy()).propose(point, 0.5, 1.0, {}).surrogate
    after = torch.tensor([[small, 1 - small]], dtype=F64)
    change = q.change(z_t, after, q.gradient(z_t))
    torch.testing.assert_close(change, q.value(after) - q.value(z_t), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_entropy_is_computed_in_log_space(extreme):
    z = torch.tensor([[0.2, 0.8], [1.0, 0.0]], dtype=F64)
    point = TargetPoint(
        z, torch.zeros(2, dtype=F64), extreme * torch.tensor([[1.0, -1.0], [1.0, 2.0]], dtype=F64)
    )
    q = to.MirrorDescent(to.NegativeEntropy()).propose(point, 1.0, 1.0, {}).surrogate
    for tensor in (q.value(z), q.gradient(z), q.minimiser(), q.change(z, z, q.gradient(z))):
        assert torch.isfinite(tensor).all()
    torch.testing.assert_close(q.minimiser().sum(1), torch.ones(2, dtype=F64))
