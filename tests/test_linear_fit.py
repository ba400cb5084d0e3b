"""`linear.fit`: the same iterates as SSO on the same batches, and as the baselines in torch."""

import sys
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import targetopt as to
from targetopt import baselines as torch_baselines
from targetopt.inner import Objective
from targetopt.linear import Linear, Run, backend, design, fit, sample_order
from targetopt.linear import baselines as rivals
from targetopt.types import BadArgument, MissingCapability

BACKENDS = backend.available()
RULES = [
    (to.GradientStep(), None),
    (to.LineSearch(), None),
    (to.LineSearch(c=0.9, shrink=0.6), 3.0),
    (to.LineSearch(grow=64.0, max_backtracks=1), None),
    (to.AdaGradNorm(initial=0.1), 0.5),
    (to.AdaGrad(), 0.3),
    (to.Newton(), None),
    (to.FTRL(), 0.2),
]
INNERS = [
    to.Armijo(max_steps=20),
    to.GradientDescent(step_size=0.02, max_steps=5),
    to.LBFGS(max_steps=5),
    to.Exact(),
]


def data(n=60, d=20, seed=0, loss=to.losses.Logistic):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.3)
    z = X @ rng.normal(size=d) + 0.5 * rng.normal(size=n)
    if loss is to.losses.Logistic:
        return sp.csr_array(X), np.where(z > 0, 1.0, -1.0)
    if loss is to.losses.Poisson:
        return sp.csr_array(X), rng.poisson(np.exp(np.clip(z, -2, 2))).astype(float)
    return sp.csr_array(X), z


def batches(n, batch_size, steps, seed):
    per_epoch = -(-n // batch_size)
    for t in range(steps):
        epoch, position = divmod(t, per_epoch)
        order = np.arange(n) if per_epoch == 1 else sample_order(n, seed, epoch)
        yield torch.from_numpy(order[position * batch_size : (position + 1) * batch_size])


def by_sso(X, y, loss, rule, inner, lr, schedule, batch_size, steps, seed, weight_decay, bias):
    """The generic path: SSO with autograd forwards on a dense model."""
    model = torch.nn.Linear(X.shape[1], 1, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    dense, labels = torch.tensor(X.toarray()), torch.tensor(y)
    opt = to.SSO(
        model.parameters(),
        lr=lr,
        rule=rule,
        inner=inner,
        schedule=schedule,
        weight_decay=weight_decay,
    )
    for rows in batches(X.shape[0], batch_size, steps, seed):
        oracle = to.LossOracle(loss(labels[rows]))
        opt.step(lambda rows=rows: model(dense[rows])[:, 0], oracle, index=rows)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy(), opt.totals


def agree(found, expected, rtol=1e-9):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * np.abs(expected).max())


@cache
def forty_steps(place, inner):
    """What `fit` is told, and θ after these steps of SSO: once for all backends."""
    (rule, lr), inner = RULES[place], INNERS[inner]
    weight_decay, bias = (1e-2, True) if isinstance(inner, to.Exact | to.LBFGS) else (0.0, False)
    options = {"rule": rule, "inner": inner, "lr": lr, "schedule": to.schedules.inverse_sqrt()}
    options |= {"batch_size": 7, "steps": 40, "seed": 3, "weight_decay": weight_decay, "bias": bias}
    return options, *by_sso(*data(), to.losses.Logistic, **options)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("rule", range(len(RULES)), ids=lambda p: type(RULES[p][0]).__name__)
@pytest.mark.parametrize("inner", range(len(INNERS)), ids=lambda p: type(INNERS[p]).__name__)
@pytest.mark.product(3, but=("name",))
def test_same_iterates_as_sso(name, rule, inner):
    options, expected, totals = forty_steps(rule, inner)
    with backend.use(name):
        found = fit(*data(), **options)
    bias = options["bias"]
    theta = np.append(found.theta, found.bias) if bias else found.theta
    agree(theta, expected)
    assert found.counts.oracle_calls == totals.oracle_calls == 40
    assert found.counts.value_calls == totals.value_calls
    assert found.counts.inner_steps == totals.inner_steps
    assert sum(found.forms.values()) == 40


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("lr", [None, 1.5])
def test_batches_without_a_gradient_leave_the_line_search_as_it_was(name, lr):
    X, y = data(loss=to.losses.Squared)
    X = sp.csr_array(X.toarray() * (np.arange(60) % 3 > 0)[:, None])
    y = y * (np.arange(60) % 3 > 0)  # every third example is 0, and its target too
    options = {"rule": to.LineSearch(), "inner": to.Armijo(max_steps=10), "lr": lr}
    expected, totals = by_sso(
        X, y, to.losses.Squared, batch_size=1, steps=90, seed=3, weight_decay=0.0, bias=False, schedule=None,
        **options,
    )  # fmt: skip
    with backend.use(name):
        found = fit(X, y, loss=to.losses.Squared, batch_size=1, steps=90, seed=3, **options)
    agree(found.theta, expected)
    assert found.counts.value_calls == totals.value_calls
    assert found.counts.inner_steps == totals.inner_steps


@cache
def hundred_steps():
    """What `fit` is told, and θ after these steps of SSO: once for all forms."""
    options = {"rule": to.GradientStep(), "inner": to.Armijo(max_steps=50), "lr": 2.0}
    return options, *by_sso(
        *data(n=200, d=30, seed=1), to.losses.Logistic, schedule=None, batch_size=25, steps=100, seed=0,
        weight_decay=0.0, bias=False, **options,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["dual", "primal", "matvec"])
@pytest.mark.parametrize("dense", [False, True])
def test_hundred_steps_in_every_form_and_backend(form, dense):
    X, y = data(n=200, d=30, seed=1)
    options, expected, totals = hundred_steps()
    for name in BACKENDS:
        with backend.use(name):
            found = fit(
                X.toarray() if dense else X, y, batch_size=25, steps=100, form=form, **options
            )
        agree(found.theta, expected)
        assert found.counts.inner_steps == totals.inner_steps
        assert found.forms == {form: 100}


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "loss",
    [
        to.losses.Squared,
        to.losses.Huber,
        to.losses.Poisson,
        lambda y: to.losses.Huber(y, 0.3),
        lambda y: to.losses.Ridged(to.losses.Logistic(torch.where(y > 0, 1.0, -1.0).double()), 0.2),
    ],
)
def test_every_loss(name, loss):
    X, y = data(loss=loss)
    for rule, lr in [(to.Newton(), 0.5), (to.LineSearch(c=0.4), None), (to.GradientStep(), 0.3)]:
        # stopped where the autograd path still has digits to decide with
        inner = to.Armijo(max_steps=10, stopping=to.Stopping(gradient_tolerance=1e-5))
        options = {"rule": rule, "inner": inner, "lr": lr}
        expected, _ = by_sso(
            X,
            y,
            loss,
            schedule=None,
            batch_size=60,
            steps=15,
            seed=0,
            weight_decay=1e-3,
            bias=True,
            **options,
        )
        with backend.use(name):
            found = fit(X, y, loss=loss, steps=15, weight_decay=1e-3, bias=True, **options)
        agree(np.append(found.theta, found.bias), expected)


