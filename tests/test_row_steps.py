"""A step for each row: ``opt.step(forward, oracle, scales=s)`` gives row i the step η·s_i."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

import targetopt as to
from targetopt.distributions import Categorical, KLProximity
from targetopt.types import BadArgument, MissingCapability

N = 5
ETAS = torch.tensor([0.1, 0.7, 1.0, 2.5, 0.03], dtype=torch.float64)
EUCLIDEAN = [to.GradientStep(), to.MirrorDescent(to.SquaredEuclidean())]


def labels() -> Tensor:
    return torch.linspace(-1.0, 2.0, 2 * N, dtype=torch.float64).reshape(N, 2)


def network() -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    return model.double(), torch.randn(N, 3, dtype=torch.float64)


@pytest.mark.parametrize("rule", EUCLIDEAN)
@pytest.mark.parametrize("inner", [to.Exact(), to.LBFGS(max_steps=200), to.GaussNewton()])
def test_free_rows_are_separate_problems(rule: to.Rule, inner: object) -> None:
    """Rows that share no parameter: each goes where SSO with its own η brings it alone."""
    together = torch.zeros(N, 2, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([together], lr=0.5, rule=rule, inner=inner)
    report = opt.step(lambda: 1.0 * together, to.losses.Squared(labels()), scales=ETAS / 0.5)
    for row in range(N):
        alone = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        single = to.SSO([alone], lr=float(ETAS[row]), rule=rule, inner=inner)
        single.step(lambda w=alone: 1.0 * w, to.losses.Squared(labels()[row : row + 1]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-8)
    assert report.eta == 0.5
    assert report.measures["least_eta"] == pytest.approx(0.03)
    assert report.measures["most_eta"] == pytest.approx(2.5)


def test_the_closed_form_on_a_linear_model() -> None:
    """argmin_W mean_i [ g_i·(Wx_i − z_i) + ‖Wx_i − z_i‖²/2η_i ]: weighted least squares with weights 1/η_i."""
    torch.manual_seed(0)
    x = torch.randn(N, 3, dtype=torch.float64)
    w = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    z = (x @ w).detach()
    aims = z - ETAS[:, None] * (z - labels())
    rows = (1.0 / ETAS)[:, None]
    expected = torch.linalg.solve(x.T @ (rows * x), x.T @ (rows * aims))
    opt = to.SSO([w], lr=1.0, rule=to.GradientStep(), inner=to.Exact())
    opt.step(lambda: x @ w, to.losses.Squared(labels()), scales=ETAS)
    torch.testing.assert_close(w.detach(), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rule", EUCLIDEAN)
@pytest.mark.parametrize(
    "inner", [to.Armijo(max_steps=10), to.LBFGS(max_steps=20), to.GradientDescent(0.1, max_steps=8)]
)
def test_equal_steps_are_one_step(rule: to.Rule, inner: object) -> None:
    found = []
    for scales in (None, torch.full((N,), 0.25, dtype=torch.float64)):
        model, x = network()
        opt = to.SSO(model.parameters(), lr=0.5 if scales is None else 2.0, rule=rule, inner=inner)
        for _ in range(5):
            opt.step(lambda m=model, x=x: m(x), to.losses.Squared(labels()), scales=scales)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_mini_batches_take_the_steps_of_their_rows() -> None:
    """Mini-batches of all rows at once are the whole batch."""
    found = []
    for inner in (
        to.Torch(lambda p: torch.optim.SGD(p, 0.1), max_steps=4),
        to.Torch(lambda p: torch.optim.SGD(p, 0.1), epochs=4, batch_size=N),
    ):
        model, x = network()
        opt = to.SSO(model.parameters(), lr=1.0, rule=to.GradientStep(), inner=inner)
        opt.step(to.ByRows(model, x), to.losses.Squared(labels()), scales=ETAS)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_a_policy_step_holds_each_row_by_its_own_step() -> None:
    """Log-ratio and forward KL: one state a row, each lands at π(1 + η_i A) by itself."""
    family = Categorical(2)
    rule = to.rl.PolicyStep(family, to.rl.LogRatio(), KLProximity(family), to.rl.ConstantStep(1.0))
    logits = torch.zeros(3, 2, dtype=torch.float64, requires_grad=True)
    states = torch.arange(3).repeat_interleave(2)
    actions, gains = torch.tensor([0, 1] * 3), torch.tensor([1.0, -1.0] * 3, dtype=torch.float64)
    etas = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    opt = to.SSO([logits], rule=rule, inner=to.LBFGS(max_steps=200))
    oracle = to.rl.PolicyOracle(family, actions, gains)
    opt.step(lambda: logits[states], oracle, scales=etas[states])
    torch.testing.assert_close(
        logits.softmax(1)[:, 0].detach(), 0.5 * (1 + etas), rtol=0, atol=1e-7
    )


def test_a_held_kl_moves_all_steps_together() -> None:
    """HeldKL looks for η; rows keep their proportions, and a constant vector is the same run bit by bit."""
    found = []
    for scales in (None, torch.ones(N, dtype=torch.float64), torch.linspace(0.5, 2.0, N)):
        model, x = network()
        family = Categorical(2)
        held = to.rl.HeldKL(0.01, least=0.9, most=1.1, tries=30)
        rule = to.rl.PolicyStep(family, to.rl.LogRatio(), KLProximity(family), held)
        opt = to.SSO(model.parameters(), rule=rule, inner=to.LBFGS(max_steps=100))
        oracle = to.rl.PolicyOracle(
            family, torch.tensor([0, 1, 0, 1, 1]), torch.linspace(-1, 1, N).double()
        )
        report = opt.step(lambda m=model, x=x: m(x), oracle, scales=scales)
        assert report.solves > 1
        assert 0.009 <= report.measures["kl"] <= 0.011
        found.append((report.eta, torch.cat([p.detach().reshape(-1) for p in model.parameters()])))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert not torch.equal(found[0][1], found[2][1])


def test_asked_in_one_process_and_told_in_another() -> None:
    """The query carries the steps: a pickled one ends with the bits of the step at once."""
    ends = []
    for split in (False, True):
        model, x = network()
        opt = to.SSO(
            model.parameters(), lr=1.0, rule=to.GradientStep(), inner=to.LBFGS(max_steps=9)
        )
        loss = to.losses.Squared(labels())
        if split:
            query = opt.ask(lambda m=model, x=x: m(x), scales=ETAS)
            sent, model, opt = pickle.loads(pickle.dumps((query, model, opt)))
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
            z = sent.targets
            opt.tell(sent, lambda m=model, x=x: m(x), loss.value(z), loss.gradient(z))
        else:
            opt.step(lambda m=model, x=x: m(x), loss, scales=ETAS)
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        (torch.ones(N - 1), "one number for each of the 5 rows"),
        (torch.tensor(1.0), "One step for all rows is lr="),
        (torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]), "row 2 has 0"),
        (torch.tensor([1.0, float("nan"), 1.0, 1.0, 1.0]), "row 1 has nan"),
        (["a"] * N, "must be numbers"),
    ],
)
def test_bad_steps_are_refused_before_the_oracle_is_asked(scales: object, words: str) -> None:
    w = torch.zeros(N, dtype=torch.float64, requires_grad=True)
    asked: list[int] = []

    def losses(z: Tensor) -> Tensor:
        asked.append(1)
        return z.square()

    opt = to.SSO([w], lr=1.0, rule=to.GradientStep())
    with pytest.raises(BadArgument, match=words):
        opt.step(lambda: 1.0 * w, losses, scales=scales)
    other = to.SSO([w], lr=1.0, rule=to.AdaGrad())
    with pytest.raises(MissingCapability, match="AdaGrad has one step for all rows"):
        other.step(lambda: 1.0 * w, losses, scales=torch.ones(N))
    with pytest.raises(MissingCapability, match="regularise_on="):
        opt.step(lambda: 1.0 * w, losses, scales=torch.ones(N), regularise_on=lambda: 1.0 * w)
    assert not asked
