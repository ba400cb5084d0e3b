"""What an attack on the core found, each as a test: nothing silently wrong, nothing paid in vain."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import targetopt as to
from core_parts import identical, moody_mlp, network

F64 = torch.float64
X = torch.randn(16, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
X2 = torch.randn(16, 4, dtype=F64, generator=torch.Generator().manual_seed(2))
Y = torch.randn(16, dtype=F64, generator=torch.Generator().manual_seed(1))


# -- oracles with bad manners -------------------------------------------------------------------


@pytest.mark.parametrize("rewrites_gradients", [False, True])
def test_an_oracle_may_reuse_its_buffers(rewrites_gradients: bool) -> None:
    """Numpy simulators do: ``value`` then writes over what ``query`` returned."""

    def train(reuse: bool) -> tuple[list[to.StepReport], list[Tensor]]:
        model = network()
        kept_losses, kept_gradients = np.zeros(16), np.zeros(16)

        def simulate(z: Tensor, gradients: bool = True) -> tuple[np.ndarray, np.ndarray]:
            error = z.numpy() - Y.numpy()
            kept_losses[:] = 0.25 * error**4
            if gradients:
                kept_gradients[:] = error**3
            both = kept_losses, kept_gradients
            return both if reuse else (both[0].copy(), both[1].copy())

        oracle = to.GradientOracle(
            simulate, value=lambda z: simulate(z, rewrites_gradients)[0], smoothness=20.0
        )
        opt = to.SSO(model.parameters(), rule=to.LineSearch(), inner=to.Armijo(max_steps=5))
        reports = [opt.step(lambda: model(X), oracle) for _ in range(4)]
        return reports, [p.detach() for p in model.parameters()]

    assert identical(train(reuse=True), train(reuse=False))


def test_curvature_is_taken_where_the_question_was_asked() -> None:
    """Also from an oracle that changes the targets it was given."""
    ends = []
    for in_place in (False, True):
        w = torch.zeros(16, dtype=F64, requires_grad=True)

        def simulate(z: Tensor, in_place: bool = in_place) -> tuple[Tensor, Tensor]:
            error = z if in_place else z.clone()
            error.sub_(Y)
            return 0.25 * error**4, error**3

        oracle = to.GradientOracle(simulate, curvature=lambda z: 3 * (z - Y) ** 2)
        opt = to.SSO([w], lr=1.0, rule=to.Newton(floor=1e-6), inner=to.Exact())
        opt.step(lambda w=w: 1 * w, oracle)
        ends.append(w.detach())
    torch.testing.assert_close(ends[0], Y / 3, rtol=1e-9, atol=1e-12)
    assert torch.equal(*ends)


def test_a_loss_of_the_users_may_work_in_place() -> None:
    class Rude(to.losses.Squared):
        def value(self, z: Tensor) -> Tensor:
            return z.sub_(self.y).square_().mul_(0.5)

    ends = []
    for kind in (Rude, to.losses.Squared):
        w = torch.zeros(16, dtype=F64, requires_grad=True)
        opt = to.SSO([w], rule=to.LineSearch(), inner=to.Exact())
        reports = [opt.step(lambda w=w: 2 * w, kind(Y)) for _ in range(2)]
        ends.append(([r.loss for r in reports], w.detach()))
    assert identical(*ends)


def test_a_query_keeps_its_own_copy_of_the_index() -> None:
    w = torch.zeros(3, dtype=F64, requires_grad=True)
    rows = torch.tensor([0, 1, 2])
    query = to.SSO([w], lr=1.0).ask(lambda: 1 * w, index=rows)
    rows += 5
    assert query.index.tolist() == [0, 1, 2]


# -- threads and borrowed buffers ---------------------------------------------------------------


@pytest.mark.parametrize("fails", [True, False])
def test_a_model_in_another_thread_is_left_alone(fails: bool) -> None:
    innocent = nn.BatchNorm1d(4).double()
    w = torch.zeros(4, dtype=F64, requires_grad=True)

    def forward() -> Tensor:
        other = threading.Thread(target=lambda: innocent(X2))
        other.start()
        other.join()
        return X @ w

    def down(_z: Tensor) -> Any:
        raise ConnectionError("service down")

    opt = to.SSO([w], lr=0.1, inner=to.Armijo(max_steps=1), check_purity=False)
    if fails:
        with pytest.raises(ConnectionError):
            opt.step(forward, to.GradientOracle(down))
        calls = 1
    else:
        calls = opt.step(forward, to.losses.Squared(Y)).forward_calls
    assert int(innocent.num_batches_tracked) == calls


@pytest.mark.parametrize("own_dictionary", [False, True])
@pytest.mark.parametrize("max_steps", [1, 10])
def test_borrowed_buffers_move_once_a_step(max_steps: int, own_dictionary: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(moody_mlp(), nn.Flatten(0))
    own = dict(net.named_buffers())
    untouched = copy.deepcopy(own)
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    lent = {**params, **{k: v.clone() for k, v in net.named_buffers()}}
    tensors = dict(lent)

    def forward() -> Tensor:
        return functional_call(net, lent if own_dictionary else dict(lent), (X,))

    twin = copy.deepcopy(net)
    opt = to.SSO(list(params.values()), lr=0.1, inner=to.Armijo(max_steps=max_steps))
    for t in range(2):
        twin.load_state_dict(lent)
        rng = torch.get_rng_state()
        twin(X)
        torch.set_rng_state(rng)
        assert opt.step(forward, to.losses.Squared(Y)).surrogate_decrease > 0
        assert identical({k: lent[k] for k in own}, dict(twin.named_buffers()))
        assert int(lent["0.1.num_batches_tracked"]) == t + 1
    before = {k: v.clone() for k, v in lent.items()}
    with pytest.raises(ZeroDivisionError):
        opt.step(forward, to.GradientOracle(lambda z: 1 / 0))
    assert identical(
        {k: v.detach() for k, v in before.items()}, {k: v.detach() for k, v in lent.items()}
    )
    assert all(lent[k] is tensors[k] for k in tensors)
    assert all(b is own[k] for k, b in net.named_buffers())
    assert identical(dict(net.named_buffers()), untouched)


def test_several_sets_of_borrowed_buffers_move_once_each() -> None:
    """An ensemble over one module: each member brings its own statistics."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Flatten(0)).double()
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    members = [{k: v.clone() for k, v in net.named_buffers()} for _ in range(3)]

    def forward() -> Tensor:
        each = [
            functional_call(net, {**params, **b}, (X * (i + 1),)) for i, b in enumerate(members)
        ]
        return torch.stack(each).mean(dim=0)

    opt = to.SSO(list(params.values()), lr=0.1, inner=to.LBFGS(max_steps=4))
    for t in range(2):
        opt.step(forward, to.losses.Squared(Y))
        assert [int(b["1.num_batches_tracked"]) for b in members] == [t + 1] * 3
    means = [b["1.running_mean"] for b in members]
    assert not torch.equal(means[0], means[1])