@pytest.mark.parametrize("name", BACKENDS)
def test_vanishing_losses_do_not_blow_up_the_line_search(name):
    """199 rows with no loss left double the step 199 times; two rows that contradict each other follow."""
    X = sp.csr_array(np.eye(2)[np.repeat([0, 1], [199, 2])])
    y = np.append(np.ones(200), -1.0)
    start = np.array([1000.0, 0.3])
    for inner in (to.Exact(), to.Armijo(max_steps=10)):
        with backend.use(name):
            run = fit(X, y, rule=to.LineSearch(), inner=inner, batch_size=1, epochs=5, start=start)
        assert abs(run.theta[1]) < 20.0  # a step of 4 moves z by 4 at most
        assert run.theta[0] == 1000.0


@pytest.mark.skipif("numba" not in BACKENDS, reason="the plain kernels keep the order of columns")
@pytest.mark.parametrize("batch_size", [7, None])
def test_columns_in_order_of_use_change_nothing_but_rounding(monkeypatch, batch_size):
    X, y = data(n=60, d=40, seed=2)
    X = sp.csr_array(X.toarray() * ~np.isin(np.arange(40), [3, 17]))
    start = np.random.default_rng(0).normal(size=40)
    options = {"batch_size": batch_size, "epochs": 5, "start": start}
    methods = [
        {"rule": rule, "inner": inner, "lr": lr} for rule, lr in RULES[:3] for inner in INNERS
    ]
    rival = [rivals.SGD(), rivals.SLS(), rivals.Adam(), rivals.Adagrad(), rivals.SVRG()]
    methods += [{"baseline": each, "lr": 0.1} for each in rival]
    with backend.use("numba"):
        expected = [fit(X, y, **method, **options) for method in methods]
        monkeypatch.setattr(sys.modules[design.__module__], "FEW_COLUMNS", 10)
        found = [fit(X, y, **method, **options) for method in methods]
    for one, other in zip(found, expected, strict=True):
        agree(one.theta, other.theta)
        assert one.counts.inner_steps == other.counts.inner_steps
        assert one.counts.value_calls == other.counts.value_calls
        np.testing.assert_array_equal(one.theta[[3, 17]], start[[3, 17]])
    ordered, columns = design(X).by_use
    assert (np.diff(np.bincount(ordered.indices)) <= 0).all()
    agree(ordered.matvec(start[columns]), X @ start, rtol=1e-14)


