"""What people do to torch optimisers works on this one: schedulers, copies, pickles, hooks, autocast."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import targetopt as to
from core_parts import MATRIX, RULES, SOLVERS, fingerprint, identical, optimiser, problem

F64 = torch.float64
X = torch.randn(12, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, dtype=F64, generator=torch.Generator().manual_seed(1))
ORACLE = to.LossOracle(to.losses.Squared(Y))


def regression(**options) -> tuple[nn.Linear, to.SSO, Callable[[], to.StepReport]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    options = {"lr": 0.8, "inner": to.Armijo(max_steps=3), **options}
    opt = to.SSO(model.parameters(), **options)
    return model, opt, lambda: opt.step(lambda: model(X)[:, 0], ORACLE)


# -- schedulers ---------------------------------------------------------------------------------

SCHEDULERS = {
    "StepLR": lambda o: schedulers.StepLR(o, step_size=2, gamma=0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, milestones=[2, 4]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, factor=0.5, total_iters=3),
    "LinearLR": lambda o: schedulers.LinearLR(o, start_factor=0.1, total_iters=4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, gamma=0.7),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=5),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda t: 0.9),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=4),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=3),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.1, 0.8, step_size_up=2, cycle_momentum=False),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.8, total_steps=9, cycle_momentum=False),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o, 0.1, 2), schedulers.ExponentialLR(o, 0.5)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 2), schedulers.ExponentialLR(o, 0.9)]
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, factor=0.5, patience=0),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_torch_scheduler_drives_eta(name: str) -> None:
    """η in the report is what the same scheduler gives SGD, step for step."""
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.8)
    with_sgd = SCHEDULERS[name](plain)
    _, opt, step = regression()
    scheduler = SCHEDULERS[name](opt)
    metric = (1.0,) if name == "ReduceLROnPlateau" else ()
    used = []
    for _ in range(8):
        expected = plain.param_groups[0]["lr"]
        report = step()
        assert report.eta == pytest.approx(expected, rel=1e-15)
        used.append(report.eta)
        plain.step()
        with_sgd.step(*metric)
        scheduler.step(*metric)
    assert len(set(used)) > 1


def test_an_eta_of_nought_moves_nothing() -> None:
    model, opt, step = regression(weight_decay=0.1)
    scheduler = schedulers.CosineAnnealingLR(opt, T_max=3)
    reports, weights = [], []
    for _ in range(5):
        weights.append(model.weight.detach().clone())
        reports.append(step())
        scheduler.step()
    assert [r.eta == 0.0 for r in reports] == [False, False, False, True, False]
    assert torch.equal(weights[3], weights[4])
    assert not torch.equal(weights[4], model.weight)
    assert (reports[3].inner_steps, reports[3].surrogate_decrease) == (0, 0.0)


@pytest.mark.parametrize("rule", [r for r in RULES if r != "entropy"])
def test_a_schedule_that_ends_at_nought_moves_nothing(rule: str) -> None:
    """Whatever lr=None stands for: the rule is not asked what 1/0 is."""
    model, _, step = regression(
        lr=None, rule=RULES[rule][0], schedule=lambda t: max(0.0, 1.0 - t / 2)
    )
    first, before = step(), copy.deepcopy(model.state_dict())
    last = step()
    assert first.eta > 0 == last.eta
    assert (last.inner_steps, last.stop_reason) == (0, "zero-step")
    assert identical(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize("name", ["StepLR", "LambdaLR", "CosineAnnealingLR"])
def test_a_scheduler_needs_an_lr_to_drive(name: str) -> None:
    """Those that begin without arithmetic are refused at the first step."""
    _, opt, step = regression(lr=None)
    if name == "LambdaLR":
        with pytest.raises(TypeError, match="NoneType"):  # torch's own, before SSO hears of it
            SCHEDULERS[name](opt)
        return
    SCHEDULERS[name](opt)
    with pytest.raises(to.BadArgument, match=r"scheduler.*lr=None.*Give lr=, or use schedule="):
        step()


def test_a_scheduler_is_content_with_ask_and_tell() -> None:
    """torch warns (an error here) if a scheduler steps before the optimiser."""
    model, opt, _ = regression()
    scheduler = schedulers.ExponentialLR(opt, gamma=0.5)
    query = opt.ask(lambda: model(X)[:, 0])
    opt.tell(query, lambda: model(X)[:, 0], torch.zeros(12), query.targets - Y)
    scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.4


def test_a_scheduler_and_a_schedule_multiply() -> None:
    _, opt, step = regression(schedule=to.schedules.inverse_sqrt())
    scheduler = schedulers.ExponentialLR(opt, gamma=0.5)
    for t in range(1, 5):
        assert step().eta == pytest.approx(0.8 * 0.5 ** (t - 1) / math.sqrt(t), rel=1e-15)
        scheduler.step()


@given(t=st.integers(1, 50), total=st.integers(1, 50), beta=st.floats(0.1, 1.0))
@settings(max_examples=50, deadline=None)
def test_schedules_are_the_papers(t: int, total: int, beta: float) -> None:
    assert to.schedules.constant()(t) == 1.0
    assert to.schedules.inverse_sqrt()(t) == pytest.approx(1 / math.sqrt(t), rel=1e-14)
    alpha = (beta / total) ** (1 / total)
    assert to.schedules.exponential(total, beta)(t) == pytest.approx(alpha**t, rel=1e-10)


@pytest.mark.parametrize(
    ("rule", "loss", "eta"),
    [
        (to.GradientStep(), to.losses.Squared(Y), 0.5),
        (to.GradientStep(), to.losses.Logistic(Y.sign()), 2.0),
        (to.GradientStep(), to.losses.GaussianKL(Y, 0.25), 0.125),
        (to.MirrorDescent(), to.losses.Squared(Y), 0.5),
        (to.FTRL(), to.losses.Huber(Y), 0.5),
        (to.Newton(), to.losses.Poisson(Y.abs()), 1.0),
        (to.LineSearch(), to.losses.Logistic(Y.sign()), 4.0),
    ],
)
def test_no_lr_means_the_papers_step(rule: to.Rule, loss: to.losses.Loss, eta: float) -> None:
    model = nn.Linear(4, 1).double()
    opt = to.SSO(model.parameters(), rule=rule, schedule=to.schedules.inverse_sqrt())
    report = opt.step(lambda: model(X)[:, 0], to.LossOracle(loss))
    assert report.eta == pytest.approx(eta, rel=1e-15)
    assert opt.param_groups[0]["lr"] is None


def test_lr_may_be_a_tensor_and_may_be_set_by_hand() -> None:
    _, opt, step = regression(lr=torch.tensor(0.5, dtype=F64))
    scheduler = schedulers.ExponentialLR(opt, gamma=0.5)
    assert step().eta == 0.5
    scheduler.step()
    assert step().eta == 0.25
    opt.param_groups[0]["lr"] = 2.0
    assert step().eta == 2.0


# -- copies and pickles -------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_a_deep_copy_of_model_and_optimiser_goes_its_own_way(rule: str, solver: str) -> None:
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver)
    p.step(opt, 0)
    model, twin = copy.deepcopy((p.model, opt))
    assert all(
        a is b for a, b in zip(twin.param_groups[0]["params"], model.parameters(), strict=True)
    )
    before, rng = fingerprint(model, twin), torch.get_rng_state()
    report = p.step(opt, 1)
    torch.set_rng_state(rng)
    assert identical(fingerprint(model, twin), before)
    copied = problem(rule, solver)
    copied.model.load_state_dict(model.state_dict())
    copied_opt = optimiser(copied.model, rule, solver)
    copied_opt.load_state_dict(twin.state_dict())
    torch.set_rng_state(rng)
    assert copied.step(copied_opt, 1) == report


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_the_whole_optimiser_can_be_pickled(rule: str, solver: str) -> None:
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver, schedule=to.schedules.exponential(10))
    p.step(opt, 0)
    twin = pickle.loads(pickle.dumps(opt))
    assert identical(twin.state_dict(), opt.state_dict())
    for part in ("rule", "inner", "schedule"):
        assert repr(getattr(twin, part)) == repr(getattr(opt, part))
    assert repr(twin) == repr(opt)


# -- parameters of every kind -------------------------------------------------------------------


@pytest.mark.parametrize("solver", [s for s in SOLVERS if s != "exact"])
def test_frozen_and_unused_parameters(solver: str) -> None:
    """A frozen one stays; an unused one feels the weight decay alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    unused = nn.Parameter(torch.ones(3, dtype=F64))
    model[0].weight.requires_grad_(False)
    frozen, old = model[0].weight.clone(), unused.detach().clone()
    for weight_decay in (0.0, 0.5):
        opt = to.SSO(
            [*model.parameters(), unused], lr=0.5, inner=SOLVERS[solver], weight_decay=weight_decay
        )
        opt.step(lambda: model(X)[:, 0], ORACLE)
        assert torch.equal(model[0].weight, frozen)
        if weight_decay:
            assert (unused.abs() < 1).all()
        else:
            assert torch.equal(unused, old)


