"""Oracles and what passes between the seams: points, counts, queries, and an oracle's bad manners."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import targetopt as to
from core_parts import identical

F64 = torch.float64
Y = torch.tensor([1.0, -2.0, 0.5], dtype=F64)


def point(n: int = 4, k: int = 2, seed: int = 0) -> to.TargetPoint:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, dtype=F64, generator=g)
    return to.TargetPoint(z, z.square().sum(1), 2 * z)


@given(n=st.integers(1, 6), k=st.integers(1, 3), copies=st.integers(1, 4), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_norms_and_losses_are_means_over_examples(n: int, k: int, copies: int, seed: int) -> None:
    """Duplicating every example changes neither."""
    once = point(n, k, seed)
    often = to.TargetPoint(
        *(
            t.repeat(copies, *[1] * (t.ndim - 1))
            for t in (once.targets, once.losses, once.gradients)
        )
    )
    assert float(often.loss) == pytest.approx(float(once.loss), rel=1e-12)
    assert float(often.gradient_norm_squared) == pytest.approx(
        float(once.gradient_norm_squared), rel=1e-12
    )
    assert float(once.gradient_norm_squared) == pytest.approx(
        float(sum((g * g).sum() for g in once.gradients)) / n, rel=1e-12
    )


counts = st.builds(to.Counts, *[st.integers(0, 10**6)] * 6)


@given(a=counts, b=counts, c=counts)
@settings(max_examples=30, deadline=None)
def test_counts_add_up(a: to.Counts, b: to.Counts, c: to.Counts) -> None:
    assert a + to.Counts() == a
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert (a + b).forward_calls == a.forward_calls + b.forward_calls


def test_reports_and_points_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        to.StepReport().loss = 1.0
    with pytest.raises(AttributeError):
        point().losses = torch.zeros(4)


def test_the_three_oracles_of_one_loss_agree() -> None:
    z = torch.tensor([0.3, 0.1, -4.0], dtype=F64)
    closed = to.LossOracle(to.losses.Squared(Y)).query(z)
    autograd = to.LossOracle(lambda t: 0.5 * (t - Y).square()).query(z)
    black_box = to.GradientOracle(
        lambda t: (0.5 * (t.numpy() - Y.numpy()) ** 2, list(t.numpy() - Y.numpy()))
    ).query(z)
    for other in (autograd, black_box):
        torch.testing.assert_close(other.losses, closed.losses)
        torch.testing.assert_close(other.gradients, closed.gradients)
        assert not other.losses.requires_grad
        assert not other.gradients.requires_grad
    assert closed.smoothness == 1.0
    assert torch.equal(closed.curvature(), torch.ones_like(z))
    assert (autograd.smoothness, autograd.curvature) == (None, None)
    torch.testing.assert_close(autograd.value(z + 1), closed.value(z + 1))
    assert not autograd.value(z + 1).requires_grad
    assert (black_box.value, black_box.curvature) == (None, None)


def test_a_black_box_may_speak_numpy_throughout() -> None:
    """Losses, gradients, values and curvature, in float32 lists and arrays."""
    y = np.array([1.0, -1.0, 1.0])

    def sigmoid(t: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-t))

    oracle = to.GradientOracle(
        lambda z: (np.logaddexp(0, -y * z.numpy()), -y * sigmoid(-y * z.numpy())),
        value=lambda z: np.logaddexp(0, -y * z.numpy()),
        curvature=lambda z: sigmoid(z.numpy()) * sigmoid(-z.numpy()),
        smoothness=0.25,
    )
    x = torch.randn(3, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    for rule in (to.GradientStep(), to.LineSearch(), to.Newton()):
        outcomes = []
        for source in (oracle, to.LossOracle(to.losses.Logistic(torch.tensor(y)))):
            w = torch.zeros(2, dtype=F64, requires_grad=True)
            opt = to.SSO([w], rule=rule)
            reports = [opt.step(lambda w=w: x @ w, source) for _ in range(3)]
            outcomes.append((w.detach(), [r.value_calls for r in reports]))
        torch.testing.assert_close(outcomes[0][0], outcomes[1][0], rtol=1e-9, atol=1e-12)
        assert outcomes[0][1] == outcomes[1][1]


def test_an_oracle_may_work_in_place_on_what_it_is_given() -> None:
    """The targets are its own copy; the surrogate stays where the model was."""

    def careless(z: Tensor) -> tuple[np.ndarray, np.ndarray]:
        error = z.numpy()
        error -= Y.numpy()
        return 0.5 * error**2, error

    w = torch.full((3,), 2.0, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=0.5, inner=to.Exact())
    opt.step(lambda: 2 * w, to.GradientOracle(careless))
    torch.testing.assert_close((2 * w).detach(), 0.5 * (4.0 + Y))


def test_answers_of_another_type_are_cast_to_the_targets() -> None:
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact())
    half = to.GradientOracle(lambda z: (np.zeros(3, np.float16), -np.ones(3, np.float32)))
    opt.step(lambda: 1 * w, half)
    assert w.dtype == F64
    assert w.tolist() == pytest.approx([1.0] * 3, rel=1e-15)
    query = opt.ask(lambda: 1 * w)
    opt.tell(query, lambda: 1 * w, [0, 0, 0], [1, 1, 1])
    assert w.tolist() == pytest.approx([0.0] * 3, abs=1e-15)


@pytest.mark.parametrize("way", ["function", "loss", "oracle", "object"])
def test_what_may_stand_for_an_oracle(way: str) -> None:
    class Bare:
        def query(self, z: Tensor) -> to.TargetPoint:
            return to.TargetPoint(z, z.square() / 2, z)

    oracle = {
        "function": lambda z: z.square() / 2,
        "loss": to.losses.Squared(torch.zeros(3, dtype=F64)),
        "oracle": to.LossOracle(to.losses.Squared(torch.zeros(3, dtype=F64))),
        "object": Bare(),
    }[way]
    w = torch.ones(3, dtype=F64, requires_grad=True)
    report = to.SSO([w], lr=1.0, inner=to.Exact()).step(lambda: 1 * w, oracle)
    assert report.loss == 0.5
    assert w.tolist() == pytest.approx([0.0] * 3, abs=1e-15)


def test_an_oracle_with_parameters_gets_no_gradients() -> None:
    teacher = nn.Linear(1, 1).double()
    w = torch.ones(3, dtype=F64, requires_grad=True)
    to.SSO([w], lr=0.1).step(lambda: 1 * w, lambda z: teacher(z.unsqueeze(1))[:, 0].square())
    assert all(p.grad is None for p in teacher.parameters())


def test_tell_takes_what_every_rule_needs() -> None:
    """The same as step with an oracle that offers it; it evaluates its forward once more."""
    loss = to.losses.Logistic(Y.sign())
    x = torch.randn(3, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
    for rule in (to.GradientStep(), to.LineSearch(), to.Newton(), to.AdaGrad(), to.FTRL()):
        outcomes = []
        for split in (True, False):
            w = torch.zeros(2, dtype=F64, requires_grad=True)
            opt = to.SSO([w], rule=rule)
            rows = torch.tensor([5, 0, 2])
            for _ in range(3):
                if split:
                    query = opt.ask(lambda w=w: x @ w, index=rows)
                    z = query.targets
                    report = opt.tell(
                        query,
                        lambda w=w: x @ w,
                        loss.value(z),
                        loss.gradient(z),
                        curvature=loss.curvature(z),
                        value=loss.value,
                        smoothness=loss.smoothness,
                    )
                else:
                    report = opt.step(lambda w=w: x @ w, to.LossOracle(loss), index=rows)
            state = opt.state_dict()["sso"]
            spent = state["totals"].pop("forward_calls") - 3 * split
            report = replace(report, forward_calls=report.forward_calls - split)
            outcomes.append((w.detach(), report, state, spent))
        assert identical(*outcomes)


def test_a_query_travels_without_its_graph() -> None:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=1.0)
    query = opt.ask(lambda: 2 * w, index=torch.tensor([3, 1, 2]))
    for other in (pickle.loads(pickle.dumps(query)), copy.deepcopy(query)):
        assert other.live is None
        assert torch.equal(other.targets, query.targets)
        assert torch.equal(other.index, query.index)
        assert (other.step, other.rng, other.buffers) == (0, [], [])
    assert not query.targets.requires_grad
    assert "live" not in repr(query)


def test_the_memory_of_a_rule_is_said() -> None:
    w = torch.ones(3, dtype=F64, requires_grad=True)
    for rule, told in ((to.AdaGrad(), "per"), (to.FTRL(), "per"), (to.GradientStep(), "")):
        opt = to.SSO([w], lr=0.1, rule=rule)
        with_rows = opt.step(lambda: 1 * w, lambda z: z.square(), index=torch.tensor([2, 0, 1]))
        without = to.SSO([w], lr=0.1, rule=rule).step(lambda: 1 * w, lambda z: z.square())
        assert with_rows.memory == (told and "per example")
        assert without.memory == (told and "per position")


def test_a_report_before_any_step_says_nothing() -> None:
    report = to.StepReport()
    assert report.step == 0
    assert math.isnan(report.loss)
    assert report + to.Counts(oracle_calls=2) == to.Counts(oracle_calls=2)


def test_reports_that_came_another_way_are_equal_though_some_numbers_are_not_known() -> None:
    report = to.StepReport(oracle_calls=1, step=3, loss=0.5)
    assert math.isnan(report.ratio)
    assert pickle.loads(pickle.dumps(report)) == report
    assert report != to.StepReport(oracle_calls=1, step=3)
