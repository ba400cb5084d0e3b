"""SLS: the accepted step keeps its promise, the counts are exact, an error leaves no trace."""

from __future__ import annotations

import io
import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import softplus

import targetopt as to
from targetopt import schedules
from targetopt.baselines import SLS
from targetopt.baselines.sls import Search
from targetopt.types import BadArgument


def logistic(seed: int, n: int = 12, d: int = 5, scale: float = 1.0):
    """A random logistic problem in float64: ``loss(w, rows)``."""
    make = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(n, d, generator=make, dtype=torch.float64)
    y = torch.where(torch.randn(n, generator=make) > 0, 1.0, -1.0).double()
    return lambda w, rows=slice(None): softplus(-y[rows] * (x[rows] @ w)).mean()


def weights(seed: int = 0, d: int = 5) -> torch.Tensor:
    make = torch.Generator().manual_seed(seed)
    return torch.randn(d, generator=make, dtype=torch.float64).requires_grad_()


def quadratic(w):
    """½‖w‖²: L = 1, a step η is acceptable exactly when η ≤ 2(1 − c)."""
    return 0.5 * w.square().sum()


class Counted:
    """A closure that counts its calls, and raises or answers something else at a given one."""

    def __init__(self, loss, at: int = -1, answer=None):
        self.loss, self.at, self.answer = loss, at, answer
        self.with_gradient = self.without = 0

    def __call__(self):
        if torch.is_grad_enabled():
            self.with_gradient += 1
        else:
            self.without += 1
        if self.with_gradient + self.without == self.at:
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.loss() * self.answer
        return self.loss()


@given(
    seed=st.integers(0, 10_000),
    reset=st.sampled_from(["keep", "restart", "grow"]),
    lr=st.floats(0.01, 300),
    c=st.floats(0.01, 0.95),
    shrink=st.floats(0.1, 0.95),
    scale=st.floats(0.1, 10),
    weight_decay=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_every_accepted_step_is_the_first_that_satisfies_the_condition(
    seed, reset, lr, c, shrink, scale, weight_decay
):
    loss, w = logistic(seed, scale=scale), weights(seed)
    opt = SLS(
        [w],
        lr,
        c=c,
        shrink=shrink,
        reset=reset,
        batches_per_epoch=3,
        weight_decay=weight_decay,
    )
    last = None
    for t in range(4):
        rows = slice(4 * (t % 3), 4 * (t % 3) + 4)

        def objective(v, rows=rows):
            return loss(v, rows) + 0.5 * weight_decay * v.square().sum()

        before = w.detach().clone().requires_grad_()
        value = objective(before)
        (g,) = torch.autograd.grad(value, before)
        slope = float(g.square().sum())
        closure = Counted(lambda rows=rows: loss(w, rows))
        calls = opt.value_calls
        opt.step(closure)

        eta, trials = opt.step_size, opt.value_calls - calls
        assert (closure.with_gradient, closure.without) == (1, trials)
        first = {
            "keep": lr if last is None else min(last, lr),
            "restart": lr,
            "grow": lr if last is None else min(last * 2 ** (1 / 3), lr),
        }[reset]
        assert eta == pytest.approx(first * shrink ** (trials - 1), rel=1e-12)
        torch.testing.assert_close(w.detach(), before.detach() - eta * g, rtol=1e-14, atol=1e-14)

        def holds(step, before=before, g=g, value=value, slope=slope, objective=objective):
            trial = objective((before - step * g).detach())
            return float(trial - value.detach()) <= -c * step * slope + 1e-14 * (1 + abs(value))

        assert holds(eta)
        if trials > 1:
            rejected = objective((before - eta / shrink * g).detach())
            assert float(rejected - value.detach()) > -c * eta / shrink * slope - 1e-13 * (
                1 + abs(value)
            )
        last = eta
    assert opt.gradient_calls == 4


def steps_on_quadratic(opt: SLS, w: torch.Tensor, n: int) -> list[float]:
    found = []
    for _ in range(n):
        with torch.no_grad():
            w.fill_(1.0)
        opt.step(lambda: quadratic(w))
        found.append(opt.step_size)
    return found


def test_reset_options_of_the_paper():
    """On ½‖w‖² with c = ½ the acceptable steps are η ≤ 1; the search from 4 halves to 1."""
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    keep = SLS([w], 4.0, c=0.5, shrink=0.5, reset="keep")
    assert steps_on_quadratic(keep, w, 3) == [1.0, 1.0, 1.0]
    assert keep.value_calls == 3 + 1 + 1

    anew = SLS([w], 4.0, c=0.5, shrink=0.5, reset="restart")
    assert steps_on_quadratic(anew, w, 3) == [1.0, 1.0, 1.0]
    assert anew.value_calls == 3 + 3 + 3

    grow = SLS([w], 0.25, c=0.5, shrink=0.5, reset="grow", growth=4.0, batches_per_epoch=2)
    grow.param_groups[0]["lr"] = 64.0
    grow._memory["step_size"] = 0.25
    # γ^{b/n} = 4^{1/2} = 2: tries ½, 1, then 2 is rejected and 1 taken
    assert steps_on_quadratic(grow, w, 4) == [0.5, 1.0, 1.0, 1.0]
    assert grow.value_calls == 1 + 1 + 2 + 2


def test_schedulers_lower_the_largest_step():
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = SLS([w], 0.5, reset="keep")
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: (t + 1) ** -0.5)
    found = []
    for _ in range(4):
        with torch.no_grad():
            w.fill_(1.0)
        opt.step(lambda: quadratic(w))
        schedule.step()
        found.append(opt.step_size)
    assert found == pytest.approx([0.5 / math.sqrt(t) for t in (1, 2, 3, 4)])


