"""What SLS and SVRG promise alike: atomic steps, frozen randomness, closures that are explained."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from targetopt.baselines import SLS, SVRG, AdaGradNorm
from targetopt.schedules import inverse_sqrt
from targetopt.types import BadAnswer, BadArgument, Diverged


def sls(params, closure):
    return SLS(params, 100.0, c=0.9)


def svrg(params, closure):
    opt = SVRG(params, 0.1)
    opt.snapshot(closure)
    return opt


both = pytest.mark.parametrize("make", [sls, svrg])


class RunningMean(nn.Module):
    """Moves a buffer at each forward, by torch's ordinary in-place operations."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        self.mean.lerp_(x.detach().mean(dim=0), 0.1)
        return x


def prepared(layer):
    """A net with dropout and ``layer``, its input, and the closure of its loss."""
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(6, 8), layer, nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    net.double()
    x, y = torch.randn(16, 6, dtype=torch.float64), torch.randint(3, (16,))
    return net, x, lambda: cross_entropy(net(x), y)


@pytest.fixture(params=[RunningMean, nn.BatchNorm1d])
def network(request):
    with torch.random.fork_rng():
        yield prepared(request.param(8))


def everything(net, opt):
    """All numbers that a step may change, and the options by their text."""
    state = opt.state_dict()
    groups = repr(state.pop("param_groups"))
    return copy.deepcopy((net.state_dict(), state, torch.get_rng_state())), groups


def assert_same(a, b):
    torch.testing.assert_close(a[0], b[0], rtol=0, atol=0)
    assert a[1] == b[1]


def disturbed(loss, at, answer):
    """``loss``, but its ``at``-th call raises ``answer`` or gives ``answer`` times the loss."""
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        value = loss()
        if calls == at:
            if isinstance(answer, BaseException):
                raise answer
            value = value * answer
        return value

    return closure


@both
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("error", [RuntimeError("the simulator died"), KeyboardInterrupt()])
def test_a_closure_that_raises_leaves_no_trace(network, make, at, error):
    net, _, loss = network
    opt = make(net.parameters(), loss)
    opt.step(loss)
    before = everything(net, opt)
    with pytest.raises(type(error)):
        opt.step(disturbed(loss, at, error))
    assert_same(everything(net, opt), before)
    opt.step(loss)  # and the run goes on


@both
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_leaves_no_trace(network, make, value):
    net, _, loss = network
    opt = make(net.parameters(), loss)
    opt.step(loss)
    before = everything(net, opt)
    with pytest.raises(Diverged, match="nothing was changed"):
        opt.step(disturbed(loss, 1, value))
    assert_same(everything(net, opt), before)


@both
def test_a_gradient_that_is_not_finite_is_refused(make):
    w = torch.zeros(1, requires_grad=True)
    opt = make([w], lambda: w.sum())
    with pytest.raises(Diverged, match="gradient is not finite"):
        opt.step(lambda: w.sqrt().sum())
    assert w.item() == 0.0


@both
def test_dropout_keeps_its_mask_within_a_step_and_changes_it_between(network, make):
    net, _, loss = network
    opt = make(net.parameters(), loss)
    masks = []
    net[3].register_forward_hook(lambda _module, _inputs, output: masks.append(output != 0))
    opt.step(loss)
    assert len(masks) > 1
    assert 0.2 < masks[0].double().mean() < 0.8
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    count = len(masks)
    opt.step(loss)
    assert not torch.equal(masks[0], masks[count])


@both
@pytest.mark.parametrize("layer", [RunningMean, nn.BatchNorm1d])
def test_buffers_move_once_per_step(make, layer):
    with torch.random.fork_rng():
        net, x, loss = prepared(layer(8))
        opt = make(net.parameters(), loss)
        for _ in range(2):
            expected = copy.deepcopy(net)
            with torch.no_grad(), torch.random.fork_rng():
                expected(x)
            opt.step(loss)
            torch.testing.assert_close(dict(net.named_buffers()), dict(expected.named_buffers()))


@both
def test_grad_fields_are_left_alone_and_the_loss_before_the_step_is_returned(make):
    w = torch.ones(2, requires_grad=True)
    opt = make([w], lambda: w.sum())
    w.grad = torch.full((2,), 9.0)
    loss = opt.step(lambda: w.sum().square()[None])
    assert (loss.item(), loss.shape, loss.requires_grad) == (4.0, (), False)
    assert not torch.equal(w.detach(), torch.ones(2))
    assert torch.equal(w.grad, torch.full((2,), 9.0))


@both
def test_a_loss_that_is_a_view_of_a_parameter_is_returned_as_it_was(make):
    w = torch.ones(1, requires_grad=True)
    loss = make([w], lambda: w[0]).step(lambda: w[0])
    assert loss.item() == 1.0
    assert w.item() < 1.0


@both
@pytest.mark.parametrize(
    ("closure", "message"),
    [
        (lambda w: None, "got None"),
        (lambda w: float(w.detach().sum()), "got 2.0"),
        (lambda w: w.square(), r"shape \(2,\)"),
        (lambda w: w.detach().sum(), "does not depend on the parameters"),
        (lambda w: (w.detach() > 0).sum(), "torch.int64"),
    ],
)
def test_wrong_closures_are_explained(make, closure, message):
    w = torch.ones(2, requires_grad=True)
    opt = make([w], lambda: w.sum())
    with pytest.raises(BadAnswer, match=message):
        opt.step(lambda: closure(w))
    assert torch.equal(w.detach(), torch.ones(2))


@both
def test_a_closure_that_calls_backward_is_explained(make):
    w = torch.ones(2, requires_grad=True)

    def closure():
        loss = w.exp().sum()
        loss.backward()
        return loss

    opt = make([w], lambda: w.sum())
    with pytest.raises(BadAnswer, match=r"without calling backward\(\)"):
        opt.step(closure)


RIVALS = {
    "SLS": lambda params: SLS(params, 100.0, reset="keep", schedule=inverse_sqrt()),
    "SVRG": lambda params: SVRG(params, 0.1, weight_decay=0.01),
    "AdaGradNorm": lambda params: AdaGradNorm(params, 0.5, initial=0.1),
}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
@pytest.mark.parametrize("name", RIVALS)
def test_a_copy_of_an_optimiser_goes_on_as_it_does(name, copied):
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    x, y = torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))
    opt = RIVALS[name](net.parameters())

    def step(net, opt):
        if name == "AdaGradNorm":
            opt.zero_grad()
            cross_entropy(net(x), y).backward()
            opt.step()
        else:
            opt.step(lambda: cross_entropy(net(x), y))

    if name == "SVRG":
        opt.snapshot(lambda: cross_entropy(net(x), y))
    step(net, opt)
    twins = copied((net, opt))
    for _ in range(2):
        step(net, opt)
        step(*twins)
    assert_same(everything(*twins), everything(net, opt))


@pytest.mark.parametrize("build", [SLS, lambda params: SVRG(params, 0.1)])
def test_wrong_parameters_are_explained(build):
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(BadArgument, match="one parameter group"):
        build([{"params": [w]}, {"params": [torch.zeros(1, requires_grad=True)]}])
    with pytest.raises(BadArgument, match="complex64"):
        build([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])
    with pytest.raises(BadArgument, match="no parameter requires"):
        build([torch.zeros(2)]).step(lambda: w.sum())
