"""The rule `Memory`: what its surrogate is, what it converges to and how fast, in `SSO` and in `fit`."""

from __future__ import annotations

import copy
import io
import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import targetopt as to
from core_parts import SOLVERS, identical, network
from noisy_labels import minimised, noisy
from targetopt.linear import Run, backend, fit

F64 = torch.float64
KINDS = ("saga", "miso")
BACKENDS = backend.available()


X, Y = noisy()
DENSE, LABELS = torch.tensor(X), torch.tensor(Y)


def point(z, loss, index=None, everything=None):
    answer = to.LossOracle(loss).query(z)
    return to.TargetPoint(
        z,
        answer.losses,
        answer.gradients,
        smoothness=loss.smoothness,
        index=index,
        everything=everything,
    )


def steps(opt, w, count, batch=10, seed=0, start=0):
    """Mini-batch steps of a linear model on the noisy labels."""
    draws = to.linear.Batches(len(Y), batch, seed)
    reports = []
    for t in range(start, start + count):
        rows = torch.from_numpy(draws.rows(t))
        oracle = to.LossOracle(to.losses.Logistic(LABELS[rows]))
        reports.append(
            opt.step(
                lambda rows=rows: DENSE[rows] @ w,
                oracle,
                index=rows,
                regularise_on=lambda: DENSE @ w,
            )
        )
    return reports