def test_a_parameter_may_be_frozen_and_freed_between_steps() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    opt = to.SSO(model.parameters(), lr=0.5, inner=to.LBFGS(max_steps=3))
    for frozen in (True, False, True):
        model[0].weight.requires_grad_(not frozen)
        before = model[0].weight.detach().clone()
        opt.step(lambda: model(X)[:, 0], ORACLE)
        assert torch.equal(before, model[0].weight) == frozen


def gradually_unfrozen() -> tuple[nn.Sequential, to.SSO, Callable[[int], to.StepReport]]:
    """Layers of equal shapes: moments that go to the wrong one would not be noticed by torch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    adam = to.Torch(partial(torch.optim.Adam, lr=0.05), max_steps=3)
    opt = to.SSO(model.parameters(), lr=0.5, inner=adam)

    def step(trained: int) -> to.StepReport:
        for i, layer in enumerate((model[0], model[2])):
            layer.requires_grad_(trained in (i, 2))
        return opt.step(lambda: model(X), lambda z: (z - 1).square().sum(dim=1) / 2)

    return model, opt, step


@pytest.mark.parametrize("order", [(1, 2), (1, 0), (2, 1), (0, 2, 2, 1)], ids=str)
def test_the_inner_state_begins_anew_when_other_parameters_are_trained(order) -> None:
    model, opt, step = gradually_unfrozen()
    twin, _, _ = gradually_unfrozen()
    last = None
    for trained in order:
        if trained != last:  # a new optimiser is what one would take
            fresh = to.SSO(twin.parameters(), lr=0.5, inner=opt.inner)
        step(trained)
        for i, layer in enumerate((twin[0], twin[2])):
            layer.requires_grad_(trained in (i, 2))
        fresh.step(lambda: twin(X), lambda z: (z - 1).square().sum(dim=1) / 2)
        last = trained
        assert identical(list(model.parameters()), list(twin.parameters()))


def test_which_parameters_were_trained_is_saved() -> None:
    model, opt, step = gradually_unfrozen()
    step(1)
    weights, state = copy.deepcopy((model.state_dict(), opt.state_dict()))
    assert state["sso"]["trained"] == [2, 3]
    step(1)
    step(2)
    twin, resumed, resumed_step = gradually_unfrozen()
    twin.load_state_dict(weights)
    resumed.load_state_dict(state)
    resumed_step(1)
    resumed_step(2)
    assert identical(fingerprint(twin, resumed), fingerprint(model, opt))


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
@pytest.mark.parametrize("solver", ["armijo", "lbfgs", "gauss-newton"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_parameters_are_fitted(
    dtype: torch.dtype, solver: str, scale: float
) -> None:
    """Squared norms under- or overflow in float16: no solver may take that for a minimum."""
    inner = {
        "armijo": to.Armijo(max_steps=20),
        "lbfgs": to.LBFGS(max_steps=20),
        "gauss-newton": to.GaussNewton(max_steps=5),
    }[solver]
    x = X.to(dtype)
    y = scale * (X @ torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=F64))
    w = torch.zeros(4, dtype=dtype, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=inner)
    oracle = to.LossOracle(to.losses.Squared(y))
    losses = [opt.step(lambda: x @ w, oracle).loss for _ in range(6)]
    assert losses[-1] < 1e-4 * losses[0]
    assert w.dtype == dtype


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_exact_refuses_half_precision_parameters(dtype: torch.dtype) -> None:
    w = torch.zeros(4, dtype=dtype, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact())
    with pytest.raises(to.BadForward, match=r"Exact needs.*float32.*autocast inside forward"):
        opt.step(lambda: X.to(dtype) @ w, ORACLE)
    assert (w == 0).all()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("solver", [s for s in SOLVERS if s != "torch-lbfgs"])
def test_sparse_gradients_are_as_good_as_dense_ones(solver: str, weight_decay: float) -> None:
    outcomes, rows = [], torch.tensor([1, 4, 4])
    for sparse in (False, True):
        table = nn.Embedding(6, 2, sparse=sparse, _weight=torch.ones(6, 2, dtype=F64))
        opt = to.SSO(table.parameters(), lr=0.5, inner=SOLVERS[solver], weight_decay=weight_decay)

        def step(table: nn.Embedding = table, opt: to.SSO = opt) -> None:
            opt.step(lambda: table(rows), lambda z: (z - 2).square().sum(dim=1))

        if sparse and solver == "gauss-newton":
            with pytest.raises(to.BadForward, match=r"twice.*sparse gradients.*sparse=False"):
                step()
            return
        if sparse and solver == "torch-adam" and not weight_decay:
            with pytest.raises(RuntimeError, match="Adam does not support sparse gradients"):
                step()
            return
        step()
        step()
        outcomes.append(table.weight.detach())
    torch.testing.assert_close(*outcomes, rtol=1e-12, atol=1e-12)


def test_an_optimiser_for_sparse_gradients_gets_them() -> None:
    table = nn.Embedding(6, 2, sparse=True)
    adam = to.Torch(partial(torch.optim.SparseAdam, lr=0.05), max_steps=3)
    opt = to.SSO(table.parameters(), lr=0.5, inner=adam)
    untouched = table.weight[0].detach().clone()
    report = opt.step(lambda: table(torch.tensor([1, 4])), lambda z: (z - 2).square().sum(dim=1))
    assert report.surrogate_decrease > 0
    assert torch.equal(table.weight[0], untouched)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("solver", ["gd", "armijo", "lbfgs", "gauss-newton", "torch-adam"])
def test_parameters_of_mixed_types(solver: str, weight_decay: float) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 5), nn.Linear(5, 1).double()
    opt = to.SSO(
        [*first.parameters(), *last.parameters()],
        lr=0.5,
        inner=SOLVERS[solver],
        weight_decay=weight_decay,
    )
    x = X.float()
    for _ in range(2):
        report = opt.step(lambda: last(first(x).tanh().double())[:, 0], ORACLE)
        assert report.surrogate_decrease > 0
    assert {p.dtype for p in first.parameters()} == {torch.float32}


ALIASES = {
    "the parameter": lambda w, b: w,
    "a view of it": lambda w, b: w.view(3, 4)[:, :2],
    "a transposed view": lambda w, b: w.view(4, 3).T,
    "one gradient for two": lambda w, b: (w + b) * torch.arange(1.0, 13.0, dtype=F64),
    "an expanded gradient": lambda w, b: w * torch.arange(1.0, 13.0, dtype=F64) + b.sum(),
}


@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("alias", ALIASES)
@pytest.mark.product(3)
def test_targets_and_gradients_that_share_memory(
    alias: str, solver: str, weight_decay: float
) -> None:
    """Each solver reaches what it reaches with fresh tensors."""
    outcomes = []
    for fresh in (False, True):
        w = torch.linspace(-1, 1, 12, dtype=F64).requires_grad_()
        b = torch.linspace(0, 1, 12, dtype=F64).requires_grad_()

        def forward(w=w, b=b, fresh=fresh) -> Tensor:
            z = ALIASES[alias](2.0 * w / 2.0, 2.0 * b / 2.0) if fresh else ALIASES[alias](w, b)
            return z.contiguous() if fresh else z

        opt = to.SSO([w, b], lr=0.5, inner=SOLVERS[solver], weight_decay=weight_decay)
        for _ in range(2):
            opt.step(forward, lambda z: (z - 1).square().reshape(z.shape[0], -1).sum(1) / 2)
        outcomes.append((w.detach(), b.detach()))
    torch.testing.assert_close(*outcomes, rtol=1e-10, atol=1e-12)


@contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("solver", ["gd", "armijo", "lbfgs", "gauss-newton", "exact", "torch-sgd"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.product(3)
def test_every_tensor_is_made_where_the_parameters_are(rule: str, solver: str) -> None:
    """Parameters on one device, torch's default another: a tensor made without a device would fail."""
    p = problem(rule, solver)
    inner = SOLVERS.get(solver, to.Torch(partial(torch.optim.SGD, lr=0.05), max_steps=2))
    part, lr = RULES[rule]
    opt = to.SSO(p.model.parameters(), lr=lr, rule=part, inner=inner, weight_decay=0.01)
    batches = [p.index(step) for step in range(2)]
    oracles = [p.oracle(rows) for rows in batches]
    with default_device("meta"):
        for rows, oracle in zip(batches, oracles, strict=True):
            forward, everything = (lambda rows=rows: p.forward(rows)), p.wanted_by(opt)
            report = opt.step(forward, oracle, index=rows, regularise_on=everything)
    assert math.isfinite(report.surrogate_decrease)