def torch_run(X, y, baseline, lr, schedule, batch_size, epochs, seed, weight_decay):
    theta = torch.zeros(X.shape[1], dtype=torch.float64, requires_grad=True)
    dense, labels = torch.tensor(X.toarray()), torch.tensor(y)
    n, per_epoch = X.shape[0], -(-X.shape[0] // batch_size)

    def losses(rows):
        return torch.nn.functional.softplus(-labels[rows] * (dense[rows] @ theta))

    options = {"lr": lr, "weight_decay": weight_decay}
    make = {
        rivals.SGD: lambda: torch.optim.SGD([theta], **options),
        rivals.Adam: lambda: torch.optim.Adam([theta], **options),
        rivals.Adagrad: lambda: torch.optim.Adagrad([theta], **options),
        rivals.AdaGradNorm: lambda: torch_baselines.AdaGradNorm([theta], **options),
        rivals.SVRG: lambda: torch_baselines.SVRG([theta], **options),
        rivals.SLS: lambda: torch_baselines.SLS(
            [theta], reset=baseline.reset, c=baseline.c, shrink=baseline.shrink,
            growth=baseline.growth, batches_per_epoch=per_epoch, schedule=schedule, **options,
        ),
    }  # fmt: skip
    opt = make[type(baseline)]()
    for t, rows in enumerate(batches(n, batch_size, epochs * per_epoch, seed)):
        if not isinstance(opt, torch_baselines.SLS):  # whose schedule is its own
            opt.param_groups[0]["lr"] = lr * schedule(t + 1)
        if isinstance(opt, torch_baselines.SVRG) and t % per_epoch == 0:
            opt.snapshot(lambda: losses(slice(None)).mean())
        if isinstance(opt, torch_baselines.SVRG | torch_baselines.SLS):
            opt.step(lambda rows=rows: losses(rows).mean())
        else:
            opt.zero_grad()
            losses(rows).mean().backward()
            opt.step()
    return theta.detach().numpy(), opt


every_baseline = pytest.mark.parametrize(
    ("baseline", "lr"),
    [
        (rivals.SGD(), 0.5),
        (rivals.SLS(reset="keep", c=0.5), 10.0),
        (rivals.SLS(reset="restart", c=0.5), 10.0),
        (rivals.SLS(reset="grow", c=0.5), 10.0),
        (rivals.AdaGradNorm(), 1.0),
        (rivals.SVRG(), 0.5),
        (rivals.Adam(), 0.1),
        (rivals.Adagrad(), 0.5),
    ],
    ids=lambda b: f"{type(b).__name__}{getattr(b, 'reset', '')}",
)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@pytest.mark.parametrize("batch_size", [7, 60])
@every_baseline
@pytest.mark.product(2)
def test_baselines_are_those_of_torch(name, weight_decay, batch_size, baseline, lr):
    X, y = data()
    schedule = to.schedules.inverse_sqrt()
    expected, opt = torch_run(
        X, y, baseline, lr, schedule, batch_size, 4, seed=5, weight_decay=weight_decay
    )
    for matrix in (X, X.toarray()):
        with backend.use(name):
            found = fit(
                matrix, y, baseline=baseline, lr=lr, schedule=schedule, batch_size=batch_size,
                epochs=4, seed=5, weight_decay=weight_decay,
            )  # fmt: skip
        agree(found.theta, expected)
        if isinstance(baseline, rivals.SLS):
            assert found.counts.value_calls == opt.value_calls
        per_epoch = -(-60 // batch_size)
        calls = 4 * 3 * per_epoch if isinstance(baseline, rivals.SVRG) else 4 * per_epoch
        assert found.counts.oracle_calls == calls
        assert found.counts.inner_steps == 4 * per_epoch


@pytest.mark.parametrize("weight_decay", [0.0, 1e-2])
@every_baseline
def test_baselines_on_rows_with_few_of_many_columns(weight_decay, baseline, lr):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 500)) * (rng.random((60, 500)) < 0.02)
    X[:, rng.permutation(500)[:200]] = 0.0
    X[7] = 0.0  # a row, too
    y, start = np.where(rng.random(60) < 0.5, 1.0, -1.0), rng.normal(size=500)
    options = {
        "baseline": baseline,
        "lr": lr,
        "weight_decay": weight_decay,
        "batch_size": 7,
        "epochs": 4,
        "seed": 5,
    }
    found = []
    for name in BACKENDS:
        with backend.use(name):
            found.append(fit(sp.csr_array(X), y, start=start, **options))
    for each in found:
        agree(each.theta, found[-1].theta)
        assert each.counts == found[-1].counts
        empty = (X == 0).all(axis=0)
        assert (each.theta[empty] == start[empty]).all() == (weight_decay == 0)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "method",
    [
        {"rule": to.AdaGrad(), "inner": to.Armijo(max_steps=5), "lr": 0.5},
        {"rule": to.FTRL(), "inner": to.LBFGS(max_steps=5), "lr": 0.2},
        {"baseline": rivals.SVRG(), "lr": 0.5},
        {"baseline": rivals.Adam(), "lr": 0.1},
        {"baseline": rivals.SLS(), "lr": 5.0},
    ],
    ids=["adagrad", "ftrl", "svrg", "adam", "sls"],
)
def test_a_run_in_pieces_is_the_same_run_bit_for_bit(name, method):
    X, y = data()
    with backend.use(name):
        whole = fit(X, y, batch_size=7, steps=31, weight_decay=1e-3, **method)
        state = None
        for steps in (4, 9, 0, 18):
            part = fit(X, y, batch_size=7, steps=steps, weight_decay=1e-3, state=state, **method)
            state = part.state
    np.testing.assert_array_equal(part.theta, whole.theta)
    assert part.counts == whole.counts
    assert part.forms == whole.forms


