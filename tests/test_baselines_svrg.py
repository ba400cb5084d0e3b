"""SVRG: unbiased, free of noise at the snapshot, linearly convergent, honestly counted."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, softplus
from torch.utils.data import DataLoader, TensorDataset

from targetopt.baselines import SVRG, linear_smoothness
from targetopt.types import BadAnswer, BadArgument, Diverged


class Ridge:
    """½ (x_iᵀw − y_i)² with ½ l2 ‖w‖², its gradient and its optimum in closed form."""

    def __init__(self, n: int = 60, d: int = 5, l2: float = 0.1, seed: int = 0):
        make = torch.Generator().manual_seed(seed)
        self.n, self.l2 = n, l2
        self.x = torch.randn(n, d, generator=make, dtype=torch.float64)
        self.y = torch.randn(n, generator=make, dtype=torch.float64)
        self.make = make

    def losses(self, w, rows=slice(None)):
        return 0.5 * (self.x[rows] @ w - self.y[rows]).square()

    def gradient(self, w):
        return (self.x.T @ (self.x @ w - self.y) / self.n + self.l2 * w).detach()

    def optimum(self):
        d = self.x.shape[1]
        hessian = self.x.T @ self.x / self.n + self.l2 * torch.eye(d, dtype=torch.float64)
        return torch.linalg.solve(hessian, self.x.T @ self.y / self.n)

    def batches(self, size):
        return torch.randperm(self.n, generator=self.make).split(size)

    def start(self):
        return torch.zeros(self.x.shape[1], dtype=torch.float64, requires_grad=True)


def network(seed: int):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        x, y = torch.randn(11, 4, dtype=torch.float64), torch.randint(3, (11,))
    return net, lambda rows: cross_entropy(net(x[rows]), y[rows], reduction="none")


@given(st.integers(0, 1000), st.integers(1, 11), st.sampled_from([0.0, 0.7]))
@settings(max_examples=25, deadline=None)
def test_the_estimator_averaged_over_all_batches_is_the_full_gradient(seed, size, weight_decay):
    """On a network, away from the snapshot, with batches of unequal size weighted by it."""
    net, losses = network(seed)
    params = list(net.parameters())
    opt = SVRG(params, lr=1.0, weight_decay=weight_decay)
    opt.snapshot_over(losses, [torch.arange(11)])
    with torch.no_grad():
        for p in params:
            p.add_(torch.randn_like(p))
    here = [p.detach().clone() for p in params]
    full = torch.autograd.grad(losses(torch.arange(11)).mean(), params)
    full = [g + weight_decay * p for g, p in zip(full, here, strict=True)]

    average = [torch.zeros_like(p) for p in params]
    for rows in torch.randperm(11).split(size):
        opt.step(lambda rows=rows: losses(rows).mean())
        with torch.no_grad():
            for a, p, old in zip(average, params, here, strict=True):
                a += (old - p) * len(rows) / 11  # lr = 1: the step is the estimator
                p.copy_(old)
    torch.testing.assert_close(average, full, rtol=1e-12, atol=1e-13)


def test_at_the_snapshot_every_batch_gives_the_full_gradient_exactly():
    ridge = Ridge()
    w = ridge.start()
    opt = SVRG([w], lr=1.0)
    opt.snapshot(lambda: ridge.losses(w).mean())
    (full,) = torch.autograd.grad(ridge.losses(w).mean(), w)
    for rows in ridge.batches(7):
        opt.step(lambda rows=rows: ridge.losses(w, rows).mean())
        assert torch.equal(w.detach(), -full)
        with torch.no_grad():
            w.zero_()


@pytest.mark.parametrize("batch_size", [1, 10])
def test_linear_convergence_on_ridge_regression_to_1e10(batch_size):
    ridge = Ridge()
    w = ridge.start()
    worst = float(ridge.x.square().sum(dim=1).max()) + ridge.l2
    opt = SVRG([w], lr=0.3 / worst if batch_size == 1 else 1.0 / worst, weight_decay=ridge.l2)
    norms = [float(ridge.gradient(w).norm())]
    while norms[-1] >= 1e-10 and len(norms) < 400:
        opt.snapshot_over(lambda rows: ridge.losses(w, rows), ridge.batches(20))
        for _ in range(2):
            for rows in ridge.batches(batch_size):
                opt.step(lambda rows=rows: ridge.losses(w, rows).mean())
        norms.append(float(ridge.gradient(w).norm()))
    assert norms[-1] < 1e-10
    torch.testing.assert_close(w.detach(), ridge.optimum(), rtol=0, atol=1e-9)
    # linear: log‖∇‖ falls along a straight line from beginning to end, so each half of the
    # passes does about half of the work
    middle = math.log(norms[0] / norms[len(norms) // 2]) / math.log(norms[0] / norms[-1])
    assert 0.3 < middle < 0.7


def test_sgd_with_the_same_step_stalls_where_svrg_does_not():
    ridge = Ridge()
    w = ridge.start()
    worst = float(ridge.x.square().sum(dim=1).max()) + ridge.l2
    opt = torch.optim.SGD([w], lr=0.3 / worst, weight_decay=ridge.l2)
    for _ in range(100):
        for rows in ridge.batches(1):
            opt.zero_grad()
            ridge.losses(w, rows).mean().backward()
            opt.step()
    assert float(ridge.gradient(w).norm()) > 1e-4


def test_snapshot_through_closure_and_through_loader_agree():
    ridge = Ridge()
    data = TensorDataset(ridge.x, ridge.y)
    found = []
    for size in (60, 7, 1):
        w = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
        opt = SVRG([w], lr=0.1)
        loss = opt.snapshot_over(
            lambda batch, w=w: 0.5 * (batch[0] @ w - batch[1]).square(),
            DataLoader(data, batch_size=size),
        )
        found.append((loss, opt.state[w]["full_gradient"]))
    w = torch.full((5,), 0.5, dtype=torch.float64, requires_grad=True)
    opt = SVRG([w], lr=0.1)
    loss = opt.snapshot(lambda: ridge.losses(w).mean())
    for other in found:
        torch.testing.assert_close(other, (loss, opt.state[w]["full_gradient"]))


def test_full_batch_svrg_is_gradient_descent():
    ridge = Ridge(l2=0.0)
    step = 1 / linear_smoothness(ridge.x, 1.0)
    w, v = ridge.start(), ridge.start()
    opt, plain = SVRG([w], step), torch.optim.SGD([v], step)
    opt.snapshot(lambda: ridge.losses(w).mean())
    for _ in range(20):
        opt.step(lambda: ridge.losses(w).mean())
        plain.zero_grad()
        ridge.losses(v).mean().backward()
        plain.step()
    torch.testing.assert_close(w, v, rtol=1e-11, atol=1e-13)


def test_counts_are_the_calls_that_were_made():
    ridge = Ridge()
    w = ridge.start()
    opt = SVRG([w], lr=0.01)
    calls = 0

    def losses(rows):
        nonlocal calls
        calls += 1
        return ridge.losses(w, rows)

    opt.snapshot_over(losses, ridge.batches(25))  # 3 batches
    assert (opt.gradient_calls, opt.full_passes, opt.steps_since_snapshot) == (3, 1, 0)
    for rows in ridge.batches(10)[:4]:
        opt.step(lambda rows=rows: losses(rows).mean())
    assert (opt.gradient_calls, opt.full_passes, opt.steps_since_snapshot) == (11, 1, 4)
    opt.snapshot(lambda: losses(slice(None)).mean())
    assert (opt.gradient_calls, opt.full_passes, opt.steps_since_snapshot) == (12, 2, 0)
    assert calls == 12


def test_a_run_resumed_in_mid_epoch_is_bitwise_the_same_run():
    ridge = Ridge()
    plan = [ridge.batches(10) for _ in range(3)]

    def go(w, opt, begin, end):
        for t in range(begin, end):
            epoch, batch = divmod(t, 6)
            if batch == 0:
                opt.snapshot(lambda: softplus(ridge.losses(w)).mean())
            rows = plan[epoch][batch]
            opt.step(lambda rows=rows: softplus(ridge.losses(w, rows)).mean())

    whole, w = ridge.start(), ridge.start()
    opt_whole, opt = SVRG([whole], 0.1, weight_decay=0.1), SVRG([w], 0.1, weight_decay=0.1)
    go(whole, opt_whole, 0, 18)
    go(w, opt, 0, 9)
    file = io.BytesIO()
    torch.save((w, opt.state_dict()), file)
    file.seek(0)
    again, state = torch.load(file, weights_only=True)
    again = again.detach().requires_grad_()
    resumed = SVRG([again], lr=1.0)
    resumed.load_state_dict(state)
    assert resumed.steps_since_snapshot == 3
    go(again, resumed, 9, 18)
    assert torch.equal(whole, again)
    for name in ("gradient_calls", "full_passes", "steps_since_snapshot"):
        assert getattr(opt_whole, name) == getattr(resumed, name), name


def test_weight_decay_is_the_penalty_written_out():
    ridge = Ridge()
    a, b = ridge.start(), ridge.start()
    decayed, written = SVRG([a], 0.05, weight_decay=ridge.l2), SVRG([b], 0.05)

    def penalised(rows=slice(None)):
        return ridge.losses(b, rows).mean() + 0.5 * ridge.l2 * b.square().sum()

    decayed.snapshot(lambda: ridge.losses(a).mean())
    written.snapshot(penalised)
    for rows in ridge.batches(6):
        decayed.step(lambda rows=rows: ridge.losses(a, rows).mean())
        written.step(lambda rows=rows: penalised(rows))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_schedulers_drive_the_step():
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt = SVRG([w], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    opt.snapshot(lambda: w.sum())
    for _ in range(4):
        opt.step(lambda: w.sum())
        schedule.step()
    assert w.item() == -(1 + 0.5 + 0.25 + 0.125)


def test_parameters_that_share_a_gradient_move_alike():
    a, b = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    opt = SVRG([a, b], 0.5, weight_decay=1.0)
    opt.snapshot(lambda: (a + b).sum())
    opt.step(lambda: (a + b).sum())
    expected = torch.zeros(3, dtype=torch.float64)  # 1 − ½ (1 + 1)
    assert torch.equal(a.detach(), expected)
    assert torch.equal(b.detach(), expected)


def test_no_step_without_a_snapshot():
    w, late = torch.zeros(2, requires_grad=True), torch.zeros(2)
    opt = SVRG([w, late], lr=0.1)
    with pytest.raises(BadArgument, match="take a snapshot before"):
        opt.step(lambda: w.sum())
    opt.snapshot(lambda: w.sum())
    opt.step(lambda: w.sum())
    late.requires_grad_()
    with pytest.raises(BadArgument, match="after unfreezing"):
        opt.step(lambda: (w + late).sum())


def test_a_snapshot_that_fails_keeps_the_old_one():
    ridge = Ridge()
    w = ridge.start()
    opt = SVRG([w], lr=0.1)
    opt.snapshot(lambda: ridge.losses(w).mean())
    opt.step(lambda: ridge.losses(w, [3]).mean())
    kept = {k: torch.clone(v) for k, v in opt.state[w].items() if torch.is_tensor(v)}

    def broken(rows):
        if 0 in rows:
            raise OSError("disk gone")
        return ridge.losses(w, rows)

    def poisoned(rows):
        return ridge.losses(w, rows) * torch.where(rows == 59, math.nan, 1.0)

    batches = torch.arange(60).flip(0).split(20)
    with pytest.raises(OSError, match="disk gone"):
        opt.snapshot_over(broken, batches)
    with pytest.raises(Diverged, match=r"rows \[0\] of batch 0"):
        opt.snapshot_over(poisoned, batches)
    with pytest.raises(BadArgument, match="no batch"):
        opt.snapshot_over(broken, iter([]))
    with pytest.raises(BadAnswer, match="reduction='none'"):
        opt.snapshot_over(lambda rows: ridge.losses(w, rows).mean(), batches)
    with pytest.raises(BadAnswer, match="got None"):
        opt.snapshot_over(lambda rows: None, batches)
    for name, value in kept.items():
        assert torch.equal(opt.state[w][name], value), name
    assert (opt.gradient_calls, opt.full_passes, opt.steps_since_snapshot) == (3, 1, 1)


@pytest.mark.parametrize("failure", ["raises", "is poisoned", "has no gradient"])
def test_a_pass_that_fails_half_way_leaves_no_trace(failure):
    """Statistics and generator of the batches before are put back, those of the failing one too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    x = torch.randn(12, 3)
    opt = SVRG(net.parameters(), lr=0.1)

    def losses(rows):
        return net(x[rows])[:, 0].square()

    def failing(rows):
        found = losses(rows)
        if rows[0] < 6:
            return found
        if failure == "raises":
            raise OSError("disk gone")
        return found * math.nan if failure == "is poisoned" else (found * 0.0).sqrt()

    before = copy.deepcopy((net.state_dict(), opt.state_dict(), torch.get_rng_state()))
    with pytest.raises(OSError if failure == "raises" else Diverged):
        opt.snapshot_over(failing, torch.arange(12).split(3))
    after = (net.state_dict(), opt.state_dict(), torch.get_rng_state())
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    opt.snapshot_over(losses, torch.arange(12).split(3))
    assert int(net[1].num_batches_tracked) == 4
    assert (opt.full_passes, opt.gradient_calls) == (1, 4)


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"lr": 1.0, "weight_decay": math.nan}])
def test_wrong_options_are_explained(options):
    with pytest.raises(BadArgument, match="must be a finite number"):
        SVRG([torch.zeros(1, requires_grad=True)], **options)