# -- autocast -----------------------------------------------------------------------------------


def test_autocast_inside_forward_leaves_the_surrogate_in_float32() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
    asked = []

    def forward() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = model(X.float())[:, 0]
        assert z.dtype == torch.bfloat16
        return z

    def oracle(z: Tensor) -> Tensor:
        asked.append(z)
        return (z - Y.float()).square() / 2

    inner = to.Armijo(max_steps=10, initial_step=0.1)
    opt = to.SSO(model.parameters(), lr=0.5, rule=to.AdaGrad(), inner=inner)
    reports = [opt.step(forward, oracle) for _ in range(15)]
    assert {z.dtype for z in asked} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert opt.state_dict()["sso"]["rule_state"]["sum_squares"].dtype == torch.float32
    assert reports[-1].loss < 0.5 * reports[0].loss


def test_the_surrogate_of_bfloat16_targets_has_float32_digits() -> None:
    """q's value at targets that bfloat16 can hold, against the same sum in float64."""
    w = torch.full((5,), 1.0, requires_grad=True)
    x = torch.tensor([1.0, 1.5, -2.0, 0.75, 3.0])
    gradients = torch.tensor([0.1, -0.2, 0.3, 0.4, -0.5])
    oracle = to.GradientOracle(lambda z: (torch.zeros(5), gradients))
    step_size = 0.25
    inner = to.GradientDescent(step_size=step_size, max_steps=1, stopping=to.Stopping(0.0, 1e-9))
    opt = to.SSO([w], lr=0.7, inner=inner)
    report = opt.step(lambda: (x * w).bfloat16(), oracle)
    z0, z1 = x.bfloat16().double(), (x * w).bfloat16().detach().double()
    q = (gradients.double() * (z1 - z0) + (z1 - z0).square() / 1.4).mean()
    assert report.surrogate_decrease == pytest.approx(-float(q), rel=1e-5)