@pytest.mark.parametrize("name", BACKENDS)
def test_records_are_what_was_asked_for(name):
    X, y = data()
    with backend.use(name):
        found = fit(X, y, inner=to.Armijo(max_steps=3), batch_size=25, epochs=4, weight_decay=0.1)
        np.testing.assert_array_equal(found.records["step"], [0, 3, 6, 9, 12])
        np.testing.assert_array_equal(found.records["epoch"], range(5))
        np.testing.assert_array_equal(found.records["oracle_calls"], [0, 3, 6, 9, 12])
        np.testing.assert_array_equal(found.records["inner_steps"], [0, 9, 18, 27, 36])
        chosen = fit(
            X,
            y,
            inner=to.Armijo(max_steps=3),
            batch_size=25,
            epochs=4,
            weight_decay=0.1,
            record_at=[7, 12],
        )
        np.testing.assert_array_equal(chosen.records["step"], [7, 12])
        nothing = fit(X, y, inner=to.Exact(), steps=0, record_at=[])
    assert nothing.records == {}
    theta = torch.tensor(found.theta, requires_grad=True)
    margins = torch.tensor(y) * (torch.tensor(X.toarray()) @ theta)
    objective = torch.nn.functional.softplus(-margins).mean() + 0.05 * theta.square().sum()
    objective.backward()
    assert found.records["loss"][-1] == pytest.approx(objective.item(), rel=1e-12)
    assert found.records["grad_norm"][-1] == pytest.approx(theta.grad.norm().item(), rel=1e-10)
    assert chosen.records["loss"][-1] == found.records["loss"][-1]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "method",
    [
        {"inner": to.GradientDescent(step_size=1e200, max_steps=2)},
        {"baseline": rivals.SGD(), "lr": 1e200},
    ],
    ids=["sso", "sgd"],
)
def test_divergence_is_reported_and_stops_the_run(name, method):
    X, y = data(loss=to.losses.Squared)
    with backend.use(name):
        found = fit(X, y, loss=to.losses.Squared, batch_size=10, epochs=50, **method)
    assert found.diverged
    assert found.steps < 10


@pytest.mark.parametrize("name", BACKENDS)
def test_exact_newton_solves_logistic_regression(name):
    X, y = data(n=80, d=10)
    with backend.use(name):
        found = fit(
            X, y, rule=to.Newton(), inner=to.Exact(), steps=12, weight_decay=1e-2, bias=True
        )
    assert found.records["grad_norm"][-1] < 1e-12


