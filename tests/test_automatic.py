"""SSO that needs nothing chosen: what is picked for each oracle, and what theory promises of the parts."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import targetopt as to
from core_parts import identical
from targetopt.inner.economy import LEAST_PRICE, MOST, Economy, price_of, timed
from targetopt.rules.automatic import CHOICES, Automatic
from targetopt.rules.parts.evidence import MEMORY, Evidence, adapted, evidence, same_rows
from targetopt.types import TargetPoint

F64 = torch.float64


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1), nn.Flatten(0)).double()


def data(n: int = 40, noise: float = 0.0, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, dtype=F64, generator=g)
    y = (x[:, 0] + 0.5 * x[:, 1] ** 2 - 0.5).sign()
    flip = torch.rand(n, generator=g) < noise
    return x, torch.where(flip, -y, y)


def black_box(loss: to.losses.Loss) -> to.GradientOracle:
    return to.GradientOracle(lambda z: (loss.value(z), loss.gradient(z)))


ORACLES = {
    "labels": (lambda y: to.LossOracle(to.losses.Logistic(y)), "proximal"),
    "a loss itself": (to.losses.Logistic, "proximal"),
    "gradients": (lambda y: black_box(to.losses.Logistic(y)), "trust-region"),
    "a function": (lambda y: lambda z: torch.log1p(torch.exp(-y * z)), "trust-region"),
    "one number": (
        lambda y: to.ScalarOracle(lambda z: torch.log1p(torch.exp(-y * z)).mean(), autograd=True),
        "trust-region",
    ),
}


@pytest.mark.parametrize("kind", ORACLES)
@pytest.mark.parametrize("batches", [1, 4])
def test_works_on_every_oracle_with_nothing_chosen(kind: str, batches: int) -> None:
    make, expected = ORACLES[kind]
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters())
    start = float(to.losses.Logistic(y).value(model(x).detach()).mean())
    for t in range(12):
        rows = torch.arange(t % batches, len(x), batches)
        opt.step(lambda rows=rows: model(x[rows]), make(y[rows]))
    assert isinstance(opt.rule, Automatic)
    taken = opt.rule.choice(opt._progress.rule_state)
    assert taken is not None
    assert taken.name == expected
    assert float(to.losses.Logistic(y).value(model(x).detach()).mean()) < 0.5 * start
    assert (opt.totals.oracle_calls, opt.totals.value_calls) == (12, 0)


def test_lr_rule_and_inner_override_each_part() -> None:
    w = torch.zeros(2, requires_grad=True)
    assert isinstance(to.SSO([w], lr=0.5).rule, to.GradientStep)
    assert to.SSO([w], lr=0.5).inner == to.LBFGS(max_steps="auto")
    assert isinstance(to.SSO([w], rule=to.Polyak()).rule, to.Polyak)
    assert to.SSO([w], inner=to.Armijo(max_steps=3)).inner == to.Armijo(max_steps=3)


def test_explain_says_what_was_taken_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters())
    opt.explain()
    assert "the first answer of the oracle decides" in capsys.readouterr().out
    opt.step(lambda: model(x), black_box(to.losses.Logistic(y)))
    opt.explain()
    said = capsys.readouterr().out
    assert (
        "TrustRegion, taken automatically because all that is used of the oracle is its gradients"
        in said
    )
    assert f"η = {opt._progress.rule_state['kept']['used']:.3g}" in said
    assert "100 inner steps" in said
    assert "1 oracle calls" in said
    to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=7)).explain()
    said = capsys.readouterr().out
    assert "GradientStep, as given" in said
    assert "at most 7 steps" in said
    to.SSO(model.parameters(), inner=to.LBFGS("auto", stopping=to.Stopping(price=50))).explain()
    assert "50 inner steps, as given" in capsys.readouterr().out


def test_resumes_bitwise_through_a_file() -> None:
    x, y = data()

    def run(cut: int | None) -> tuple[list[Tensor], dict[str, object]]:
        model = network()
        opt = to.SSO(model.parameters())
        for t in range(9):
            if t == cut:
                file = io.BytesIO()
                torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                model = network(5)
                opt = to.SSO(model.parameters())
                model.load_state_dict(saved["model"])
                opt.load_state_dict(saved["opt"])
            rows = torch.arange(t % 3, len(x), 3)
            loss = to.losses.Logistic(y[rows])
            opt.step(lambda rows=rows, model=model: model(x[rows]), loss)
        return [p.detach() for p in model.parameters()], opt.state_dict()["sso"]

    whole = run(None)
    assert all(identical(whole, run(cut)) for cut in (1, 5))


def buy(opt: to.SSO, model: nn.Module, times: int, begin: int = 0) -> None:
    """Steps on quarters of the data, all of whose targets the optimiser may see."""
    x, y = data()
    for t in range(begin, begin + times):
        rows = torch.arange(t % 4, len(x), 4)
        opt.step(
            lambda rows=rows: model(x[rows]),
            to.LossOracle(to.losses.Logistic(y[rows])),
            index=rows,
            regularise_on=lambda: model(x),
        )


def test_with_all_data_at_hand_labels_stay_known_bit_for_bit_as_by_the_rule_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(rule: to.Rule | None, cut: int | None) -> list[Tensor]:
        model = network()
        inner = to.LBFGS("auto", stopping=to.Stopping(price=100.0))
        opt = to.SSO(model.parameters(), rule=rule, inner=inner)
        buy(opt, model, cut or 6)
        if cut:  # killed, and resumed from a file
            file = io.BytesIO()
            torch.save(opt.state_dict(), file)
            file.seek(0)
            opt = to.SSO(model.parameters(), rule=rule, inner=inner)
            opt.load_state_dict(torch.load(file))
            buy(opt, model, 6 - cut, cut)
        if rule is None:
            opt.explain()
        return [p.detach() for p in model.parameters()]

    own = run(None, None)
    assert "Bought, taken automatically" in capsys.readouterr().out
    assert all(map(torch.equal, own, run(to.Bought(), None)))
    assert all(map(torch.equal, own, run(None, 3)))


def test_all_data_that_cannot_be_used_are_refused_with_the_way_out() -> None:
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    everything = {"index": torch.arange(10), "regularise_on": lambda: model(x)}
    with pytest.raises(
        to.MissingCapability, match=r"Leave regularise_on= out, or say rule=to\.Memory"
    ):
        opt.step(lambda: model(x[:10]), black_box(to.losses.Logistic(y[:10])), **everything)
    assert all(map(torch.equal, before, (p.detach() for p in model.parameters())))
    with pytest.raises(to.BadArgument, match="needs index="):
        opt.step(lambda: model(x[:10]), to.losses.Logistic(y[:10]), regularise_on=lambda: model(x))
    opt.step(lambda: model(x[:10]), to.losses.Logistic(y[:10]))
    with pytest.raises(to.BadArgument, match="not given in the first step"):
        opt.step(lambda: model(x[:10]), to.losses.Logistic(y[:10]), **everything)


def test_a_damaged_state_is_refused() -> None:
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters())
    opt.step(lambda: model(x), to.losses.Logistic(y))
    for name, bad in (("choice", "nonsense"), ("kept", 3), ("kept", {"eta": -1.0})):
        state = opt.state_dict()
        state["sso"] = {
            **state["sso"],
            "rule_state": {**state["sso"]["rule_state"], name: bad},
        }
        with pytest.raises(to.BadArgument, match="damaged"):
            to.SSO(network().parameters()).load_state_dict(state)


# -- which rows, and what fresh ones say -------------------------------------------------------------


def test_repeated_rows_are_known_without_an_index() -> None:
    """Evaluated where the last step began, the same rows give the targets that were asked about then."""
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters(), rule=to.TrustRegion(), inner=to.LBFGS(max_steps=3))
    seen = []
    for rows in ([0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5], [5, 4, 3]):
        loss = to.losses.Logistic(y[rows])
        seen.append(opt.step(lambda rows=rows: model(x[rows]), black_box(loss)).ratio)
    assert [math.isfinite(r) for r in seen] == [False, True, False, True, False]


def test_one_more_forward_and_no_oracle_call() -> None:
    x, y = data()
    counts = []
    for rule in (to.GradientStep(), to.TrustRegion()):
        model = network()
        inner = to.GradientDescent(step_size=0.1, max_steps=2)
        opt = to.SSO(model.parameters(), lr=0.5, rule=rule, inner=inner, check_purity=False)
        reports = [opt.step(lambda m=model: m(x), to.losses.Logistic(y)) for _ in range(2)]
        counts.append([(r.oracle_calls, r.value_calls, r.forward_calls) for r in reports])
    assert counts[0][0] == counts[1][0]  # nothing to look back to
    assert counts[1][1] == (1, 0, counts[0][1][2] + 1)


def test_freezing_a_parameter_ends_the_comparison() -> None:
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters(), rule=to.TrustRegion(), inner=to.LBFGS(max_steps=3))
    oracle = black_box(to.losses.Logistic(y))
    opt.step(lambda: model(x), oracle)
    model[0].weight.requires_grad_(False)
    assert math.isnan(opt.step(lambda: model(x), oracle).ratio)
    assert math.isfinite(opt.step(lambda: model(x), oracle).ratio)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.floats(-3, 3), st.integers(0, 10**6))
def test_agreement_is_a_cosine(n: int, scale: float, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    z, before, slope = (torch.randn(n, 2, dtype=F64, generator=g) for _ in range(3))
    factor = 10.0**scale
    point = TargetPoint(z, torch.zeros(n, dtype=F64), slope, earlier=before)
    found = evidence(point).agreement
    assert -1.0 <= found <= 1.0
    scaled = TargetPoint(z, torch.zeros(n, dtype=F64), factor * slope, earlier=before)
    assert evidence(scaled).agreement == pytest.approx(found, abs=1e-9)
    twice = TargetPoint(
        z.repeat(2, 1),
        torch.zeros(2 * n, dtype=F64),
        slope.repeat(2, 1),
        earlier=before.repeat(2, 1),
    )
    assert evidence(twice).agreement == pytest.approx(found, abs=1e-12)
    along = TargetPoint(before - slope, torch.zeros(n, dtype=F64), slope, earlier=before)
    assert evidence(along).agreement == pytest.approx(1.0)
    assert adapted(1.0, found, 1.0) == pytest.approx(1.0 / adapted(1.0, -found, 1.0))


def test_nothing_to_compare_says_nothing() -> None:
    z = torch.ones(2, dtype=F64)
    assert evidence(TargetPoint(z, z, z)).agreement == 0.0
    assert evidence(TargetPoint(z, z, z, earlier=z)).agreement == 0.0
    assert not same_rows(TargetPoint(z, z, z), z, None)
    assert same_rows(TargetPoint(2 * z, z, z, earlier=z), z, None)
    one, other = torch.tensor([0, 1]), torch.tensor([0, 2])
    assert same_rows(TargetPoint(z, z, z, earlier=z, index=one), z, one)
    assert not same_rows(TargetPoint(z, z, z, earlier=z, index=one), z, other)
    assert not same_rows(TargetPoint(z, z, z, earlier=z, index=one), z, None)


@given(slope=st.floats(-1.0, 1.0), size=st.floats(1.0, 1e3), usual=st.floats(1e-6, 1e6))
def test_small_evidence_counts_by_its_share_of_what_is_usual(
    slope: float, size: float, usual: float
) -> None:
    said = Evidence(slope, size)
    assert said.beside(0.0) == said.agreement == pytest.approx(-slope / size)
    assert said.beside(usual) == pytest.approx(said.agreement * min(1.0, size / usual))
    assert said.averaged(None) == said.averaged(0.0) == size
    assert said.averaged(usual) == pytest.approx(usual + (size - usual) / MEMORY)
    assert Evidence(0.0, 0.0).beside(usual) == 0.0
    assert Evidence(0.0, 0.0).averaged(usual) == usual


def test_many_batches_that_are_fitted_do_not_outvote_one_that_is_spoilt() -> None:
    """Fifteen batches with a thousandth of the gradient agree with the step, one disagrees: η falls."""
    usual, eta = 0.0, 1.0
    for round_ in range(10 * MEMORY):
        size, sign = (1.0, 0.5) if round_ % MEMORY == 0 else (1e-3, -1.0)
        said = Evidence(sign * size, size)
        usual = said.averaged(usual)
        eta = adapted(eta, said.beside(usual), first=1.0, gain=1.0)
    assert eta < 0.1


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_step_that_fresh_rows_choose_is_near_the_best_fixed_one(noise: float) -> None:
    """Labels, small batches: one rule spans noisy data, where short steps win, and data that can be fitted."""
    x, y = data(400, noise, seed=3)
    features = torch.cat([x, x**2, torch.ones(400, 1, dtype=F64)], dim=1)

    def end(lr: float | None) -> float:
        w = torch.zeros(11, dtype=F64, requires_grad=True)
        opt = to.SSO([w], lr=lr, rule=to.Proximal(), inner=to.LBFGS(max_steps=10), warn=False)
        g = torch.Generator().manual_seed(0)
        for _ in range(80):
            rows = torch.randint(400, (20,), generator=g)
            opt.step(lambda rows=rows: features[rows] @ w, to.losses.Logistic(y[rows]))
        return float(to.losses.Logistic(y).value((features @ w).detach()).mean())

    fixed = [end(lr) for lr in (0.5, 8.0, 128.0)]
    assert end(None) < 1.1 * min(fixed)
    assert max(fixed) > 1.4 * min(fixed)  # the choice matters


def test_proximal_on_a_full_batch_minimises_the_loss_as_it_stands() -> None:
    x, y = data(40, 0.3)
    w = torch.zeros(5, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.Proximal(), inner=to.LBFGS(max_steps=60))
    reports = [opt.step(lambda: x @ w, to.losses.Logistic(y)) for _ in range(4)]
    assert [math.isinf(r.eta) for r in reports] == [False, False, True, True]
    assert float((x.T @ to.losses.Logistic(y).gradient((x @ w).detach())).norm()) < 1e-6


def test_proximal_at_infinity_is_the_batch_loss() -> None:
    x, y = data(12, 0.3)
    ends = []
    for rule in (to.Proximal(), None):
        model = network()
        if rule is None:
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                inner.zero_grad()
                to.losses.Logistic(y).value(model(x)).mean().backward()
                inner.step()
        else:
            steps = to.GradientDescent(step_size=0.1, max_steps=5)
            opt = to.SSO(model.parameters(), lr=math.inf, rule=rule, inner=steps)
            opt.step(lambda m=model: m(x), to.losses.Logistic(y))
        ends.append([p.detach() for p in model.parameters()])
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lie", ["sign", "noise", "kink"])
def test_a_bad_oracle_ends_no_worse_than_its_start(lie: str) -> None:
    """Gradients of the wrong sign, losses with noise, kinks: the last accepted point is no worse."""
    generator = torch.Generator().manual_seed(0)

    def oracle(z: Tensor) -> tuple[float, Tensor]:
        if lie == "kink":
            return float(z.abs().sum()), z.sign()
        value, slope = float(z.square().sum()), 2 * z
        if lie == "sign":
            return value, -slope
        return value + 1e-3 * float(torch.randn((), generator=generator)), slope

    model = network()
    x, _ = data()
    opt = to.SSO(model.parameters(), warn=False)
    reports = [opt.step(lambda: model(x), to.ScalarOracle(oracle)) for _ in range(15)]
    accepted = [r.loss for r in reports if r.accepted]
    assert all(b <= a + (5e-3 if lie == "noise" else 1e-12 * a) for a, b in pairwise(accepted))
    opt.rewind()
    end = float(oracle(model(x).detach())[0])
    assert end <= reports[0].loss * (1 + 1e-9) + (5e-3 if lie == "noise" else 0.0)
    if lie == "sign":
        assert not any(r.accepted for r in reports[1:])
    else:
        assert end < 0.5 * reports[0].loss


# -- how many inner steps ----------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 0.95), st.floats(1.0, 1e5))
def test_geometric_decreases_stop_where_the_rate_is_best(ratio: float, price: float) -> None:
    """For decreases r^k the rate D_k/(τ + k) has one maximum; we stop within the window after it."""
    rates = [(1 - ratio**k) / (price + k) for k in range(1, 400)]
    best = 1 + max(range(len(rates)), key=rates.__getitem__)
    economy, k = Economy(price), 0
    while k < 400:
        k += 1
        if economy.enough(ratio ** (k - 1)):
            break
    assert best <= k <= best + 6


def test_a_higher_price_takes_more_steps() -> None:
    x, y = data()
    taken = []
    for price in (1, 10, 100, 1000):
        model = network()
        stopping = to.Stopping(price=price)
        inner = to.LBFGS(max_steps="auto", stopping=stopping)
        opt = to.SSO(model.parameters(), lr=4.0, inner=inner)
        report = opt.step(lambda m=model: m(x), to.losses.Logistic(y))
        assert report.stop_reason in ("price", "max-steps")
        assert report.steps_at.get(price, MOST) == report.inner_steps
        taken.append(report.inner_steps)
    assert taken == sorted(taken)
    assert taken[0] < taken[-1] <= MOST
    assert [report.steps_at[p] for p in (1, 10, 100)] == taken[:3]


SOLVERS = [
    to.LBFGS("auto"),
    to.Armijo("auto"),
    to.GaussNewton("auto"),
    to.GradientDescent(0.2, "auto"),
    to.Torch(lambda params: torch.optim.SGD(params, lr=0.2), "auto"),
]


@pytest.mark.parametrize("inner", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_every_iterative_solver_stops_by_itself(inner: to.Inner) -> None:
    x, y = data()
    model = network()
    opt = to.SSO(model.parameters(), lr=4.0, inner=inner)
    reports = [opt.step(lambda: model(x), to.losses.Logistic(y)) for _ in range(3)]
    assert all(1 < r.inner_steps <= MOST for r in reports)
    assert all(r.surrogate_decrease > 0 for r in reports)
    assert reports[-1].loss < reports[0].loss
    assert "price" in {r.stop_reason for r in reports}


def test_relative_error_stops_where_it_says() -> None:
    """Free targets: the smallest value is η‖g‖²/2 below, and the test stops within α of that gap."""
    w = torch.zeros(6, dtype=F64, requires_grad=True)
    scales = torch.logspace(0, 1, 6, dtype=F64)
    oracle = to.losses.Squared(torch.ones(6, dtype=F64))
    for alpha in (0.5, 0.1, 0.01):
        with torch.no_grad():
            w.zero_()
        inner = to.Armijo(max_steps=1000, stopping=to.Stopping(relative_error=alpha))
        report = to.SSO([w], lr=1.0, inner=inner).step(lambda: scales * w, oracle)
        gap = 0.5 * report.eta * report.gradient_norm**2
        assert report.stop_reason == "relative-error"
        assert report.surrogate_decrease >= (1 - alpha) * gap * (1 - 1e-12)


def test_the_price_is_measured_by_powers_of_ten_and_then_kept() -> None:
    assert price_of(oracle=1e-6, forward=1.0) == LEAST_PRICE
    assert price_of(oracle=1.0, forward=1e-4) == 1000.0
    assert price_of(oracle=1e9, forward=1e-6) == 10_000.0
    seen: dict[str, object] = {}
    for _ in range(3):
        seen = timed(seen, 5.0, 1e-3)
    assert seen == {"looks": 3, "price": 1000.0}
    assert timed(seen, 1e9, 1e-9) == seen


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to.LBFGS(max_steps="always"), "max_steps='always' must be a whole number"),
        (lambda: to.Stopping(price=0), "price=0 must be positive"),
        (lambda: to.Stopping(price="dear"), "price='dear' must be positive"),
        (lambda: to.Stopping(relative_error=-1.0), "relative_error=-1.0 must be ≥ 0"),
    ],
)
def test_bad_input(make: object, words: str) -> None:
    with pytest.raises(to.BadArgument, match=words):
        make()  # type: ignore[operator]


def test_choices_are_ordered_from_the_most_revealed_to_gradients_only() -> None:
    assert [each.name for each in CHOICES] == [
        "bought",
        "proximal",
        "trust-region",
        "gradient-step",
        "adagrad-norm",
    ]
    assert CHOICES[2].rule.needs == {"losses"}
    assert not CHOICES[-1].rule.needs  # so that there always is one
