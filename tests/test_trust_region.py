"""TrustRegion, Secant, Polyak, Proximal and ScalarOracle: what theory promises of each."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import targetopt as to
from targetopt.rules.parts.evidence import GAIN

F64 = torch.float64


def quadratic(rank, n, seed=0):
    """½zᵀAz − bᵀz of this rank with b in its range, as (oracle, smallest value)."""
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(rank, n, generator=g, dtype=F64)
    A = root.T @ root / rank
    b = A @ torch.randn(n, generator=g, dtype=F64)
    least = -0.5 * float(b @ torch.linalg.pinv(A) @ b)
    return to.ScalarOracle(lambda z: 0.5 * z @ A @ z - b @ z, autograd=True), least


class Network(nn.Module):
    """A small field: 30 targets from 241 parameters."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)
        )
        self.net.to(F64)
        self.x = torch.randn(30, 6, dtype=F64)

    def forward(self):
        return self.net(self.x)[:, 0]


def rosenbrock(z):
    """A curved valley in the targets: not convex, minimum 0 at ones."""
    return (100 * (z[1:] - z[:-1] ** 2) ** 2 + (1 - z[:-1]) ** 2).sum()


def run(model, oracle, rule, steps, **options):
    opt = to.SSO(model.parameters(), rule=rule, inner=to.LBFGS(max_steps=30), **options)
    return opt, [opt.step(model, oracle) for _ in range(steps)]


@pytest.mark.parametrize("metric", [None, to.Secant()])
def test_accepted_losses_never_rise(metric):
    """Full batch, non-convex loss: every accepted point is lower than the one before it."""
    oracle = to.ScalarOracle(rosenbrock, autograd=True)
    opt, reports = run(Network(), oracle, to.TrustRegion(metric), 40)
    accepted = [r.loss for r in reports if r.accepted]
    assert any(not r.accepted for r in reports)
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(accepted))
    assert accepted[-1] < 0.1 * accepted[0]
    assert (opt.totals.oracle_calls, opt.totals.value_calls) == (40, 0)


def test_a_refused_step_begins_again_at_the_last_accepted_point():
    model = Network()
    opt = to.SSO(model.parameters(), rule=to.TrustRegion(), inner=to.LBFGS(max_steps=30))
    oracle = to.ScalarOracle(rosenbrock, autograd=True)
    last = None
    for _ in range(30):
        here = [p.detach().clone() for p in model.parameters()]
        report = opt.step(model, oracle)
        if report.accepted:
            last = here
        assert all(torch.equal(a, b) for a, b in zip(opt._progress.accepted, last, strict=True))
    opt.rewind()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), last, strict=True))


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_secant_ends_on_a_quadratic_in_rank_plus_one_steps(rank):
    """Free targets, an exact inner solve: after r independent steps B is the Hessian on its range."""
    n = 12
    oracle, least = quadratic(rank, n)
    w = torch.zeros(n, dtype=F64, requires_grad=True)
    stopping = to.Stopping(gradient_tolerance=1e-13)
    inner = to.LBFGS(max_steps=300, history=30, stopping=stopping)
    opt = to.SSO([w], rule=to.TrustRegion(to.Secant()), inner=inner)
    reports = [opt.step(lambda: 1 * w, oracle) for _ in range(2 * rank + 8)]
    refused = sum(not r.accepted for r in reports)
    ends = [i for i, r in enumerate(reports) if r.loss - least < 1e-9 * abs(least)]
    assert ends
    # a refused step teaches a direction too, but the η that it shortens costs a step or two to come back
    assert ends[0] <= rank + 1 + 2 * refused


@pytest.mark.parametrize("metric", [None, to.Secant()])
def test_decreases_within_rounding_leave_the_step_as_it_is(metric):
    """A loss near 10⁶ has ten digits after the point: at its minimum differences of losses are rounding alone."""
    curved, _ = quadratic(3, 8)
    oracle = to.ScalarOracle(lambda z: 1e6 + curved.function(z), autograd=True)
    w = torch.zeros(8, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.TrustRegion(metric), inner=to.LBFGS(max_steps=30), warn=False)
    steps = []
    for _ in range(60):
        report = opt.step(lambda: 1 * w, oracle)
        steps.append((report.ratio, report.accepted, opt._progress.rule_state["eta"]))
    assert len(set(steps[30:])) == 1
    assert steps[-1][:2] == (1.0, True)