@pytest.mark.parametrize("reset", ["keep", "restart", "grow"])
def test_a_schedule_shortens_the_step_that_was_found_and_not_the_search(reset):
    """On ½‖w‖² with c = ½ the search accepts 1 wherever it starts: w ← (1 − 1/√t)·w."""
    w = torch.ones(3, dtype=torch.float64, requires_grad=True)
    opt = SLS(
        [w], 4.0, c=0.5, shrink=0.5, reset=reset, growth=4.0, batches_per_epoch=2,
        schedule=schedules.inverse_sqrt(),
    )  # fmt: skip
    for t in (1, 2, 3, 4):
        with torch.no_grad():
            w.fill_(1.0)
        opt.step(lambda: quadratic(w))
        assert opt.step_size == 1.0
        torch.testing.assert_close(w.detach(), torch.full_like(w, 1 - t**-0.5).detach())
    with pytest.raises(BadArgument, match=r"gave 2.0 at t = 1; it shortens"):
        SLS([w], schedule=lambda t: 2.0).step(lambda: quadratic(w))


def test_a_scheduler_that_reaches_zero_stops_the_search_without_spoiling_it():
    w = torch.ones(2, requires_grad=True)
    opt = SLS([w], 0.5, reset="keep")
    opt.step(lambda: quadratic(w))
    opt.param_groups[0]["lr"] = 0.0
    before = w.detach().clone()
    opt.step(lambda: quadratic(w))
    assert torch.equal(w, before)
    assert (opt.step_size, opt.value_calls, opt.gradient_calls) == (0.5, 1, 2)


def test_interpolation_is_reached_linearly_without_a_step_size():
    make = torch.Generator().manual_seed(3)
    x = torch.randn(20, 200, generator=make, dtype=torch.float64)
    y = torch.randn(20, generator=make, dtype=torch.float64)
    w = torch.zeros(200, dtype=torch.float64, requires_grad=True)
    opt = SLS([w], 10.0, c=0.5, shrink=0.7)
    norms = []
    for _ in range(3):
        for _ in range(15):
            for rows in torch.randperm(20, generator=make).split(5):
                opt.step(lambda rows=rows: 0.5 * (x[rows] @ w - y[rows]).square().mean())
        norms.append(float((x @ w - y).detach().norm()))
    assert norms[2] < 1e-3 * norms[1] < 1e-6 * norms[0]
    assert opt.failed_searches == 0


def test_weight_decay_is_the_penalty_written_out():
    loss = logistic(4)
    a, b = weights(1), weights(1)
    options = {"c": 0.1, "shrink": 0.9, "reset": "restart"}
    decayed, written = SLS([a], 20.0, weight_decay=0.2, **options), SLS([b], 20.0, **options)
    for _ in range(15):
        penalty = 0.1 * a.detach().square().sum()
        value = decayed.step(lambda: loss(a))
        torch.testing.assert_close(
            value + penalty, written.step(lambda: loss(b) + 0.1 * b.square().sum())
        )
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert decayed.value_calls == written.value_calls