# -- the rest of torch.optim's manners ----------------------------------------------------------


def test_gradients_of_the_user_are_left_alone() -> None:
    for solver in (s for s in SOLVERS if s != "exact"):
        p = problem("gradient", solver)
        opt = optimiser(p.model, "gradient", solver)
        p.step(opt, 0)
        assert all(q.grad is None for q in p.model.parameters())
        kept = [torch.full_like(q, 7.0) for q in p.model.parameters()]
        for q, g in zip(p.model.parameters(), kept, strict=True):
            q.grad = g
        p.step(opt, 1)
        assert all(q.grad is g for q, g in zip(p.model.parameters(), kept, strict=True))
        assert all((g == 7.0).all() for g in kept)
        opt.zero_grad()
        assert all(q.grad is None for q in p.model.parameters())


def test_step_hooks_run_once_per_outer_step() -> None:
    _, opt, step = regression()
    order: list[str] = []
    opt.register_step_pre_hook(lambda o, args, kwargs: order.append("before"))
    opt.register_step_post_hook(lambda o, args, kwargs: order.append("after"))
    step()
    step()
    assert order == ["before", "after"] * 2


@pytest.mark.parametrize(("rule", "solver"), MATRIX)
@pytest.mark.product(3)
def test_no_grad_around_a_step_changes_nothing(rule: str, solver: str) -> None:
    reports = []
    for grad in (True, False):
        p = problem(rule, solver)
        opt = optimiser(p.model, rule, solver, weight_decay=0.01)
        with torch.set_grad_enabled(grad):
            reports.append([p.step(opt, t) for t in range(2)])
            assert torch.is_grad_enabled() == grad
    assert reports[0] == reports[1]


def test_a_scaler_that_is_switched_off_passes_through() -> None:
    model, opt, _ = regression()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    report = scaler.step(opt, lambda: model(X)[:, 0], ORACLE)
    assert report.step == 1


def test_named_parameters_and_a_group_are_accepted() -> None:
    model = nn.Linear(4, 1).double()
    for params in (model.named_parameters(), [{"params": model.parameters(), "lr": 0.3}]):
        opt = to.SSO(params, lr=0.3)
        assert opt.step(lambda: model(X)[:, 0], ORACLE).eta == 0.3