def test_the_first_step_reaches_for_zero():
    """η₀ = |ℓ|/‖g‖² in the mean convention, whatever the number of targets."""
    for n in (1, 5):
        w = torch.full((n,), 2.0, dtype=F64, requires_grad=True)
        opt = to.SSO([w], rule=to.TrustRegion(), inner=to.LBFGS(max_steps=50))
        report = opt.step(
            lambda w=w: 1 * w, to.ScalarOracle(lambda z: z.square().sum(), autograd=True)
        )
        # ℓ = 4n, g_i = 4n in the mean convention: ‖g‖² = 16n², and z − ηg = 2 − 1
        assert report.eta == pytest.approx(4 * n / (16 * n * n))
        torch.testing.assert_close(w.detach(), torch.ones(n, dtype=F64))


def reached_in_part(share, rule, lr=None):
    """One parameter moves only the first of two targets, which has this share of ‖g‖²; ℓ is linear and begins at 3."""
    w = torch.zeros(1, dtype=F64, requires_grad=True)
    fixed = torch.zeros(1, dtype=F64)
    slopes = torch.tensor([share**0.5, (1 - share) ** 0.5], dtype=F64)
    oracle = to.ScalarOracle(lambda z: 3.0 - (slopes * z).sum(), autograd=True)
    opt = to.SSO([w], lr=lr, rule=rule, inner=to.LBFGS(max_steps=50))
    return [opt.step(lambda: torch.cat([w, fixed]), oracle) for _ in range(2)], slopes


@pytest.mark.parametrize("rule", [to.TrustRegion(), to.TrustRegion(to.Secant()), None])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_the_first_step_reaches_for_zero_on_targets_that_the_model_reaches(rule, share):
    """η₀ = |ℓ|/‖Pg‖², P the projection on what the model can do: the linear loss is zero after one call."""
    (first, second), slopes = reached_in_part(share, rule)
    squares = 2.0 * float(
        slopes.square().sum()
    )  # ⟨g, g⟩: entries are twice the slopes, and two are averaged
    assert first.eta == pytest.approx(3.0 / (squares * share))
    assert (first.oracle_calls, first.solves, second.solves) == (1, 2, 1)
    assert second.loss == pytest.approx(0.0, abs=1e-9)


def test_the_first_step_is_no_longer_than_one_refusal_takes_back():
    (first, _), slopes = reached_in_part(1e-4, to.TrustRegion())
    assert first.eta == pytest.approx(10.0 * 3.0 / (2.0 * float(slopes.square().sum())))
    (first, _), slopes = reached_in_part(1e-4, to.TrustRegion(shrink=0.5))
    assert first.eta == pytest.approx(2.0 * 3.0 / (2.0 * float(slopes.square().sum())))


def test_a_first_step_that_was_given_or_that_reaches_is_solved_once():
    (given, _), _ = reached_in_part(0.2, to.TrustRegion(), lr=0.25)
    assert (given.eta, given.solves) == (0.25, 1)
    (reaching, _), _ = reached_in_part(1.0, to.TrustRegion())
    assert reaching.solves == 1


