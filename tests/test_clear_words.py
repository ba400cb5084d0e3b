"""Odd numbers, odd answers, damaged states: an error that says what to do, never a raw traceback."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import targetopt as to
from core_parts import identical, network, optimiser, problem

F64 = torch.float64
X = torch.randn(16, 4, dtype=F64, generator=torch.Generator().manual_seed(0))


def never(_z: Tensor) -> Any:
    raise AssertionError("the oracle was asked")


@pytest.mark.parametrize("seed", [-1, 0.5, "one", None])
def test_a_seed_that_is_none(seed: Any) -> None:
    with pytest.raises(to.BadArgument, match=r"seed=.* must be a whole number ≥ 0"):
        to.linear.Batches(10, 3, seed=seed)


@pytest.mark.parametrize("given", ["large", None, [1.0, 2.0], 1j, float("inf"), -0.5])
def test_a_schedule_that_gives_no_number(given: Any) -> None:
    model = network()
    opt = to.SSO(model.parameters(), lr=1.0, schedule=lambda t: given)
    with pytest.raises(to.BadArgument, match=rf"gave {re.escape(repr(given))} at t = 1.*≥ 0"):
        opt.step(lambda: model(X), to.GradientOracle(never))
    sls = to.baselines.SLS(model.parameters(), schedule=lambda t: given)
    with pytest.raises(to.BadArgument, match=rf"gave {re.escape(repr(given))} at t = 1"):
        sls.step(lambda: model(X).square().mean())


DAMAGED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "eta a word": ("line-search", "gd", {"eta": "large"}),
    "eta nan": ("line-search", "gd", {"eta": float("nan")}),
    "sum a word": ("adagrad-norm", "gd", {"sum_squares": "much"}),
    "sum negative": ("adagrad-norm", "gd", {"sum_squares": -1.0}),
    "table a number": ("adagrad", "gd", {"sum_squares": 3.0}),
    "table nan": ("adagrad", "gd", {"sum_squares": torch.full((24,), torch.nan)}),
    "table negative": ("adagrad", "gd", {"sum_squares": -torch.ones(24)}),
    "counts too short": ("ftrl", "gd", {"count": torch.ones(3, dtype=torch.long)}),
    "counts of floats": ("ftrl", "gd", {"count": torch.ones(24)}),
    "start of another shape": ("ftrl", "gd", {"start": torch.ones(5)}),
    "not a dictionary": ("adagrad", "gd", None),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_rule_state_is_refused_when_it_is_loaded(case: str) -> None:
    rule, solver, damage = DAMAGED[case]
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver)
    p.step(opt, 0)
    saved = copy.deepcopy(opt.state_dict())
    good = saved["sso"]["rule_state"]
    saved["sso"]["rule_state"] = 7 if damage is None else {**good, **damage}
    before = opt.state_dict()
    with pytest.raises(to.BadArgument, match="state"):
        opt.load_state_dict(saved)
    assert identical(opt.state_dict(), before)
    p.step(opt, 1)


@pytest.mark.parametrize(
    ("solver", "damage"),
    [
        ("armijo", {"step_size": -1.0}),
        ("lbfgs", {"step_size": "long"}),
        ("gauss-newton", {"damping": 0.0}),
    ],
)
def test_a_damaged_solver_state_is_refused_when_it_is_loaded(solver: str, damage: Any) -> None:
    p = problem("gradient", solver)
    opt = optimiser(p.model, "gradient", solver)
    saved = copy.deepcopy(opt.state_dict())
    saved["sso"]["inner_state"] = damage
    with pytest.raises(to.BadArgument, match="the saved state is damaged"):
        opt.load_state_dict(saved)


def test_a_damaged_state_of_a_torch_optimiser_says_so() -> None:
    p = problem("gradient", "torch-adam")
    opt = optimiser(p.model, "gradient", "torch-adam")
    p.step(opt, 0)
    saved = copy.deepcopy(opt.state_dict())
    del saved["sso"]["inner_state"]["optimiser"]["param_groups"]
    opt.load_state_dict(saved)
    with pytest.raises(to.BadArgument, match=r"does not fit what factory made.*reset=True"):
        p.step(opt, 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda z: z.to_sparse(), r"dense targets; got the layout torch.sparse_coo.*to_dense"),
        (lambda z: z.to("meta"), r"device 'meta', which hold no numbers.*to_empty"),
    ],
)
def test_targets_without_numbers_are_refused(spoil: Callable[[Tensor], Tensor], words: str) -> None:
    model = network()
    opt = to.SSO(model.parameters(), lr=1.0)
    with pytest.raises(to.BadForward, match=words):
        opt.step(lambda: spoil(model(X)), to.GradientOracle(never))


def test_answers_without_numbers_are_refused_and_sparse_ones_taken() -> None:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact())

    class Odd:
        def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
            self.change = change

        def query(self, z: Tensor) -> to.TargetPoint:
            return to.TargetPoint(z, z.square() / 2, self.change(z))

    with pytest.raises(to.BadAnswer, match="on the device 'meta'"):
        opt.step(lambda: 1 * w, Odd(lambda z: z.to("meta")))
    assert opt.step(lambda: 1 * w, Odd(lambda z: z.to_sparse())).gradient_norm == 1.0


@pytest.mark.parametrize("rows", [["a", "b", "c"], [0, 1, 10**30], [[0, 1], [2]]])
def test_rows_that_are_no_numbers(rows: Any) -> None:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    with pytest.raises(to.BadArgument, match="index= must be"):
        to.SSO([w], lr=1.0).step(lambda: 1 * w, to.GradientOracle(never), index=rows)


@pytest.mark.parametrize("rule", [to.AdaGradNorm(), to.AdaGrad(), to.FTRL(), to.GradientStep()])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e30), (F64, 1e300), (F64, 1e160)])
def test_enormous_gradients(rule: to.Rule, dtype: torch.dtype, size: float) -> None:
    """A step, or an error that says what to do; nothing raw, nothing that is not finite."""
    w = torch.zeros(3, dtype=dtype, requires_grad=True)
    opt = to.SSO([w], lr=1.0, rule=rule, inner=to.Armijo(max_steps=3))
    try:
        report = opt.step(
            lambda: 1 * w, to.GradientOracle(lambda z: (0 * z, torch.full_like(z, size)))
        )
    except to.TargetoptError as error:
        assert re.search("scale the loss|Lower lr", str(error))  # noqa: PT017
        assert not w.any()
    else:
        assert report.eta > 0
        assert torch.isfinite(w).all()


def test_adagrad_norm_at_1e30() -> None:
    w = torch.zeros(3, requires_grad=True)
    opt = to.SSO([w], lr=1.0, rule=to.AdaGradNorm(), inner=to.Armijo(max_steps=50))
    oracle = to.GradientOracle(lambda z: (0 * z, torch.full_like(z, 1e30)))
    report = opt.step(lambda: 1 * w, oracle)
    assert report.gradient_norm == pytest.approx(3**0.5 * 1e30 / 3**0.5, rel=1e-6)
    assert report.eta == pytest.approx(1e-30, rel=1e-6)


@pytest.mark.parametrize("lr", [1e-42, 1e39])
def test_a_step_that_the_type_cannot_hold(lr: float) -> None:
    w = torch.zeros(3, requires_grad=True)
    with pytest.raises(to.BadArgument, match=r"cannot be used with torch.float32.*float64"):
        to.SSO([w], lr=lr).step(lambda: 1 * w, lambda z: z.square())


@pytest.mark.parametrize("whole", [None, 3, [], "x"])
def test_a_state_that_is_no_dictionary_is_refused(whole: Any) -> None:
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(to.BadArgument, match=r"must be the dictionary that opt\.state_dict"):
        to.SSO([w], lr=1.0).load_state_dict(whole)


@pytest.mark.parametrize("damage", [None, "x", -1, float("nan"), [], torch.zeros(2)])
@pytest.mark.parametrize("part", ["state", "param_groups", "sso"])
def test_damaged_parts_of_a_state_are_refused_and_change_nothing(part: str, damage: Any) -> None:
    w = torch.zeros(2, requires_grad=True)
    opt = to.SSO([w], lr=0.5, rule=to.GradientStep())
    opt.step(lambda: 1 * w, to.LossOracle(to.losses.Squared(torch.ones(2))))
    before = opt.state_dict()
    with pytest.raises(to.BadArgument, match="state_dict"):
        opt.load_state_dict({**before, part: damage})
    after = opt.state_dict()
    assert after["sso"] == before["sso"]
    assert after["param_groups"] == before["param_groups"]


def test_parameters_without_numbers_are_refused() -> None:
    w = torch.zeros(2, device="meta", requires_grad=True)
    opt = to.SSO([w], lr=1.0)
    with pytest.raises(to.BadArgument, match=r"on the device 'meta'.*to_empty"):
        opt.step(lambda: 1 * w, to.LossOracle(to.losses.Squared(torch.ones(2))))