def saved(opt: torch.optim.Optimizer) -> dict:
    buffer = io.BytesIO()
    torch.save(opt.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("reset", ["keep", "restart", "grow"])
def test_a_resumed_run_is_bitwise_the_same_run(reset):
    loss = logistic(5)

    def go(w, opt, steps):
        for t in steps:
            rows = slice(4 * (t % 3), 4 * (t % 3) + 4)
            opt.step(lambda rows=rows: loss(w, rows))

    schedule = schedules.exponential(20)
    options = {"lr": 50.0, "reset": reset, "batches_per_epoch": 3, "schedule": schedule}
    whole, w = weights(2), weights(2)
    opt_whole, opt = SLS([whole], **options), SLS([w], **options)
    go(whole, opt_whole, range(20))
    go(w, opt, range(7))
    again = w.detach().clone().requires_grad_()
    resumed = SLS([again], lr=1.0, schedule=schedule)
    resumed.load_state_dict(saved(opt))
    go(again, resumed, range(7, 20))
    assert torch.equal(whole, again)
    for name in ("gradient_calls", "value_calls", "failed_searches", "step_size"):
        assert getattr(opt_whole, name) == getattr(resumed, name), name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_trial_that_is_not_finite_is_a_rejected_trial(value):
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    opt = SLS([w], 0.5, shrink=0.5)
    closure = Counted(lambda: quadratic(w), at=2, answer=value)
    opt.step(closure)
    assert (opt.step_size, opt.value_calls) == (0.25, 2)
    assert w.item() == 0.75


def test_a_search_that_finds_nothing_moves_nothing():
    """The value rises where the gradient says it falls: no step can satisfy the condition."""
    w = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = SLS([w], 0.5, max_backtracks=9, reset="keep")
    opt.step(lambda: quadratic(w))
    step, before = opt.step_size, w.detach().clone()
    opt.step(lambda: w.sum() - 2 * w.detach().sum())
    assert torch.equal(w, before)
    assert (opt.failed_searches, opt.value_calls, opt.gradient_calls) == (1, 1 + 10, 2)
    assert opt.step_size == step


def test_unused_frozen_and_twin_parameters():
    a, b, unused = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    frozen = torch.ones(3, dtype=torch.float64)
    opt = SLS([a, b, unused, frozen], 1.0, weight_decay=0.5)
    # autograd gives the twins a and b the same gradient tensor
    opt.step(lambda: (a + b + frozen).sum() - 2.0)
    assert torch.equal(a, b)
    eta = opt.step_size
    torch.testing.assert_close(a.detach(), torch.full_like(a, 1 - eta * 1.5).detach())
    torch.testing.assert_close(unused.detach(), torch.full_like(a, 1 - eta * 0.5).detach())
    assert torch.equal(frozen, torch.ones_like(frozen))


def test_zero_gradient_needs_no_search():
    w = torch.zeros(2, requires_grad=True)
    opt = SLS([w])
    assert opt.step(lambda: quadratic(w)) == 0.0
    assert (opt.gradient_calls, opt.value_calls, opt.step_size) == (1, 0, None)


def test_grad_fields_are_left_alone_and_the_loss_before_the_step_is_returned():
    w = torch.ones(2, requires_grad=True)
    w.grad = torch.full((2,), 9.0)
    loss = SLS([w]).step(lambda: w.sum().square()[None])
    assert loss.item() == 4.0
    assert not loss.requires_grad
    assert torch.equal(w.grad, torch.full((2,), 9.0))
    single = torch.ones(1, requires_grad=True)
    view = SLS([single]).step(lambda: single[0])
    assert view.item() == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": math.nan}, "lr=nan"),
        ({"lr": "big"}, "lr='big'"),
        ({"c": 1.0}, "c=1.0"),
        ({"c": 0.0}, "c=0.0"),
        ({"shrink": 1.5}, "shrink=1.5"),
        ({"growth": 0.5}, "growth=0.5"),
        ({"reset": 2}, "reset=2"),
        ({"reset": "grow", "batches_per_epoch": 0}, "batches_per_epoch=0"),
        ({"reset": "grow", "batches_per_epoch": 2.5}, "whole number"),
        ({"max_backtracks": -1}, "max_backtracks=-1"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
    ],
)
def test_wrong_options_are_explained(options, message):
    with pytest.raises(BadArgument, match=message):
        SLS([torch.zeros(2, requires_grad=True)], **options)


def test_the_defaults_are_defined_once():
    """Those of the optimiser, of `linear.fit`'s baseline and of specifications."""
    group = SLS([torch.zeros(2, requires_grad=True)]).param_groups[0]
    search = asdict(Search())
    assert search == {name: group[name] for name in search}
    assert search == asdict(to.linear.baselines.SLS())
    usual = pytest.importorskip("targetopt.lab.spec.methods").Sls()
    assert {name: search[name] for name in ("c", "shrink", "reset", "growth")} == {
        name: getattr(usual, name) for name in ("c", "shrink", "reset", "growth")
    }
