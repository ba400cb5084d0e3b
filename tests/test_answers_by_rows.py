"""Answers without losses, with data and weights of rows; mini-batches; rules that look where a solve has landed."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from targetopt.rules import Reconsidered
from targetopt.types import State

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(24, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()


class Oracle:
    """½‖z − y‖², of which it tells what it is told to tell."""

    def __init__(self, y: Tensor = Y, losses: bool = True, **more: Any) -> None:
        self.y, self.losses, self.more, self.calls = y, losses, more, 0

    def query(self, z: Tensor) -> to.TargetPoint:
        self.calls += 1
        losses = 0.5 * (z - self.y).square().sum(dim=1) if self.losses else None
        return to.TargetPoint(z, losses, z - self.y, **self.more)


def parameters(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


# -- losses, data, weights, interactions ------------------------------------------------------------------


def test_rules_that_need_gradients_alone_make_the_same_step_without_losses() -> None:
    for rule in (to.GradientStep(), to.AdaGrad(), to.AdaGradNorm(), to.FTRL(), to.MirrorDescent()):
        found = []
        for losses in (True, False):
            net = model()
            opt = to.SSO(net.parameters(), lr=0.5, rule=rule, inner=to.Armijo(max_steps=5))
            reports = [opt.step(lambda n=net: n(X), Oracle(losses=losses)) for _ in range(3)]  # type: ignore[misc]
            found.append(parameters(net))
        assert torch.equal(*found), rule
        assert all(report.loss != report.loss for report in reports)


def test_rules_that_compare_losses_refuse_an_answer_without_them() -> None:
    for rule in (to.TrustRegion(), to.Polyak(), to.Bundle()):
        net = model()
        before = parameters(net)
        opt = to.SSO(net.parameters(), rule=rule)
        with pytest.raises(to.MissingCapability, match="needs the oracle's losses"):
            opt.step(lambda n=net: n(X), Oracle(losses=False))  # type: ignore[misc]
        assert torch.equal(parameters(net), before)


def test_with_nothing_chosen_an_answer_without_losses_is_used_by_a_rule_that_needs_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = model()
    before = parameters(net)
    opt = to.SSO(net.parameters())
    report = opt.step(lambda: net(X), Oracle(losses=False))
    assert math.isnan(report.loss)
    assert not torch.equal(parameters(net), before)
    opt.explain()
    assert "gives gradients and no losses" in capsys.readouterr().out


def test_weights_are_repetitions() -> None:
    """A row of weight 2 is that row twice, up to the number of rows by which everything is divided."""
    weights = torch.tensor([2.0, 1.0] * 12, dtype=torch.float64)
    twice = torch.arange(24).repeat_interleave(weights.long())
    found = []
    for x, y, told in ((X, Y, weights * 24 / 36), (X[twice], Y[twice], None)):
        net = model()
        opt = to.SSO(net.parameters(), lr=0.5, inner=to.Armijo(max_steps=5))
        for _ in range(3):
            report = opt.step(lambda n=net, x=x: n(x), Oracle(y, weights=told))  # type: ignore[misc]
        found.append((parameters(net), report.loss))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-12)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-12)


def test_rules_that_know_no_weights_refuse_them() -> None:
    net = model()
    opt = to.SSO(net.parameters(), lr=0.5, rule=to.AdaGrad())
    with pytest.raises(to.MissingCapability, match="does not know weights"):
        opt.step(lambda: net(X), Oracle(weights=torch.ones(24)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weights": torch.ones(3)}, r"weights must be a tensor of shape \(24,\)"),
        ({"weights": -torch.ones(24)}, "not negative; row 0"),
        ({"weights": [1.0] * 24}, "got list"),
        ({"data": {"actions": torch.ones(3)}}, "one entry for each of the 24 rows"),
        ({"data": {"gain": torch.full((24,), torch.nan)}}, "not finite in 24 of 24 rows"),
        ({"data": [1]}, "dictionary of tensors"),
        ({"interactions": -1}, "whole number ≥ 0"),
    ],
)
def test_bad_parts_of_an_answer_are_named(more: dict[str, Any], said: str) -> None:
    net = model()
    before = parameters(net)
    opt = to.SSO(net.parameters(), lr=0.5)
    with pytest.raises(to.BadAnswer, match=said):
        opt.step(lambda: net(X), Oracle(**more))
    assert torch.equal(parameters(net), before)


def test_interactions_are_counted_and_saved() -> None:
    net = model()
    opt = to.SSO(net.parameters(), lr=0.5)
    for _ in range(2):
        report = opt.step(lambda: net(X), Oracle(interactions=24))
    assert (report.interactions, opt.totals.interactions) == (24, 48)
    again = to.SSO(net.parameters(), lr=0.5)
    again.load_state_dict(opt.state_dict())
    assert again.totals == opt.totals


# -- mini-batches inside the inner loop -------------------------------------------------------------------


def adam(**options: Any) -> to.Torch:
    return to.Torch(lambda p: torch.optim.Adam(p, lr=1e-2), **options)


def test_mini_batches_do_what_a_loop_of_ones_own_does() -> None:
    """Against Adam on ½‖z − y‖² in the same order: at η = 1 the surrogate of the squared loss is the loss."""
    net, reference = model(), model()
    inner = adam(epochs=2, batch_size=7, clip=0.5, seed=3)
    opt = to.SSO(net.parameters(), lr=1.0, inner=inner)
    plain = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for step in range(3):
        report = opt.step(to.ByRows(net, X), Oracle())
        for epoch in range(2):
            for index in inner.order(24, 2 * step + epoch).split(7):
                plain.zero_grad()
                error = reference(X[index]) - Y[index]
                (0.5 * error.square().sum(dim=1).mean()).backward()
                length = torch.cat([p.grad.reshape(-1) for p in reference.parameters()]).norm()  # type: ignore[union-attr]
                for p in reference.parameters():
                    assert p.grad is not None
                    p.grad *= min(1.0, 0.5 / float(length))
                plain.step()
        torch.testing.assert_close(parameters(net), parameters(reference), rtol=0, atol=1e-12)
    assert report.inner_steps == 8  # 24 rows in batches of 7 are four
    assert report.backward_calls == 8
    assert all(p.grad is None for p in net.parameters())


def test_mini_batches_resume_bitwise_and_do_not_depend_on_other_random_numbers() -> None:
    straight, stopped = model(), model()
    inner = adam(max_steps=5, batch_size=8)
    opt = to.SSO(straight.parameters(), lr=1.0, inner=inner)
    for _ in range(4):
        opt.step(to.ByRows(straight, X), Oracle())
    opt = to.SSO(stopped.parameters(), lr=1.0, inner=inner)
    for _ in range(2):
        torch.rand(3)
        opt.step(to.ByRows(stopped, X), Oracle())
    again = to.SSO(stopped.parameters(), lr=1.0, inner=inner)
    again.load_state_dict(opt.state_dict())
    for _ in range(2):
        again.step(to.ByRows(stopped, X), Oracle())
    assert torch.equal(parameters(straight), parameters(stopped))


def test_linear_forwards_give_rows_too() -> None:
    weight = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    opt = to.SSO([weight], lr=1.0, inner=adam(epochs=30, batch_size=6))
    report = opt.step(to.Linear(weight, X), Oracle())
    assert report.surrogate_decrease > 0


@pytest.mark.parametrize(
    ("layer", "what"), [(nn.Dropout(0.5), "draws random"), (nn.BatchNorm1d(8), "moves buffers")]
)
def test_forwards_whose_rows_depend_on_each_other_are_refused(layer: nn.Module, what: str) -> None:
    net = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 2)).double()
    before = parameters(net)
    opt = to.SSO(net.parameters(), lr=1.0, inner=adam(max_steps=2, batch_size=8))
    with pytest.raises(to.BadForward, match=what):
        opt.step(to.ByRows(net, X), Oracle())
    assert torch.equal(parameters(net), before)
    assert opt.totals.oracle_calls == 0


def test_forwards_without_rows_are_refused_with_the_way_out() -> None:
    net = model()
    opt = to.SSO(net.parameters(), lr=1.0, inner=adam(max_steps=2, batch_size=8))
    with pytest.raises(to.BadForward, match=r"to\.ByRows"):
        opt.step(lambda: net(X), Oracle())


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.0},
        {"epochs": 2},
        {"batch_size": 0},
        {"batch_size": 4, "max_steps": "auto"},
        {"seed": -1},
    ],
)
def test_bad_options_of_mini_batches(options: dict[str, Any]) -> None:
    with pytest.raises(to.BadArgument, match="Torch"):
        adam(**options)


def test_bad_inputs_by_rows() -> None:
    with pytest.raises(to.BadArgument, match="same number of rows"):
        to.ByRows(model(), X, Y[:3])
    with pytest.raises(to.BadArgument, match="input 0"):
        to.ByRows(model(), 3.0)  # type: ignore[arg-type]


def test_clipping_bounds_the_gradient_of_whole_batches() -> None:
    """One step of plain SGD with lr = 1 moves the parameters by exactly the bound."""
    net = model()
    before = parameters(net)
    sgd = to.Torch(lambda p: torch.optim.SGD(p, lr=1.0), max_steps=1, clip=1e-3)
    to.SSO(net.parameters(), lr=1.0, inner=sgd).step(lambda: net(X), Oracle())
    assert float((parameters(net) - before).norm()) == pytest.approx(1e-3, rel=1e-9)


# -- rules that look where a solve has landed -------------------------------------------------------------


@dataclass(frozen=True)
class Halving(to.GradientStep):
    """Halves η until the targets have moved by no more than ``most``; refuses after ``tries``."""

    most: float = 0.1
    tries: int = 10

    def propose(
        self, point: to.TargetPoint, lr: float | None, decay: float, state: State
    ) -> to.Proposal:
        return super().propose(point, lr, decay, state)._replace(provisional=True)

    def reconsider(
        self, point: to.TargetPoint, proposal: to.Proposal, landed: Tensor, tries: int
    ) -> Reconsidered:
        moved = float((landed - point.targets).abs().max())
        kept = proposal._replace(
            state={"eta": proposal.eta}, measures={"moved": moved, "tries": float(tries)}
        )
        if moved <= self.most:
            return Reconsidered(kept, again=False)
        if tries == self.tries:
            return Reconsidered(kept._replace(eta=0.0), again=True)
        half = to.SquaredEuclidean().surrogate(point, proposal.eta / 2)
        return Reconsidered(kept._replace(surrogate=half, eta=proposal.eta / 2), again=True)

    def check_state(self, state: State) -> None: ...


def test_a_rule_may_have_a_step_solved_again_without_asking_the_oracle() -> None:
    net, reference = model(), model()
    oracle, inner = Oracle(), to.LBFGS(max_steps=30)
    opt = to.SSO(net.parameters(), lr=1.0, rule=Halving(), inner=inner)
    report = opt.step(lambda: net(X), oracle)
    assert oracle.calls == report.oracle_calls == 1
    assert report.solves == report.measures["tries"] > 1
    assert report.measures["moved"] <= 0.1
    assert report.eta == 2.0 ** (1 - report.solves)
    # the last solve is the solve of a step that had this η from the beginning
    once = to.SSO(reference.parameters(), lr=report.eta, inner=inner)
    last = once.step(lambda: reference(X), Oracle())
    assert torch.equal(parameters(net), parameters(reference))
    assert report.inner_steps > last.inner_steps
    assert opt.state_dict()["sso"]["rule_state"] == {"eta": report.eta}


def test_a_refused_step_moves_nothing_and_keeps_what_was_learned() -> None:
    net = model()
    before = parameters(net)
    opt = to.SSO(
        net.parameters(), lr=1.0, rule=Halving(most=0.0, tries=3), inner=to.Armijo(max_steps=4)
    )
    report = opt.step(lambda: net(X), Oracle())
    assert torch.equal(parameters(net), before)
    assert (report.stop_reason, report.solves, report.eta) == ("refused", 3, 0.0)
    assert report.inner_steps == 12
    assert opt.state_dict()["sso"]["rule_state"] == {"eta": 0.25}
    assert opt.state_dict()["sso"]["inner_state"] == {}


def test_an_error_while_reconsidering_undoes_the_step() -> None:
    @dataclass(frozen=True)
    class Raising(Halving):
        def reconsider(self, *_: Any) -> Reconsidered:
            raise ValueError("no opinion")

    net = model()
    before = parameters(net)
    opt = to.SSO(net.parameters(), lr=1.0, rule=Raising())
    with pytest.raises(ValueError, match="no opinion") as raised:
        opt.step(lambda: net(X), Oracle())
    assert torch.equal(parameters(net), before)
    assert opt.totals.oracle_calls == 0
    assert raised.value.answer is not None  # type: ignore[attr-defined]