@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, X)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_buffers_of_traced_modules_move_once_a_step(compiled: Callable[[nn.Module], Any]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1), nn.Flatten(0)).double()
    traced = compiled(net)
    started = int(traced.state_dict()["1.num_batches_tracked"])
    opt = to.SSO(traced.parameters(), lr=0.1, inner=to.Armijo(max_steps=5))
    for t in range(2):
        opt.step(lambda: traced(X), to.losses.Squared(Y))
        assert int(traced.state_dict()["1.num_batches_tracked"]) - started == t + 1
    before = {k: v.clone() for k, v in traced.state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: traced(X), to.GradientOracle(lambda z: 1 / 0))
    assert identical(dict(traced.state_dict()), before)


# -- tell ---------------------------------------------------------------------------------------


def small_outputs() -> nn.Sequential:
    model = network().float()
    with torch.no_grad():
        model[2].weight.mul_(3e-3)
        model[2].bias.mul_(3e-3)
    return model


@pytest.mark.parametrize("travels", [False, True])
def test_tell_knows_another_batch_where_targets_are_small(travels: bool) -> None:
    model = small_outputs()
    opt = to.SSO(model.parameters(), lr=0.5)
    query = opt.ask(lambda: model(X.float()))
    query = pickle.loads(pickle.dumps(query)) if travels else query
    z, y = query.targets, Y.float()
    with pytest.raises(to.BadForward, match=r"between ask and tell"):
        opt.tell(query, lambda: model(X2.float()), 0.5 * (z - y) ** 2, z - y)
    permuted = X.float()[[1, 0, *range(2, 16)]]
    with pytest.raises(to.BadForward, match=r"2 of 16 rows differ: 0, 1\)"):
        opt.tell(query, lambda: model(permuted), 0.5 * (z - y) ** 2, z - y)
    assert opt.tell(query, lambda: model(X.float()), 0.5 * (z - y) ** 2, z - y).step == 1


@pytest.mark.parametrize("factor", [1.001, 1 + 1e-7, -1.0])
def test_tell_knows_other_parameters(factor: float) -> None:
    model = small_outputs()
    opt = to.SSO(model.parameters(), lr=0.5)
    query = opt.ask(lambda: model(X.float()))
    z, y = query.targets, Y.float()
    with torch.no_grad():
        model[0].weight.mul_(factor)
    with pytest.raises(
        to.BadForward, match="parameters are not those at which the oracle was asked"
    ):
        opt.tell(query, lambda: model(X.float()), 0.5 * (z - y) ** 2, z - y)