def test_duplicating_the_rows_of_a_mean_loss_changes_nothing():
    def trained(copies):
        w = torch.tensor([3.0, -2.0], dtype=F64, requires_grad=True)
        y = torch.tensor([1.0, -1.0], dtype=F64).repeat(copies)
        oracle = to.LossOracle(to.losses.Logistic(y))
        opt = to.SSO([w], rule=to.TrustRegion(to.Secant(5)), inner=to.LBFGS(max_steps=40))
        for _ in range(8):
            opt.step(lambda: w.repeat(copies), oracle)
        return w.detach()

    torch.testing.assert_close(trained(1), trained(3), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("metric", [None, to.Secant(4)])
def test_resumed_bit_for_bit(metric, tmp_path):
    oracle = to.ScalarOracle(rosenbrock, autograd=True)
    whole, reports = run(Network(), oracle, to.TrustRegion(metric), 14)
    model = Network()
    opt, _ = run(model, oracle, to.TrustRegion(metric), 6)
    torch.save({"opt": opt.state_dict(), "model": model.state_dict()}, tmp_path / "run.pt")
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    fresh = Network(seed=1)
    fresh.x = model.x
    fresh.load_state_dict(saved["model"])
    again = to.SSO(fresh.parameters(), rule=to.TrustRegion(metric), inner=to.LBFGS(max_steps=30))
    again.load_state_dict(saved["opt"])
    rest = [again.step(fresh, oracle) for _ in range(8)]
    assert [r.loss for r in rest] == [r.loss for r in reports[6:]]
    assert again.totals == whole.totals


@pytest.mark.parametrize("fault", ["lies", "noise", "kink"])
def test_an_oracle_that_misleads_ends_no_worse_than_it_began(fault):
    """Wrong sign of the gradient, noise of 1e-3, a loss with a kink: rewind() ends at or below the start."""
    generator = torch.Generator().manual_seed(0)

    def solver(z):
        z = z.clone().requires_grad_()
        with torch.enable_grad():
            loss = z.abs().sum() if fault == "kink" else (z - 1).square().sum()
            (gradient,) = torch.autograd.grad(loss, z)
        if fault == "lies":
            gradient = -gradient
        if fault == "noise":
            loss = loss * (1 + 1e-3 * torch.randn((), generator=generator, dtype=F64))
        return float(loss.detach()), gradient

    w = torch.full((4,), 3.0, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.TrustRegion(to.Secant()), inner=to.LBFGS(max_steps=20), warn=False)
    reports = [opt.step(lambda: 1 * w, to.ScalarOracle(solver)) for _ in range(25)]
    opt.rewind()
    exact = w.detach().abs().sum() if fault == "kink" else (w.detach() - 1).square().sum()
    start = 12.0 if fault == "kink" else 16.0
    assert float(exact) <= start * (1 + 1e-2)
    if fault == "lies":
        assert not any(r.accepted for r in reports[1:-8])


def test_weight_decay_counts_in_both_decreases():
    """With λ the objective that must fall is ℓ + ½λ‖θ‖²."""
    model, oracle = Network(), to.ScalarOracle(rosenbrock, autograd=True)
    decay = 0.5

    def penalty():
        return 0.5 * decay * float(sum(p.detach().square().sum() for p in model.parameters()))

    opt = to.SSO(
        model.parameters(), rule=to.TrustRegion(), inner=to.LBFGS(max_steps=30), weight_decay=decay
    )
    accepted = []
    for _ in range(25):
        before = penalty()
        report = opt.step(model, oracle)
        if report.accepted:
            accepted.append(report.loss + before)
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(accepted))