# -- what the surrogate is -------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "exact"])
@pytest.mark.parametrize("kind", KINDS)
def test_on_the_full_batch_it_is_the_gradient_step(kind, solver):
    """The same bits, step after step, with weight decay, on a network."""
    x, y = torch.randn(12, 4, dtype=F64), torch.randn(12, dtype=F64).sign()
    found = []
    for rule in (to.GradientStep(), to.Memory(kind)):
        model = network()
        opt = to.SSO(model.parameters(), 1.0, rule=rule, inner=SOLVERS[solver], weight_decay=0.1)
        for _ in range(3):
            opt.step(lambda model=model: model(x), to.LossOracle(to.losses.Logistic(y)))
        found.append([p.detach().clone() for p in model.parameters()])
    assert identical(*found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_full_batch_in_any_order_with_the_forward_of_all_data(kind):
    w, plain = (torch.zeros(3, dtype=F64, requires_grad=True) for _ in range(2))
    opt = to.SSO([w], rule=to.Memory(kind), inner=to.Exact(), weight_decay=0.01)
    reference = to.SSO([plain], rule=to.GradientStep(), inner=to.Exact(), weight_decay=0.01)
    for t in range(4):
        steps(opt, w, 1, batch=40, start=t)
        reference.step(lambda: DENSE @ plain, to.LossOracle(to.losses.Logistic(LABELS)))
        order = torch.randperm(40, generator=torch.Generator().manual_seed(t))
        opt.step(
            lambda order=order: DENSE[order] @ w,
            to.LossOracle(to.losses.Logistic(LABELS[order])),
            index=order,
        )
        reference.step(lambda: DENSE @ plain, to.LossOracle(to.losses.Logistic(LABELS)))
    torch.testing.assert_close(w, plain, rtol=1e-12, atol=1e-14)


@given(seed=st.integers(0, 10**6), outputs=st.sampled_from([(), (2,)]), b=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_over_all_batches_the_mean_of_sagas_gradient_is_the_full_one(seed, outputs, b):
    """Unbiased in target space, whatever is remembered; and exact where what is remembered is."""
    g = torch.Generator().manual_seed(seed)
    n, shape = 5, (5, *outputs)
    loss = to.losses.Squared(torch.randn(shape, generator=g, dtype=F64))
    z = torch.randn(shape, generator=g, dtype=F64)
    rule, memory = to.Memory(), torch.randn(shape, generator=g, dtype=F64)
    batches = [torch.tensor(rows) for rows in itertools.combinations(range(n), b)]
    total = torch.zeros(shape, dtype=F64)
    for rows in batches:
        here = point(z[rows], loss.rows(rows), rows, everything=z)
        before = memory.clone()
        proposal = rule.propose(here, 0.5, 1.0, {"gradients": memory})
        assert torch.equal(memory, before)  # pure
        u = proposal.surrogate.linear
        expected = memory.clone()
        expected[rows] += (n / b) * (here.gradients - memory[rows])
        torch.testing.assert_close(u, expected, rtol=1e-12, atol=1e-12)
        assert torch.equal(proposal.state["gradients"][rows], here.gradients)
        total += u / len(batches)
        exact = rule.propose(here, 0.5, 1.0, {"gradients": loss.gradient(z)}).surrogate
        torch.testing.assert_close(exact.linear, loss.gradient(z), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(total, loss.gradient(z), rtol=1e-11, atol=1e-11)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_misos_surrogate_is_the_mean_of_each_examples_last_one(seed):
    """An upper bound of the loss once all are known, and equal to it where they were asked."""
    g = torch.Generator().manual_seed(seed)
    loss = to.losses.Logistic(torch.randn(6, generator=g, dtype=F64).sign())
    rule, state, eta = to.Memory("miso"), {}, 4.0
    anchors = torch.empty(6, dtype=F64)
    for rows in (torch.tensor([0, 3, 4]), torch.tensor([5, 1, 2]), torch.tensor([2, 0])):
        z = torch.randn(6, generator=g, dtype=F64)
        anchors[rows] = z[rows]
        here = point(z[rows], loss.rows(rows), rows, everything=z)
        proposal = rule.propose(here, eta, 1.0, state)
        state = proposal.state
        assert float(proposal.surrogate.value(z)) == pytest.approx(float(here.loss), rel=1e-12)
    other = torch.randn(6, generator=g, dtype=F64)
    slopes, d = loss.gradient(anchors), other - anchors
    by_hand = loss.value(anchors) + slopes * d + d.square() / (2 * eta)
    assert float(by_hand.mean()) >= float(loss.value(other).mean())
    change = proposal.surrogate.value(other) - proposal.surrogate.value(anchors)
    torch.testing.assert_close(
        change, (by_hand - loss.value(anchors)).mean(), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_twice_in_a_batch_changes_nothing(kind):
    z, loss = torch.randn(6, dtype=F64), to.losses.Squared(torch.randn(6, dtype=F64))
    once, twice = torch.tensor([4, 1]), torch.tensor([1, 4, 4, 1])
    state, rule = (
        {"gradients": torch.randn(6, dtype=F64), "targets": torch.randn(6, dtype=F64)},
        None,
    )
    rule = to.Memory(kind)
    a, b = (
        rule.propose(point(z[rows], loss.rows(rows), rows, z), 0.5, 1.0, state)
        for rows in (once, twice)
    )
    torch.testing.assert_close(a.surrogate.linear, b.surrogate.linear, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(a.state, b.state, rtol=1e-13, atol=1e-13)


# -- what it converges to --------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize(
    ("kind", "lr", "epochs", "gap"), [("saga", 1.0, 60, 1e-13), ("miso", 4.0, 40, 1e-5)]
)
def test_it_reaches_the_minimum_where_batches_alone_stall(kind, lr, epochs, gap, weight_decay):
    options = {"inner": to.Exact(), "weight_decay": weight_decay, "batch_size": 10}
    optimum, _ = minimised(to.losses.Logistic(LABELS), X, weight_decay)
    gaps = {}
    for rule in (to.Memory(kind), to.GradientStep()):
        run = Run(X, Y, rule=rule, lr=lr, **options)
        run.advance(epochs * run.steps_per_epoch)
        gaps[type(rule)] = run.measure()["loss"] - optimum
    assert gaps[to.Memory] < gap
    assert gaps[to.GradientStep] > 1e-3


def test_on_a_network_it_ends_at_a_stationary_point_of_all_data():
    torch.manual_seed(0)
    x = torch.randn(24, 2, dtype=F64)
    y = torch.randn(24, dtype=F64)
    norms = {}
    for name, rule in (("memory", to.Memory("miso")), ("batches", to.GradientStep())):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0)).double()
        opt = to.SSO(
            model.parameters(), 1.0, rule=rule, inner=to.LBFGS(max_steps=10), weight_decay=0.1
        )
        for t in range(60):
            rows = torch.arange(8) + 8 * (t % 3)
            opt.step(
                lambda model=model, rows=rows: model(x[rows]),
                to.LossOracle(to.losses.Squared(y[rows])),
                index=rows,
                regularise_on=(lambda model=model: model(x))
                if rule.wants_everything((), dear=False)
                else None,
            )
        loss = to.losses.Squared(y).value(model(x)).mean()
        loss = loss + 0.05 * sum(p.square().sum() for p in model.parameters())
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        norms[name] = float(sum(g.square().sum() for g in gradient)) ** 0.5
    assert norms["memory"] < 1e-6
    assert norms["batches"] > 1e-2


# -- in `fit` --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner", [to.Exact(), to.GradientDescent(0.2, 1), to.GradientDescent(0.2, 4)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_runs_are_the_general_ones(kind, inner):
    """Columns that depend on each other, a bias, a start, a schedule, independent batches."""
    A = sp.csr_array(np.hstack([X, X[:, :1] + X[:, 1:2], np.zeros((40, 1))]))
    for weight_decay, sampling in itertools.product((0.0, 0.1), ("epochs", "independent")):
        found = []
        for which in BACKENDS:
            with backend.use(which):
                found.append(
                    fit(
                        A,
                        Y,
                        rule=to.Memory(kind),
                        inner=inner,
                        lr=1.5,
                        schedule=to.schedules.inverse_sqrt(),
                        batch_size=7,
                        sampling=sampling,
                        steps=20,
                        weight_decay=weight_decay,
                        bias=True,
                        start=0.3 * np.ones(6),
                    )
                )
        for other in found[1:]:
            np.testing.assert_allclose(other.theta, found[0].theta, rtol=1e-9, atol=1e-11)
            assert other.bias == pytest.approx(found[0].bias, rel=1e-9)
            assert other.counts.oracle_calls == found[0].counts.oracle_calls == 20
            assert other.counts.inner_steps == found[0].counts.inner_steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_run_goes_on_bit_for_bit(kind, tmp_path):
    method = {"rule": to.Memory(kind), "inner": to.Exact(), "batch_size": 9}
    whole = fit(X, Y, steps=30, **method)
    half = fit(X, Y, steps=13, **method)
    rest = fit(X, Y, steps=17, state=copy.deepcopy(half.state), **method)
    assert np.array_equal(whole.theta, rest.theta)
    method["rule"] = to.Memory(kind, directory=tmp_path)
    on_disk = fit(X, Y, steps=17, state=half.state, **method)
    assert np.array_equal(whole.theta, on_disk.theta)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("numba" not in BACKENDS, reason="states of compiled runs")
@pytest.mark.parametrize("part", ["memory", "sums", "theta"])
def test_damaged_states_of_compiled_runs_are_refused(part):
    with backend.use("numba"):
        run = Run(X, Y, rule=to.Memory(), inner=to.Exact(), batch_size=9)
        run.advance(3)
    before = run.state_dict()
    for spoil in (lambda a: a[..., 1:], lambda a: np.full_like(a, np.nan)):
        with pytest.raises(to.BadArgument, match=part):
            run.load_state_dict({**before, part: spoil(before[part])})
    with pytest.raises(to.BadArgument, match=part):
        run.load_state_dict({k: v for k, v in before.items() if k != part})
    after = run.state_dict()
    assert all(np.array_equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("which", BACKENDS)
def test_a_run_that_diverges_stands_before_that_step(which):
    with backend.use(which):
        run = Run(
            X,
            np.abs(Y),
            loss=to.losses.Squared,
            rule=to.Memory(),
            inner=to.GradientDescent(1e60, 1),
            batch_size=9,
        )
        assert not run.advance(50)
        before = run.state_dict()
        assert np.isfinite(run.theta).all()
        assert not run.advance(1)
        again = run.state_dict()
    assert before["steps"] == again["steps"] > 0
    assert np.array_equal(before["theta"], again["theta"])
    assert np.array_equal(before["counts"], again["counts"])


def test_a_matrix_of_zeros_moves_nothing():
    found = fit(
        np.zeros((6, 2)) + np.eye(6, 2) * 0,
        Y[:6],
        rule=to.Memory(),
        inner=to.Exact(),
        batch_size=2,
        steps=4,
    )
    assert np.array_equal(found.theta, np.zeros(2))


# -- atomic, resumed, on disk ----------------------------------------------------------------------


@pytest.mark.parametrize("disk", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_run_goes_on_bit_for_bit(kind, disk, tmp_path):
    rule = to.Memory(kind, directory=tmp_path if disk else None)
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=rule, inner=to.LBFGS(max_steps=3))
    steps(opt, w, 6)
    file = io.BytesIO()
    torch.save((w.detach(), opt.state_dict()), file)
    steps(opt, w, 6, start=6)
    file.seek(0)
    weight, state = torch.load(file, weights_only=True)
    other = weight.clone().requires_grad_()
    for moved in (rule, to.Memory(kind)):  # a run may go on in memory
        resumed = to.SSO([other], rule=moved, inner=to.LBFGS(max_steps=3))
        resumed.load_state_dict(state)
        steps(resumed, other, 6, start=6)
        assert torch.equal(w, other)
        other = weight.clone().requires_grad_()
    assert list(tmp_path.iterdir()) == []  # the file has no name


@pytest.mark.parametrize("kind", KINDS)
def test_tables_on_disk_say_the_same(kind, tmp_path):
    found = []
    for rule in (to.Memory(kind), to.Memory(kind, directory=tmp_path)):
        w = torch.zeros(3, dtype=F64, requires_grad=True)
        opt = to.SSO([w], 2.0, rule=rule, inner=to.Exact(), weight_decay=0.01)
        for t in range(12):
            if t == 7:  # a step that fails changes nothing, a table on disk included
                with pytest.raises(to.BadAnswer):
                    opt.step(
                        lambda w=w: DENSE[:5] @ w,
                        to.GradientOracle(lambda z: (z * 0, z * float("nan"))),
                        index=torch.arange(5),
                        regularise_on=lambda w=w: DENSE @ w,
                    )
            steps(opt, w, 1, start=t)
        found.append(w.detach())
    assert torch.equal(*found)
    assert opt.state_dict()["sso"]["rule_state"]["gradients"].untyped_storage().filename is not None


# -- bad input -------------------------------------------------------------------------------------


def never(z):
    raise AssertionError("the oracle was asked")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": torch.tensor([3, 7])}, r"all 8 examples, and this batch has 2.*regularise_on="),
        ({"regularise_on": lambda: DENSE @ W}, r"needs index=.*2 examples among the 40"),
        (
            {"regularise_on": lambda: DENSE @ W, "index": torch.tensor([0, 40])},
            r"names row 40; regularise_on\(\) gives the rows 0 … 39",
        ),
        (
            {"regularise_on": lambda: DENSE @ W / 0.0, "index": torch.tensor([0, 4])},
            r"regularise_on\(\) returned targets that are not finite",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_oracle_is_asked(arguments, message):
    opt = to.SSO([W], rule=to.Memory(), inner=to.Exact(), lr=1.0)
    with pytest.raises(to.TargetoptError, match=message):
        opt.step(lambda: DENSE[:2] @ W, to.GradientOracle(never), **arguments)


W = torch.zeros(3, dtype=F64, requires_grad=True)


def test_other_data_is_refused():
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], 2.0, rule=to.Memory(), inner=to.Exact())
    steps(opt, w, 2)
    with pytest.raises(to.BadArgument, match=r"holds 40 examples.*now there are 30"):
        opt.step(
            lambda: DENSE[:2] @ w,
            to.GradientOracle(never),
            index=torch.tensor([0, 1]),
            regularise_on=lambda: DENSE[:30] @ w,
        )
    with pytest.raises(to.MissingCapability, match="all 40 examples, and this batch has 1 of them"):
        opt.step(
            lambda: DENSE @ w, to.GradientOracle(never), index=torch.zeros(40, dtype=torch.long)
        )


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(to.BadArgument, match="kind='sag' must be 'saga' or 'miso'"):
        to.Memory("sag")
    with pytest.raises(to.BadArgument, match=r"is not a directory\. Make it first"):
        to.Memory(directory=tmp_path / "nowhere")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s.pop("gradients"),
        lambda s: s.pop("targets"),
        lambda s: s.update(targets=s["targets"][1:]),
        lambda s: s["gradients"].fill_(float("nan")),
        lambda s: s.update(rows=torch.tensor([99])),
    ],
)
def test_damaged_states_are_refused(spoil):
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Memory("miso"), inner=to.Exact())
    steps(opt, w, 2)
    state = copy.deepcopy(opt.state_dict())
    spoil(state["sso"]["rule_state"])
    with pytest.raises(to.BadArgument, match="Memory"):
        opt.load_state_dict(state)
