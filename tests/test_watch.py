"""Runs that go wrong in a way no single step shows are warned of, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import targetopt as to
from core_parts import network
from targetopt.step.watch import RunWarning

F64 = torch.float64
X = torch.randn(16, 4, dtype=F64, generator=torch.Generator().manual_seed(0))


def growing(**options: Any) -> Callable[[], to.StepReport]:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=2.2, inner=to.Exact(), **options)  # 2/L is the limit
    return lambda: opt.step(lambda: 1 * w, to.losses.Squared(torch.zeros(3, dtype=F64)))


def test_losses_that_grow_are_warned_of_once() -> None:
    step = growing()
    for _ in range(10):
        step()
    with pytest.warns(RunWarning, match=r"loss has grown for many steps.*η = 2.2.*Lower lr.*warn="):
        step()
    for _ in range(20):
        step()


def test_noisy_losses_that_grow_are_warned_of() -> None:
    model = network()
    opt = to.SSO(model.parameters(), lr=0.1, inner=to.GradientDescent(1e-9, max_steps=1))
    noise = torch.Generator().manual_seed(0)

    def run() -> None:
        for t in range(80):
            level = 1.0 + 0.2 * t + float(torch.rand(1, generator=noise))
            opt.step(lambda: model(X), to.GradientOracle(lambda z, a=level: (z * 0 + a, z)))

    with pytest.warns(RunWarning, match="loss has grown"):
        run()


def test_noise_alone_is_not_warned_of() -> None:
    model = network()
    opt = to.SSO(model.parameters(), lr=0.1, inner=to.GradientDescent(1e-9, max_steps=1))
    noise = torch.Generator().manual_seed(0)
    for _ in range(300):
        level = float(torch.rand(1, generator=noise))
        opt.step(lambda: model(X), to.GradientOracle(lambda z, a=level: (z * 0 + a, z)))


def test_the_warning_can_be_switched_off_and_is_not_repeated_after_resuming() -> None:
    step = growing(warn=False)
    for _ in range(30):
        step()
    w = torch.ones(3, dtype=F64, requires_grad=True)

    def run(opt: to.SSO, steps: int) -> None:
        for _ in range(steps):
            opt.step(lambda: 1 * w, to.losses.Squared(torch.zeros(3, dtype=F64)))

    first = to.SSO([w], lr=2.2, inner=to.Exact())
    with pytest.warns(RunWarning):
        run(first, 12)
    resumed = to.SSO([w], lr=2.2, inner=to.Exact())
    resumed.load_state_dict(first.state_dict())
    run(resumed, 5)


def test_a_warning_that_is_an_error_leaves_a_step_that_is_done() -> None:
    step = growing()
    for _ in range(10):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RunWarning):
            step()
    assert step().step == 12


def test_a_search_that_finds_nothing_is_warned_of() -> None:
    """Gradients of the wrong sign: the loss rises along them, and no η is ever found."""
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.LineSearch(max_backtracks=3), inner=to.Exact())
    oracle = to.GradientOracle(lambda z: (z.square(), -z), value=lambda z: z.square())
    for _ in range(4):
        assert opt.step(lambda: 1 * w, oracle).eta == 0.0
    with pytest.warns(RunWarning, match=r"5 steps in a row the search has found no step.*sign"):
        opt.step(lambda: 1 * w, oracle)


def test_a_schedule_that_ends_at_nought_is_not_warned_of() -> None:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.LineSearch(), schedule=lambda t: 0.0, inner=to.Exact())
    for _ in range(8):
        opt.step(lambda: 1 * w, to.losses.Squared(torch.zeros(3, dtype=F64)))


def test_a_search_without_end_is_warned_of() -> None:
    """A loss that falls for ever: every η is accepted."""
    w = torch.zeros(2, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.LineSearch(c=0.1, grow=1e8), inner=to.Exact())
    oracle = to.GradientOracle(lambda z: (-z * 1e-30, 0 * z - 1e-30), value=lambda z: -z * 1e-30)

    def run() -> None:
        for _ in range(12):
            opt.step(lambda: 1 * w, oracle)

    with pytest.warns(RunWarning, match=r"flat or to fall without end\. Give lr="):
        run()