def test_fresh_rows_move_eta_by_their_agreement_and_repeated_ones_by_the_ratio():
    x = torch.randn(8, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    y = torch.ones(8, dtype=F64)
    w = torch.zeros(2, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=0.5, rule=to.TrustRegion(), inner=to.LBFGS(max_steps=5))

    def step(rows):
        rows = torch.tensor(rows)
        oracle = to.LossOracle(to.losses.Squared(y[rows]))
        return opt.step(lambda: x[rows] @ w, oracle, index=rows)

    first, before = step([0, 1, 2]), w.detach().clone()
    moved, g = x[[3, 4, 5]] @ before, x[[3, 4, 5]] @ before - 1  # from w = 0
    other = step([3, 4, 5])
    again, same = step([0, 1, 2]), step([0, 1, 2])
    assert math.isnan(first.ratio)
    assert math.isnan(other.ratio)
    assert math.isnan(again.ratio)
    cosine = -float(g @ moved) / float(g.norm() * moved.norm())
    assert first.eta == 0.5
    assert other.eta == pytest.approx(0.5 * math.exp(GAIN * cosine), rel=1e-12)
    assert again.eta != other.eta
    assert math.isfinite(same.ratio)


def test_rewind_without_anything_to_go_back_to():
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(to.MissingCapability, match="TrustRegion"):
        to.SSO([w], lr=1.0, rule=to.GradientStep()).rewind()
    with pytest.raises(to.MissingCapability, match="after 0 steps"):
        to.SSO([w], rule=to.TrustRegion()).rewind()


@pytest.mark.parametrize(
    "make",
    [
        lambda: to.TrustRegion(accept=0.9, good=0.5),
        lambda: to.TrustRegion(shrink=0.7),
        lambda: to.TrustRegion(grow=1.0),
        lambda: to.TrustRegion(metric="secant"),
        lambda: to.Secant(pairs=0),
        lambda: to.Polyak(floor=math.nan),
        lambda: to.ScalarOracle(3),
        lambda: to.SSO([torch.zeros(1, requires_grad=True)], lr=math.inf, rule=to.GradientStep()),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(to.BadArgument):
        make()


# -- the metric by itself ---------------------------------------------------------------------------


def test_secant_equations_hold_and_the_metric_is_positive():
    g = torch.Generator().manual_seed(1)
    n = 9
    root = torch.randn(n, n, generator=g, dtype=F64)
    A = root @ root.T + 0.1 * torch.eye(n, dtype=F64)
    secant, state = to.Secant(pairs=4), {}
    steps = [torch.randn(n, generator=g, dtype=F64) * 10.0**-k for k in range(6)]
    for s in steps:
        state = secant.remember(state, s, A @ s)
    assert state["steps"].shape == (4, n)
    metric = secant.metric(state, steps[0])
    for s in steps[-4:]:
        torch.testing.assert_close(metric.product(s), A @ s, rtol=1e-8, atol=1e-14)
    dense = torch.stack([metric.product(e) for e in torch.eye(n, dtype=F64)])
    torch.testing.assert_close(dense, dense.T)
    assert torch.linalg.eigvalsh(dense)[0] > 0


def test_the_low_rank_minimiser_is_the_solution_of_its_equations():
    g = torch.Generator().manual_seed(2)
    secant, state = to.Secant(), {}
    A = torch.diag(torch.arange(1.0, 8.0, dtype=F64))
    for _ in range(3):
        s = torch.randn(7, generator=g, dtype=F64)
        state = secant.remember(state, s, A @ s)
    z = torch.randn(7, generator=g, dtype=F64)
    slope = torch.randn(7, generator=g, dtype=F64)
    from targetopt.rules.secant import LowRankQuadratic

    q = LowRankQuadratic(z, slope, secant.metric(state, z), torch.tensor(0.0, dtype=F64))
    torch.testing.assert_close(
        q.gradient(q.minimiser()), torch.zeros(7, dtype=F64), atol=1e-10, rtol=0
    )
    other = torch.randn(7, generator=g, dtype=F64)
    torch.testing.assert_close(q.change(z, other, q.gradient(z)), q.value(other) - q.value(z))


def test_negative_curvature_is_not_remembered():
    s = torch.ones(3, dtype=F64)
    assert to.Secant().remember({}, s, -s) == {}


# -- Polyak and Proximal ------------------------------------------------------------------------------


def test_polyak_reaches_the_floor_of_a_linear_function():
    w = torch.tensor([5.0], dtype=F64, requires_grad=True)
    oracle = to.ScalarOracle(lambda z: 2 * z.sum(), autograd=True)
    opt = to.SSO([w], rule=to.Polyak(floor=4.0), inner=to.LBFGS(max_steps=40))
    opt.step(lambda: 1 * w, oracle)
    assert w.item() == pytest.approx(2.0)
    assert opt.step(lambda: 1 * w, oracle).stop_reason == "zero-step"


@pytest.mark.parametrize("scale", [1e200, 1e-160])
def test_polyak_refuses_a_step_that_no_number_can_hold(scale):
    """‖g‖² overflows, or is so small that η does: refused with the reason, and nothing has moved."""
    w = torch.tensor([5.0], dtype=F64, requires_grad=True)
    oracle = to.GradientOracle(lambda z: (z + 1.0, torch.full_like(z, scale)))
    opt = to.SSO([w], rule=to.Polyak(), inner=to.LBFGS(max_steps=4))
    with pytest.raises(to.TargetoptError, match=r"Polyak: the step η = \S+ cannot be used"):
        opt.step(lambda: 1 * w, oracle)
    assert w.item() == 5.0


def batch(seed=0, n=20):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=F64)
    return x, torch.randn(n, generator=g, dtype=F64).sign()


def test_proximal_without_its_term_is_the_batch_loss():
    """η = ∞: m inner steps on the loss itself, the same iterates as on a surrogate that is the loss."""
    x, y = batch()
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO(
        [w], lr=math.inf, rule=to.Proximal(), inner=to.GradientDescent(step_size=0.3, max_steps=7)
    )
    opt.step(lambda: x @ w, to.LossOracle(to.losses.Logistic(y)))
    plain = torch.zeros(3, dtype=F64)
    for _ in range(7):
        plain = plain - 0.3 * x.T @ to.losses.Logistic(y).gradient(x @ plain) / len(y)
    torch.testing.assert_close(w.detach(), plain, rtol=1e-12, atol=1e-14)


def test_proximal_of_a_squared_loss_is_sso_with_a_shorter_step():
    """argmin ½(z − y)² + (1/2η)(z − z_t)² is the gradient step with η/(1 + η)."""
    x, y = batch()
    ends = []
    for rule, lr in ((to.Proximal(), 2.0), (to.GradientStep(), 2.0 / 3.0)):
        w = torch.ones(3, dtype=F64, requires_grad=True)
        opt = to.SSO([w], lr=lr, rule=rule, inner=to.LBFGS(max_steps=200))
        for _ in range(3):
            opt.step(lambda w=w: x @ w, to.LossOracle(to.losses.Squared(y)))
        ends.append(w.detach())
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-10)


def test_proximal_needs_a_loss_that_is_revealed():
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    asked = []

    def solver(z):
        asked.append(1)
        return 0.0, z

    opt = to.SSO([w], lr=1.0, rule=to.Proximal())
    with pytest.raises(to.MissingCapability, match="TrustRegion"):
        opt.step(lambda: 1 * w, to.ScalarOracle(solver))


# -- one loss for all targets -------------------------------------------------------------------------


def test_a_scalar_loss_is_the_mean_of_its_rows():
    z = torch.randn(4, 3, dtype=F64)
    point = to.ScalarOracle(rosenbrock_of_all, autograd=True).query(z)
    assert float(point.loss) == pytest.approx(float(rosenbrock_of_all(z)))
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(rosenbrock_of_all(leaf), leaf)
    torch.testing.assert_close(point.gradients / 4, gradient)
    torch.testing.assert_close(point.value(z + 1).mean(), rosenbrock_of_all(z + 1))


def rosenbrock_of_all(z):
    return rosenbrock(z.reshape(-1))


@pytest.mark.parametrize(
    ("function", "autograd", "message"),
    [
        (lambda z: 3.0, False, "autograd=True"),
        (lambda z: (3.0, z[:1]), False, "shaped like the targets"),
        (lambda z: (z, z), False, "one number"),
        (lambda z: z, True, "one number"),
        (lambda z: z.detach().sum(), True, "through autograd"),
    ],
)
def test_bad_answers_of_scalar_oracles(function, autograd, message):
    with pytest.raises(to.BadAnswer, match=message):
        to.ScalarOracle(function, autograd=autograd).query(torch.zeros(3))


def test_a_forgotten_reduction_names_both_ways_out():
    w = torch.zeros(3, requires_grad=True)
    with pytest.raises(to.BadAnswer, match=r"reduction='none'.*ScalarOracle"):
        to.SSO([w], lr=1.0).step(lambda: 1 * w, lambda z: z.square().mean())
