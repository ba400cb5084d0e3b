"""AdaGradNorm against its formula, its invariances, and torch's optimiser conventions."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from targetopt.baselines import AdaGradNorm
from targetopt.types import BadArgument


def descend(opt, closure, steps):
    for _ in range(steps):
        opt.zero_grad()
        closure().backward()
        opt.step()


def target(w):
    scale = torch.arange(1, w.numel() + 1, dtype=w.dtype).reshape(w.shape)
    return 0.5 * (scale * (w - 1).square()).sum()


@given(st.floats(0.01, 10), st.floats(0, 5), st.sampled_from([0.0, 0.3]))
@settings(max_examples=50, deadline=None)
def test_it_is_its_formula(lr, initial, weight_decay):
    w = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    opt = AdaGradNorm([w, bias], lr, initial=initial, weight_decay=weight_decay)
    descend(opt, lambda: target(w) + target(bias), 12)

    scale = np.concatenate([np.arange(1.0, 7.0), np.arange(1.0, 3.0)])
    theta, total = np.zeros(8), initial**2
    for _ in range(12):
        g = scale * (theta - 1) + weight_decay * theta
        total += g @ g
        theta -= lr / math.sqrt(total) * g
    found = torch.cat([w.detach().ravel(), bias.detach()])
    np.testing.assert_allclose(found, theta, rtol=1e-10, atol=1e-12)
    assert float(opt.accumulated) == pytest.approx(total, rel=1e-12)
    assert opt.gradient_calls == 12


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_from_b0_zero_the_path_does_not_depend_on_the_scale_of_the_loss(factor):
    a, b = (torch.zeros(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    descend(AdaGradNorm([a], 2.0), lambda: target(a), 30)
    descend(AdaGradNorm([b], 2.0), lambda: factor * target(b), 30)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lr", [0.1, 1.0, 100.0])
def test_it_converges_whatever_the_step(lr):
    w = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    descend(AdaGradNorm([w], lr), lambda: target(w), 4000)
    assert float(target(w).detach()) < 1e-8


def test_groups_share_b_and_keep_their_lr_and_decay():
    a, b = torch.zeros(1, requires_grad=True), torch.ones(1, requires_grad=True)
    opt = AdaGradNorm([{"params": [a]}, {"params": [b], "lr": 10.0, "weight_decay": 1.0}], lr=1.0)
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([3.0])
    opt.step()  # gradients 3 and 3 + 1·1 = 4: b = 5
    torch.testing.assert_close((a.item(), b.item()), (-3 / 5, 1 - 10 * 4 / 5))


def test_zero_and_missing_gradients_move_nothing():
    w = torch.ones(2, requires_grad=True)
    opt = AdaGradNorm([w])
    opt.step()
    assert opt.gradient_calls == 0
    w.grad = torch.zeros(2)
    opt.step()
    assert torch.equal(w.detach(), torch.ones(2))
    assert (opt.accumulated.item(), opt.gradient_calls) == (0.0, 1)


def test_the_closure_is_torchs():
    w = torch.tensor([3.0, 4.0], requires_grad=True)
    opt = AdaGradNorm([w])

    def closure():
        opt.zero_grad()
        loss = 0.5 * w.square().sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 12.5
    torch.testing.assert_close(w.detach(), torch.tensor([2.4, 3.2]))


def test_schedulers_drive_the_step():
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    opt = AdaGradNorm([w], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: (t + 1) ** -0.5)
    for _ in range(3):
        w.grad = torch.ones(1, dtype=torch.float64)
        opt.step()
        schedule.step()
    # lr/√t over b = √t: 1 + 1/2 + 1/3
    assert w.item() == pytest.approx(-(1 + 1 / 2 + 1 / 3), rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_resumed_run_is_bitwise_the_same_run(dtype):
    whole, w = (torch.zeros(5, dtype=dtype, requires_grad=True) for _ in range(2))
    opt_whole, opt = AdaGradNorm([whole], 0.3), AdaGradNorm([w], 0.3)
    descend(opt_whole, lambda: target(whole), 20)
    descend(opt, lambda: target(w), 9)
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    again = w.detach().clone().requires_grad_()
    resumed = AdaGradNorm([again], 1.0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    descend(resumed, lambda: target(again), 11)
    assert torch.equal(whole, again)
    assert torch.equal(opt_whole.accumulated, resumed.accumulated)
    assert resumed.gradient_calls == 20


def test_in_half_precision_the_sum_keeps_growing():
    w = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    opt = AdaGradNorm([w])
    for _ in range(600):  # a bfloat16 sum of ones stops at 256
        w.grad = torch.ones(1, dtype=torch.bfloat16)
        opt.step()
    assert opt.accumulated.item() == 600


def test_loading_a_fresh_state_and_copying_an_optimiser_share_nothing():
    w, v = (torch.zeros(2, requires_grad=True) for _ in range(2))
    first, second = AdaGradNorm([w]), AdaGradNorm([v])
    second.load_state_dict(first.state_dict())
    w.grad = torch.ones(2)
    first.step()
    assert (first.gradient_calls, second.gradient_calls) == (1, 0)
    second.load_state_dict(first.state_dict())
    first.step()
    assert second.accumulated.item() == pytest.approx(2.0, rel=1e-6)
    assert second.gradient_calls == 1


def test_wrong_use_is_explained():
    w = torch.zeros(2, requires_grad=True)
    for options in ({"lr": 0.0}, {"initial": -1.0}, {"weight_decay": math.inf}, {"lr": None}):
        name = next(iter(options))
        with pytest.raises(BadArgument, match=f"{name}="):
            AdaGradNorm([w], **options)
    with pytest.raises(BadArgument, match="one b for all"):
        AdaGradNorm([{"params": [w]}, {"params": [torch.zeros(1)], "initial": 2.0}])
    with pytest.raises(BadArgument, match="lr=-1"):
        AdaGradNorm([{"params": [w], "lr": -1}])
    with pytest.raises(BadArgument, match="complex64"):
        AdaGradNorm([torch.zeros(1, dtype=torch.complex64)])
    table = torch.nn.Embedding(4, 2, sparse=True)
    opt = AdaGradNorm(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(BadArgument, match="dense"):
        opt.step()