def test_linear_forward_in_sso_equals_fit_when_solved_in_coordinates():
    """What SSO does with a `to.Linear` forward, done by hand: query, rule, inner solver."""
    X, y = data()
    model = torch.nn.Linear(X.shape[1], 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    everything = Linear(model, X)
    rule, inner, state = to.GradientStep(), to.Armijo(max_steps=20), {}
    labels = torch.tensor(y)
    for rows in batches(60, 7, 30, seed=2):
        forward = everything.rows(rows)
        point = to.LossOracle(to.losses.Logistic(labels[rows])).query(forward().detach())
        surrogate = rule.propose(point, 1.0, 1.0, {}).surrogate
        solve = forward.solver_for(inner, surrogate, [model.weight])
        state = solve(Objective(forward, [model.weight], surrogate), state).state
    found = fit(X, y, rule=rule, inner=inner, lr=1.0, batch_size=7, steps=30, seed=2)
    agree(found.theta, model.weight.detach().numpy()[0])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"loss": "logistic"}, BadArgument, "pass the class itself"),
        ({"y": np.r_[np.nan, np.ones(59)]}, BadArgument, "finite"),
        ({"y": np.r_[0.0, np.ones(59)]}, BadArgument, "\\+1 or −1"),
        ({"y": np.ones(59)}, BadArgument, "one label per row"),
        ({"y": np.ones((60, 2))}, BadArgument, "several outputs"),
        ({"y": np.array(["a"] * 60)}, BadArgument, "numbers"),
        ({"batch_size": 0}, BadArgument, "batch_size=0"),
        ({"batch_size": 61}, BadArgument, "batch_size=61"),
        ({"epochs": None}, BadArgument, "epochs= or steps="),
        ({"steps": 3}, BadArgument, "one of them"),
        ({"epochs": -1}, BadArgument, "epochs=-1"),
        ({"weight_decay": -1.0}, BadArgument, "weight_decay=-1.0"),
        ({"lr": 0.0}, BadArgument, "lr=0.0"),
        ({"lr": np.nan}, BadArgument, "lr=nan"),
        ({"form": "dense"}, BadArgument, "form='dense'"),
        ({"start": np.zeros(3)}, BadArgument, "20 finite numbers"),
        ({"record_at": [99]}, BadArgument, "step 99"),
        ({"loss": to.losses.Poisson, "y": np.ones(60)}, MissingCapability, "smoothness"),
        ({"baseline": rivals.SGD()}, BadArgument, "lr="),
        ({"baseline": rivals.SGD(), "lr": 1.0, "inner": to.Exact()}, BadArgument, "neither"),
    ],
)
def test_bad_arguments_say_what_is_wrong(change, error, message):
    X, y = data()
    with pytest.raises(error, match=message):
        fit(**{"X": X, "y": y, "epochs": 1, **change})


def test_state_of_another_run_is_refused():
    X, y = data()
    state = fit(X, y, steps=1, rule=to.AdaGrad()).state
    with pytest.raises(BadArgument, match=r"memory|optimiser"):
        fit(X, y, steps=1, state=state)
    with pytest.raises(BadArgument, match="theta"):
        Run(X[:, :5], y, rule=to.AdaGrad()).load_state_dict(state)


def test_the_callers_arrays_are_left_alone():
    X, y = data()
    start = np.ones(20)
    copies = X.copy(), y.copy(), start.copy()
    fit(X, y, epochs=2, batch_size=7, start=start)
    np.testing.assert_array_equal(X.toarray(), copies[0].toarray())
    np.testing.assert_array_equal(y, copies[1])
    np.testing.assert_array_equal(start, copies[2])


def test_rows_and_columns_of_zeros_and_one_row():
    X = sp.csr_array(np.zeros((5, 3)))
    y = np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    for inner in INNERS:
        for form in ("dual", "primal", "matvec", None):
            found = fit(X, y, inner=inner, batch_size=2, epochs=2, form=form)
            np.testing.assert_array_equal(found.theta, 0)
    one = fit(sp.csr_array([[1.0, 0.0]]), [1.0], inner=to.Exact(), steps=3, lr=1.0)
    assert one.theta[0] > 0
    assert one.theta[1] == 0


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("form", ["dual", "primal"])
def test_an_exact_solve_that_overflows_is_divergence_not_an_error(name, form):
    X, y = 1e130 * np.eye(4), 1e130 * np.array([1.0, -1.0, 1.0, -1.0])
    with backend.use(name):
        run = Run(X, y, loss=to.losses.Squared, lr=1e-100, inner=to.Exact(), form=form)
        assert not run.advance(3)
