"""Bundle: cuts below a convex loss, serious and null steps, and the ends that theory promises."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

import targetopt as to
from core_parts import identical
from targetopt.rules.bundle import Bundle, Cuts

F64 = torch.float64


def minimax(rows: int = 30, columns: int = 10, seed: int = 0) -> tuple[to.ScalarOracle, float]:
    """max_i |a_i·z − b_i| and its smallest value, by a linear program."""
    g = torch.Generator().manual_seed(seed)
    A = torch.randn(rows, columns, dtype=F64, generator=g)
    b = torch.randn(rows, dtype=F64, generator=g)
    one = np.ones((rows, 1))
    sides = np.block([[A.numpy(), -one], [-A.numpy(), -one]])
    least = linprog(
        np.r_[np.zeros(columns), 1.0], sides, np.r_[b.numpy(), -b.numpy()], bounds=(None, None)
    ).fun
    return to.ScalarOracle(lambda z: (A @ z - b).abs().max(), autograd=True), float(least)


def test_a_kinked_loss_is_solved_where_other_rules_stall() -> None:
    oracle, least = minimax()
    ends = {}
    for rule in (to.Bundle(), to.TrustRegion(), to.TrustRegion(to.Secant())):
        w = torch.zeros(10, dtype=F64, requires_grad=True)
        opt = to.SSO([w], rule=rule, inner=to.LBFGS(max_steps=60), warn=False)
        losses = [opt.step(lambda w=w: 1 * w, oracle).loss for _ in range(60)]
        ends[repr(rule)] = min(losses) - least
    bundle, *others = ends.values()
    assert bundle < 1e-6
    assert min(others) > 1e-2


def test_serious_steps_never_rise_and_null_steps_go_back() -> None:
    oracle, _ = minimax(seed=1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0)).double()
    x = torch.randn(10, 4, dtype=F64)
    opt = to.SSO(net.parameters(), rule=to.Bundle(), inner=to.LBFGS(max_steps=20), warn=False)
    reports = [opt.step(lambda: net(x), oracle) for _ in range(30)]
    accepted = [r.loss for r in reports if r.accepted]
    assert not all(r.accepted for r in reports)
    assert all(after <= before for before, after in pairwise(accepted))
    opt.rewind()
    assert float(oracle.query(net(x).detach()).loss) == pytest.approx(accepted[-1], rel=1e-12)
    assert (opt.totals.oracle_calls, opt.totals.value_calls) == (30, 0)


def bundle_of(cuts: int, n: int, seed: int) -> tuple[Cuts, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    slopes = torch.randn(cuts, n, 2, dtype=F64, generator=g)
    offsets = torch.randn(cuts, dtype=F64, generator=g)
    anchor, z, v = (torch.randn(n, 2, dtype=F64, generator=g) for _ in range(3))
    return Cuts(anchor, slopes, offsets, 0.7, 0.3), z, v


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_the_surrogate_is_differentiated_and_compared_exactly(cuts: int, n: int, seed: int) -> None:
    q, z, v = bundle_of(cuts, n, seed)
    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(q.value(leaf), leaf)
    torch.testing.assert_close(q.gradient(z) / n, slope, rtol=1e-10, atol=1e-12)
    product = torch.autograd.functional.hvp(q.value, z, v)[1]
    torch.testing.assert_close(q.curvature_product(z, v) / n, product, rtol=1e-9, atol=1e-11)
    there = z + 0.1 * v
    change = q.value(there) - q.value(z)
    torch.testing.assert_close(q.change(z, there, q.gradient(z)), change, rtol=1e-9, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_cuts_stay_below_a_convex_loss(seed: int) -> None:
    """Beside the proximal term the surrogate is nowhere above the loss: that is what makes cuts shareable."""
    oracle, _ = minimax(8, 3, seed)
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    rule = Bundle(cuts=6)
    opt = to.SSO([w], rule=rule, inner=to.LBFGS(max_steps=20), warn=False)
    for _ in range(8):
        opt.step(lambda: 1 * w, oracle)
    state = opt._progress.rule_state
    assert len(state["values"]) <= 6
    g = torch.Generator().manual_seed(seed)
    for _ in range(5):
        z = 3 * torch.randn(3, dtype=F64, generator=g)
        loss = float(oracle.query(z).loss)
        assert Bundle._largest(state, z) <= loss + 1e-9 * abs(loss)
    assert Bundle._largest(state, state["centre"]) == pytest.approx(state["height"], rel=1e-9)


def test_other_rows_begin_a_new_bundle() -> None:
    x = torch.randn(8, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    w = torch.zeros(2, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Bundle(), inner=to.LBFGS(max_steps=5), warn=False)

    def step(rows: list[int]) -> int:
        opt.step(lambda: x[rows] @ w, lambda z: (z - 1).abs())
        return len(opt._progress.rule_state["values"])

    assert [step([0, 1]), step([0, 1]), step([2, 3]), step([2, 3])] == [1, 2, 1, 2]


def test_resumes_bitwise() -> None:
    oracle, _ = minimax()

    def run(cut: int | None) -> tuple[Tensor, dict[str, object]]:
        w = torch.zeros(10, dtype=F64, requires_grad=True)
        opt = to.SSO([w], rule=to.Bundle(), inner=to.LBFGS(max_steps=20), warn=False)
        for t in range(12):
            if t == cut:
                file = io.BytesIO()
                torch.save({"w": w.detach(), "opt": opt.state_dict()}, file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                w = saved["w"].requires_grad_()
                opt = to.SSO([w], rule=to.Bundle(), inner=to.LBFGS(max_steps=20), warn=False)
                opt.load_state_dict(saved["opt"])
            opt.step(lambda w=w: 1 * w, oracle)
        return w.detach(), opt.state_dict()["sso"]

    assert identical(run(None), run(7))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cuts": 1}, "cuts=1 must be a whole number ≥ 2"),
        ({"accept": 1.0}, "Bundle needs 0 < accept < 1"),
        ({"smoothing": 0.0}, "Bundle needs 0 < accept < 1"),
    ],
)
def test_bad_input(options: dict[str, float], words: str) -> None:
    with pytest.raises(to.BadArgument, match=words):
        to.Bundle(**options)  # type: ignore[arg-type]


def test_an_exact_solve_is_refused_with_the_way_out() -> None:
    w = torch.ones(2, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Bundle(), inner=to.Exact())
    with pytest.raises(to.MissingCapability, match="LBFGS"):
        opt.step(lambda: 1 * w, to.ScalarOracle(lambda z: z.abs().sum(), autograd=True))