def test_rows_may_carry_ids() -> None:
    w = torch.zeros(4, dtype=F64, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact())
    names = ["a", "b", "c", "d"]
    query = pickle.loads(pickle.dumps(opt.ask(lambda: 1 * w, ids=names)))
    assert query.ids == names
    losses, gradients = np.arange(4.0), np.arange(4.0)

    def told(rows: list[int], ids: Any) -> to.StepReport:
        return opt.tell(query, lambda: 1 * w, losses[rows], gradients[rows], ids=ids)

    refused = {
        r"not in the order.*its row 1 is 'c', which was asked as row 2.*Sort.*query\.ids": (
            [0, 2, 1, 3],
            ["a", "c", "b", "d"],
        ),
        r"lacks 2 of 4 rows: 'b' \(row 1\), 'd' \(row 3\)": ([0, 2], ["a", "c"]),
        r"1 rows that were not asked about: 'x'": ([0, 1, 2, 3], ["a", "b", "c", "x"]),
        r"rows have ids: pass ids= to tell": ([0, 1, 2, 3], None),
    }
    for words, (rows, ids) in refused.items():
        with pytest.raises(to.TargetoptError, match=words):
            told(rows, ids)
    assert told([0, 1, 2, 3], names).step == 1
    assert w.tolist() == pytest.approx([0.0, -1.0, -2.0, -3.0])
    with pytest.raises(to.BadArgument, match=r"name each of the 4 rows differently.*got 4, 3 diff"):
        opt.ask(lambda: 1 * w, ids=[0, 1, 2, 2])
    bare = opt.ask(lambda: 1 * w)
    with pytest.raises(to.BadArgument, match=r"given to tell and not to ask"):
        opt.tell(bare, lambda: 1 * w, losses, gradients, ids=names)


# -- refused before it is paid ------------------------------------------------------------------


def never(_z: Tensor) -> Any:
    raise AssertionError("the oracle was asked")


REFUSED: dict[str, tuple[dict[str, Any], Any, str]] = {
    "no L": ({"rule": to.GradientStep()}, to.GradientOracle(never), r"lr=None means 1/\(2L\)"),
    "no L of a function": ({"rule": to.GradientStep()}, never, r"lr=None means 1/\(2L\)"),
    "no value": ({"rule": to.LineSearch()}, to.GradientOracle(never), "LineSearch needs.*value"),
    "no curvature": (
        {"rule": to.Newton(), "lr": 1.0},
        to.LossOracle(never),
        "Newton needs the oracle's curvature",
    ),
    "no probabilities": (
        {"rule": to.MirrorDescent(to.NegativeEntropy()), "lr": 1.0},
        to.GradientOracle(never),
        "targets that are probabilities, between 0 and 1",
    ),
    "no optimiser": (
        {"lr": 1.0, "inner": to.Torch(lambda params: params)},
        to.GradientOracle(never),
        "factory must return",
    ),
    "rows beyond the machine": (
        {"lr": 1.0, "rule": to.AdaGrad()},
        to.GradientOracle(never),
        r"index= names data row 1000000000015.*8e\+03 GB.*Number the examples 0, 1, 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_oracle_is_asked(case: str) -> None:
    options, oracle, words = REFUSED[case]
    model = network()
    opt = to.SSO(model.parameters(), **options)
    rows = torch.arange(16) + (10**12 if "rows" in case else 0)
    with pytest.raises(to.TargetoptError, match=words):
        opt.step(lambda: model(X), oracle, index=rows)


def test_what_half_precision_cannot_hold_is_refused_before_the_oracle_is_asked() -> None:
    w = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    opt = to.SSO([w], lr=1.0, inner=to.Exact())
    with pytest.raises(to.BadForward, match="Exact needs parameters of float32"):
        opt.step(lambda: 1 * w, to.GradientOracle(never))


def test_an_oracle_that_says_nothing_of_itself_is_asked_and_its_answer_kept() -> None:
    asked = []

    class Silent:
        def query(self, z: Tensor) -> to.TargetPoint:
            asked.append(z)
            return to.TargetPoint(z, z.square() / 2, z)

    w = torch.ones(3, dtype=F64, requires_grad=True)
    opt = to.SSO([w], rule=to.GradientStep(), inner=to.Exact())
    with pytest.raises(to.MissingCapability, match="does not say its smoothness") as refused:
        opt.step(lambda: 1 * w, Silent())
    opt.param_groups[0]["lr"] = 1.0
    assert opt.step(lambda: 1 * w, refused.value.answer).loss == 0.5
    assert len(asked) == 1


def test_an_answer_handed_back_is_a_point_like_any_other() -> None:
    point = to.TargetPoint(Y, Y.square() / 2, Y)
    assert point.query(Y) is point
    assert replace(point, losses=Y * 0).query(Y).loss == 0
