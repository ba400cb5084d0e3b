"""Steps put together and spoiled at random: all is as it was, bit for bit, or the step is done.

Rules × solvers × models × faults of the oracle, drawn by hypothesis. The quick lane is derandomised and
short; ``TARGETOPT_FUZZ=20000 pytest tests/test_fuzz_steps.py --timeout 0`` draws as many examples as one likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

import targetopt as to
from core_parts import ALL_RULES, SOLVERS, identical, moody_mlp
from interruptions import Interrupt, World, by_line

EXAMPLES = int(os.environ.get("TARGETOPT_FUZZ", "120"))
X = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).sign()

Made = tuple[World, Callable[[], Tensor]]


def moody(rule: to.Rule, lr: float | None, inner: to.Inner) -> Made:
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=lr, rule=rule, inner=inner, warn=False)
    return World(model, opt), lambda: model(X)[:, 0]


def half(rule: to.Rule, lr: float | None, inner: to.Inner) -> Made:
    model = moody_mlp().to(torch.bfloat16)
    opt = to.SSO(model.parameters(), lr=lr, rule=rule, inner=inner, warn=False)
    return World(model, opt), lambda: model(X.bfloat16())[:, 0]


def shared_and_frozen(rule: to.Rule, lr: float | None, inner: to.Inner) -> Made:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1)).double()
    model[2].weight = model[0].weight
    model[3].bias.requires_grad_(False)
    opt = to.SSO(model.parameters(), lr=lr, rule=rule, inner=inner, warn=False)
    return World(model, opt), lambda: model(X)[:, 0]


def plain_linear(rule: to.Rule, lr: float | None, inner: to.Inner) -> Made:
    model = nn.Linear(4, 1).double()
    opt = to.SSO(model.parameters(), lr=lr, rule=rule, inner=inner, warn=False)
    return World(model, opt), lambda: model(X)[:, 0]


def borrowed(rule: to.Rule, lr: float | None, inner: to.Inner) -> Made:
    net = moody_mlp()
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    buffers = {k: v.clone() for k, v in net.named_buffers()}
    opt = to.SSO(list(params.values()), lr=lr, rule=rule, inner=inner, warn=False)
    world = World(net, opt, *params.values(), *buffers.values())
    return world, lambda: functional_call(net, {**params, **buffers}, (X,))[:, 0]


def spoiled(fault: str, loss: to.losses.Loss) -> to.Oracle:
    """An oracle with this fault."""
    kept = torch.zeros(6, dtype=torch.float64)

    def answer(z: Tensor) -> Any:
        losses, gradients = loss.value(z), loss.gradient(z)
        if fault == "raises":
            raise ConnectionError("service down")
        if fault == "interrupt":
            raise Interrupt("in the oracle")
        if fault == "shape":
            return losses[:5], gradients
        if fault == "nan":
            return losses, gradients.index_fill(0, torch.tensor(2), torch.nan)
        if fault == "huge":
            return losses, gradients * 1e300
        if fault == "in place":
            z.mul_(-7.0)
        if fault == "aliasing":
            kept.copy_(losses)
            return kept, gradients
        return losses, gradients

    def value(z: Tensor) -> Tensor:
        kept.copy_(loss.value(z))
        return kept

    return to.GradientOracle(
        answer, value=value, curvature=loss.curvature, smoothness=loss.smoothness
    )


class Telling:
    """An oracle that reveals the loss as well, with the same faults."""

    def __init__(self, fault: str, loss: to.losses.Loss) -> None:
        self.faulty, self.open = spoiled(fault, loss), to.LossOracle(loss)
        self.value, self.revealed = self.open.value, self.open.revealed
        self.curvature, self.smoothness = self.open.curvature, self.open.smoothness
        self.majoriser = self.open.majoriser

    def query(self, z: Tensor) -> to.TargetPoint:
        whole, said = self.open.query(z), self.faulty.query(z)
        return replace(whole, losses=said.losses, gradients=said.gradients)


MODELS = [moody, half, shared_and_frozen, plain_linear, borrowed]
LOSSES = [to.losses.Squared, to.losses.Logistic, to.losses.Huber]
FAULTS = ["none", "raises", "interrupt", "shape", "nan", "huge", "in place", "aliasing", "line"]


@given(
    rule=st.sampled_from(sorted(ALL_RULES)),
    solver=st.sampled_from(sorted(SOLVERS)),
    model=st.sampled_from(MODELS),
    loss=st.sampled_from(LOSSES),
    fault=st.sampled_from(FAULTS),
    oracle=st.sampled_from([spoiled, Telling]),
    before=st.integers(0, 3),
    moment=st.integers(1, 3000),
)
@settings(
    max_examples=EXAMPLES,
    derandomize="TARGETOPT_FUZZ" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_a_step_is_whole_whatever_happens(
    rule: str, solver: str, model: Any, loss: Any, fault: str, oracle: Any, before: int, moment: int
) -> None:
    torch.manual_seed(0)
    part, lr = ALL_RULES[rule]
    world, forward = model(part, lr, SOLVERS[solver])
    opt: Any = world.opt
    steps = 0
    with suppress(to.TargetoptError):  # a rule and an oracle that do not go together
        for _ in range(before):
            opt.step(forward, oracle("none", loss(Y)))
            steps += 1
    world = World(world.model, opt, *world.more)
    spoiled_oracle = oracle(fault, loss(Y))

    def act() -> Any:
        return opt.step(forward, spoiled_oracle)

    try:
        if fault == "line":
            by_line(act, moment)
        else:
            act()
    except (ConnectionError, KeyboardInterrupt, to.TargetoptError) as error:
        event(type(error).__name__)
        done = opt._progress.steps - steps
        assert done == 0 or hasattr(error, "report") or fault == "line"  # noqa: PT017
        if done == 0:
            assert world.unchanged()
    else:
        event("done")
        assert opt._progress.steps == steps + 1
        assert all(bool(torch.isfinite(p).all()) for p in world.model.parameters())
        if fault in ("in place", "aliasing"):  # the same as from an oracle with good manners
            end = world.seen()
            world.put_back()
            opt.step(forward, oracle("none", loss(Y)))
            assert identical(world.seen(), end)
