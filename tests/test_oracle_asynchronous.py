"""Several questions out: late answers, their anchors, exact bookkeeping, resuming."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading

import pytest
import torch
from torch import nn

import targetopt as to
from interruptions import by_line
from targetopt.oracle.errors import OracleUnavailable

N, BATCH = 48, 12


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 5, dtype=torch.float64, generator=generator)
    return x, (x[:, 0] - x[:, 1] * x[:, 2]).sign()


def parts(inner=None, rule=None, lr=2.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)).double()
    return model, to.SSO(
        model.parameters(), lr=lr, rule=rule, inner=inner or to.Armijo(max_steps=4)
    )


def rows(number):
    return torch.arange(number * BATCH, (number + 1) * BATCH) % N


def forward_of(model, number):
    x, _ = data()
    return lambda: model(x[rows(number)])


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def run(steps, oracle_of, **options):
    model, opt = parts()
    told = []
    with to.Asynchronous(opt, **options) as asynchronous:
        for number in range(steps):
            told += asynchronous.step(
                forward_of(model, number), oracle_of(number), index=rows(number)
            )
        told += asynchronous.finish()
    return weights(model), told, asynchronous


def logistic(number):
    _, y = data()
    return to.LossOracle(to.losses.Logistic(y[rows(number)]))


class Gated:
    """An oracle that answers in an order of its own: each waits for its turn."""

    def __init__(self, order):
        self.turns = {number: threading.Event() for number in order}
        self.after = dict(itertools.pairwise(order))
        self.turns[order[0]].set()

    def __call__(self, number):
        gate, inner = self, logistic(number)

        class Oracle:
            def query(self, z):
                gate.turns[number].wait(20)
                point = inner.query(z)
                if number in gate.after:
                    gate.turns[gate.after[number]].set()
                return point

        return Oracle()


def test_one_in_flight_is_the_synchronous_run():
    model, opt = parts()
    for number in range(6):
        opt.step(forward_of(model, number), logistic(number), index=rows(number))
    asynchronous, told, _ = run(6, logistic, in_flight=1)
    assert same(asynchronous, weights(model))
    assert [late.staleness for late in told] == [0] * 6


def test_the_order_of_use_determines_the_run():
    order = [2, 0, 1, 4, 3, 5, 7, 6]
    first, told, asynchronous = run(8, Gated(order), in_flight=4)
    used = asynchronous.order  # as arranged, but for neighbours whose threads overtook each other
    assert used == [late.number for late in told]
    assert sorted(used) == sorted(order) != used
    again, _, _ = run(8, logistic, in_flight=4, replay=used)
    assert same(first, again)
    other, _, _ = run(8, logistic, in_flight=4, replay=sorted(order))
    assert not same(first, other)


@pytest.mark.parametrize(("anchor", "end"), [("asked", 0.5), ("present", 0.0)])
def test_a_late_answer_has_its_anchor(anchor, end):
    """A model that can go anywhere lands at anchor − ηg_k."""
    w = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([w], lr=0.5, inner=to.LBFGS(max_steps=20))
    y = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    asynchronous = to.Asynchronous(opt, in_flight=2, replay=[1, 0], anchor=anchor)

    def forward():
        return 1.0 * w

    assert asynchronous.step(forward, to.losses.Squared(y)) == []
    (late,) = asynchronous.step(forward, to.losses.Squared(-y))
    assert (late.number, late.staleness) == (1, 0)
    torch.testing.assert_close(w.detach(), -0.5 * y, rtol=1e-9, atol=1e-9)
    (late,) = asynchronous.finish()  # asked at 0 with labels y, which gives −y; used at −y/2
    assert (late.number, late.staleness) == (0, 1)
    torch.testing.assert_close(w.detach(), end * y, rtol=1e-9, atol=1e-9)


@pytest.mark.slow  # the kernels may have to be compiled first
@pytest.mark.parametrize("rule", [to.GradientStep(), to.LineSearch()])
def test_linear_engine_and_general_path_agree_on_stale_anchors(rule):
    x, _y = data()
    results = []
    for linear in (True, False):
        w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
        opt = to.SSO([w], lr=0.5, rule=rule, inner=to.GradientDescent(step_size=0.1, max_steps=5))
        with to.Asynchronous(opt, in_flight=3, replay=[1, 2, 0, 3], anchor="asked") as asynchronous:
            for number in range(4):
                part = x[rows(number)]
                forward = to.Linear(w, part) if linear else (lambda part=part, w=w: part @ w)
                asynchronous.step(forward, logistic(number), index=rows(number))
        results.append(w.detach().clone())
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_answers_that_are_too_stale_are_dropped_and_counted():
    order = [1, 2, 3, 0, 4, 5]
    _, told, asynchronous = run(6, logistic, in_flight=4, replay=order, max_staleness=2)
    by_number = {late.number: late for late in told}
    assert by_number[0].staleness == 3
    assert by_number[0].report is None
    assert asynchronous.dropped == 1
    assert asynchronous.opt.totals.oracle_calls == 5
    assert [late.report.step for late in told if late.report] == [1, 2, 3, 4, 5]


def test_a_failing_question_is_given_up_and_the_others_go_on():
    def oracle(number):
        if number == 1:
            return to.GradientOracle(lambda z: (_ for _ in ()).throw(OracleUnavailable("gone")))
        return logistic(number)

    model, opt = parts()
    asynchronous = to.Asynchronous(opt, in_flight=2)
    used = []
    failures = 0
    for number in range(4):
        try:
            used += asynchronous.step(forward_of(model, number), oracle(number))
        except OracleUnavailable:
            failures += 1
    used += asynchronous.finish()
    assert failures == asynchronous.failed == 1
    assert sorted(late.number for late in used) == [0, 2, 3]
    assert opt.totals.oracle_calls == 3


def test_a_resumed_run_is_the_same_run(tmp_path):
    order = [1, 0, 2, 4, 3, 5, 7, 6]
    whole, _, _ = run(8, logistic, in_flight=3, replay=order)

    def step(asynchronous, model, number):
        asynchronous.step(forward_of(model, number), logistic(number), index=rows(number))

    model, opt = parts()
    first = to.Asynchronous(opt, in_flight=3, replay=order)
    for number in range(5):
        step(first, model, number)
    torch.save({"model": model.state_dict(), "run": first.state_dict()}, tmp_path / "state.pt")

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model, opt = parts()
    model.load_state_dict(state["model"])
    second = to.Asynchronous(opt, in_flight=3, replay=order)
    second.load_state_dict(
        state["run"], lambda number: (forward_of(model, number), logistic(number))
    )
    assert second.pending == first.pending
    for number in range(5, 8):
        step(second, model, number)
    second.finish()
    assert second.order == order
    assert same(whole, weights(model))


@pytest.mark.parametrize("anchor", ["present", "asked"])
def test_an_interrupt_loses_no_question_and_uses_none_twice(anchor):
    """At lines of `step` and of `finish`: whatever had been done, going on ends where the whole run ends."""
    asked = []

    class Counted:
        def __init__(self, number):
            self.number = number

        def query(self, z):
            asked.append(self.number)
            return logistic(self.number).query(z)

    def begun():
        model, opt = parts(inner=to.GradientDescent(step_size=0.1, max_steps=1))
        run = to.Asynchronous(opt, in_flight=2, replay=[0, 1, 2], anchor=anchor)
        run.step(forward_of(model, 0), Counted(0), index=rows(0))
        run.step(forward_of(model, 1), Counted(1), index=rows(1))
        return model, run

    model, run = begun()
    before = run.opt.totals.oracle_calls
    _, lines = by_line(lambda: run.finish(), -1)
    whole = weights(model)
    assert run.opt.totals.oracle_calls == before + 1
    draws = random.Random(anchor)
    for moment in sorted(draws.sample(range(1, lines), 40)) + list(range(lines - 25, lines + 1)):
        del asked[:]
        model, run = begun()
        with contextlib.suppress(
            KeyboardInterrupt
        ):  # how long it waits, and so its lines, may vary
            by_line(lambda run=run: run.finish(), moment)
        told = run.finish()
        assert same(whole, weights(model)), moment
        assert run.order == [0, 1]
        assert sorted(asked) == [0, 1]
        assert [late.number for late in told] in ([1], [])
        assert type(run.opt.rule) is type(parts()[1].rule)

    def third(run, model):
        run.step(forward_of(model, 2), Counted(2), index=rows(2))

    model, run = begun()
    _, lines = by_line(lambda: third(run, model), -1)
    run.finish()
    for moment in sorted(draws.sample(range(1, lines), 40)) + list(range(lines - 15, lines + 1)):
        del asked[:]
        model, run = begun()
        with contextlib.suppress(KeyboardInterrupt):
            by_line(lambda run=run, model=model: third(run, model), moment)
        run.finish()
        assert sorted(asked) == sorted(run.order), moment
        assert run.opt.totals.oracle_calls == len(asked)
        assert run.pending == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: [], "it must have opt"),
        (lambda s: {k: v for k, v in s.items() if k != "order"}, "it must have opt"),
        (lambda s: {**s, "asked": "3"}, "must be whole numbers"),
        (lambda s: {**s, "order": [0, 0]}, "do not add up"),
        (lambda s: {**s, "pending": [{}]}, "must have number, step"),
        (lambda s: {**s, "pending": [{**s["pending"][0], "targets": 3}]}, "must be tensors"),
        (lambda s: {**s, "pending": [{**s["pending"][0], "rng": [["cpu"]]}]}, "must be pairs"),
        (lambda s: {**s, "failed": 7}, "do not add up"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change, said):
    model, opt = parts()
    run = to.Asynchronous(opt, in_flight=2)
    for number in range(3):
        run.step(forward_of(model, number), logistic(number), index=rows(number))
    state = run.state_dict()
    run.finish()
    fresh, opt = parts()
    other = to.Asynchronous(opt, in_flight=2)
    with pytest.raises(to.BadArgument, match=said):
        other.load_state_dict(change(state), lambda n: (forward_of(fresh, n), logistic(n)))
    assert other.pending == other.order == []
    assert opt.totals.oracle_calls == 0


def test_dropout_is_drawn_when_it_is_asked():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 1), nn.Flatten(0)
    ).double()
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.GradientDescent(step_size=0.1, max_steps=1))
    x, _ = data()
    seen = []

    def forward():
        z = model(x[:BATCH])
        seen.append(z.detach().clone())
        return z

    asynchronous = to.Asynchronous(opt, in_flight=2)
    asynchronous.step(forward, logistic(0))
    asked = seen[-1]
    del seen[:]
    asynchronous.finish()
    assert torch.equal(seen[0], asked)  # the same mask at the same parameters


def test_moved_buffers_are_refused():
    model = nn.Sequential(nn.Linear(5, 1), nn.BatchNorm1d(1), nn.Flatten(0)).double()
    x, _ = data()
    with pytest.raises(to.MissingCapability, match="BatchNorm"):
        to.Asynchronous(to.SSO(model.parameters(), lr=1.0)).step(
            lambda: model(x[:BATCH]), logistic(0)
        )


def test_the_order_of_another_run_is_refused():
    with pytest.raises(to.BadArgument, match="order of another run"):
        run(4, logistic, in_flight=2, replay=[3, 0, 1, 2])
