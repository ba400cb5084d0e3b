"""Counts are what was paid: each number in the report is what instrumented callables saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import targetopt as to
from core_parts import MATRIX, Problem, optimiser, problem


class _Watched(torch.autograd.Function):
    """The identity; its backward counts itself, and can be differentiated again."""

    @staticmethod
    def forward(ctx, z, seen):
        ctx.seen = seen
        return z.view_as(z)

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen["backward"] += 1
        return gradient * 1, None


def watched_forward(forward: Callable[[], Tensor], seen: Counter[str]) -> Callable[[], Tensor]:
    def watched() -> Tensor:
        seen["forward"] += 1
        return _Watched.apply(forward(), seen)

    return watched


class WatchedOracle:
    """Counts gradient calls and value calls of another oracle."""

    def __init__(self, oracle: to.Oracle, seen: Counter[str]) -> None:
        self.oracle = oracle
        self.seen = seen

    def query(self, z: Tensor) -> to.TargetPoint:
        self.seen["oracle"] += 1
        point = self.oracle.query(z)

        def value(other: Tensor) -> Tensor:
            self.seen["value"] += 1
            return point.value(other)

        return replace(point, value=value)


def watched_step(p: Problem, opt: to.SSO, step: int, seen: Counter[str]) -> to.StepReport:
    rows = p.index(step)
    forward, oracle = (
        watched_forward(lambda: p.forward(rows), seen),
        WatchedOracle(p.oracle(rows), seen),
    )
    wanted = p.wanted_by(opt)
    everything = None if wanted is None else watched_forward(wanted, seen)
    return opt.step(forward, oracle, index=rows, regularise_on=everything)


def counts(report: to.Counts) -> dict[str, int]:
    return {
        "oracle": report.oracle_calls,
        "value": report.value_calls,
        "forward": report.forward_calls,
        "backward": report.backward_calls,
    }


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_every_call_is_reported(rule: str, solver: str) -> None:
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver)
    total: Counter[str] = Counter()
    reports = []
    for step in range(4):
        seen: Counter[str] = Counter(oracle=0, value=0, forward=0, backward=0)
        reports.append(watched_step(p, opt, step, seen))
        assert counts(reports[-1]) == dict(seen)
        assert reports[-1].oracle_calls == 1
        assert (reports[-1].value_calls > 0) == (rule == "line-search")
        assert (reports[-1].jvp_calls > 0) == (solver == "gauss-newton")
        total += seen
    assert counts(opt.totals) == {**dict.fromkeys(("oracle", "value"), 0), **dict(total)}
    for name in [item.name for item in fields(to.Counts)]:
        assert asdict(opt.totals)[name] == sum(getattr(r, name) for r in reports)


@given(
    solver=st.sampled_from(
        [
            to.GradientDescent(step_size=0.2, max_steps=7),
            to.Armijo(max_steps=7, initial_step=50.0),
            to.LBFGS(max_steps=7),
            to.GaussNewton(max_steps=3),
        ]
    ),
    gradient_tolerance=st.sampled_from([0.0, 1e-3, 1e-1, 10.0]),
    relative_decrease=st.sampled_from([0.0, 1e-3, 0.3]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_counts_hold_however_the_inner_loop_stops(
    solver, gradient_tolerance, relative_decrease, weight_decay, seed
) -> None:
    stopping = to.Stopping(gradient_tolerance, relative_decrease)
    inner = type(solver)(**{**vars(solver), "stopping": stopping})
    p = problem("gradient", "armijo", seed=seed)
    opt = to.SSO(p.model.parameters(), lr=1.0, inner=inner, weight_decay=weight_decay)
    for step in range(2):
        seen: Counter[str] = Counter(oracle=0, value=0, forward=0, backward=0)
        report = watched_step(p, opt, step, seen)
        assert counts(report) == dict(seen)
        assert report.inner_steps <= inner.max_steps
        if gradient_tolerance == 10.0:
            assert (report.stop_reason, report.inner_steps) == ("gradient", 0)


def test_early_stop_of_a_torch_optimiser_counts_too() -> None:
    stopping = to.Stopping(relative_decrease=0.2)
    inner = to.Torch(lambda q: torch.optim.SGD(q, lr=0.05), max_steps=200, stopping=stopping)
    p = problem("gradient", "torch-adam")
    opt = to.SSO(p.model.parameters(), lr=1.0, inner=inner)
    seen: Counter[str] = Counter(oracle=0, value=0, forward=0, backward=0)
    report = watched_step(p, opt, 0, seen)
    assert report.stop_reason == "decrease"
    assert 0 < report.inner_steps < 200
    assert counts(report) == dict(seen)


def test_a_purity_check_is_one_forward_of_the_first_step() -> None:
    reports = []
    for check_purity in (True, False):
        p = problem("gradient", "gd")
        opt = optimiser(p.model, "gradient", "gd", check_purity=check_purity)
        reports.append([p.step(opt, t) for t in range(2)])
    with_check, without = reports
    assert with_check[0].forward_calls == without[0].forward_calls + 1
    assert with_check[1].forward_calls == without[1].forward_calls


def test_a_step_without_a_move_costs_one_forward() -> None:
    p = problem("line-search", "lbfgs")
    opt = optimiser(p.model, "line-search", "lbfgs", check_purity=False)
    opt.param_groups[0]["lr"] = 0.0
    seen: Counter[str] = Counter(oracle=0, value=0, forward=0, backward=0)
    report = watched_step(p, opt, 0, seen)
    assert counts(report) == dict(seen) == {"oracle": 1, "value": 0, "forward": 1, "backward": 0}


@pytest.mark.parametrize("fresh", [False, True], ids=["same", "another"])
def test_tell_counts_the_forward_it_checks(fresh: bool) -> None:
    p = problem("gradient", "armijo")
    opt = optimiser(p.model, "gradient", "armijo")
    rows, seen = p.index(0), Counter[str]()
    forward = watched_forward(lambda: p.forward(rows), seen)
    query = opt.ask(forward)
    point = p.oracle(rows).query(query.targets)
    asked = seen["forward"]
    if fresh:
        forward = watched_forward(lambda: p.forward(rows), seen)
    with pytest.raises(to.BadAnswer):  # what a refused tell has spent is counted nowhere
        opt.tell(query, forward, point.losses * torch.nan, point.gradients)
    refused = seen["forward"] - asked
    report = opt.tell(query, forward, point.losses, point.gradients)
    assert report.forward_calls == seen["forward"] - refused
    assert report.backward_calls == seen["backward"]


@pytest.mark.parametrize("split", [False, True], ids=["step", "ask-tell"])
def test_the_analysis_surrogate_counts_both_of_its_forwards(split: bool) -> None:
    p = problem("gradient", "armijo")
    opt = optimiser(p.model, "gradient", "armijo")
    rows, seen = p.index(0), Counter[str]()
    batch = watched_forward(lambda: p.forward(rows), seen)
    everything = watched_forward(lambda: p.forward(torch.arange(24)), seen)
    if split:
        query = opt.ask(batch, regularise_on=everything)
        point = p.oracle(rows).query(query.targets)
        report = opt.tell(query, batch, point.losses, point.gradients, regularise_on=everything)
    else:
        report = opt.step(batch, p.oracle(rows), regularise_on=everything)
    assert (report.forward_calls, report.backward_calls) == (seen["forward"], seen["backward"])


def test_failed_steps_are_not_in_the_totals() -> None:
    p = problem("gradient", "armijo")
    opt = optimiser(p.model, "gradient", "armijo")
    p.step(opt, 0)
    before = opt.totals
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: p.forward(p.index(1)), lambda z: z / (1 // 0))
    assert opt.totals == before
    assert p.step(opt, 1).step == 2
