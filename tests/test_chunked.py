"""A batch in pieces gives the numbers of the whole batch, with the memory of one piece."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import targetopt as to
from core_parts import SOLVERS

_numbers = torch.Generator().manual_seed(3)
X = torch.randn(11, 4, dtype=torch.float64, generator=_numbers)
Y = torch.randn(11, dtype=torch.float64, generator=_numbers).sign()


def network(dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 1), nn.Flatten(0)]
    return nn.Sequential(*layers).double()


def trained(forward_of: Any, solver: str = "armijo", rule: Any = None, steps: int = 3) -> Tensor:
    model = network()
    opt = to.SSO(model.parameters(), 1.0, rule=rule or to.GradientStep(), inner=SOLVERS[solver])
    for _ in range(steps):
        opt.step(forward_of(model), to.losses.Logistic(Y))
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "exact"])
def test_pieces_give_the_numbers_of_the_whole(solver: str) -> None:
    whole = trained(lambda model: lambda: model(X), solver)
    pieces = trained(lambda model: to.Chunked(model, X, 4), solver)
    assert torch.allclose(pieces, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", [to.Newton(), to.TrustRegion(), to.Proximal()])
def test_for_every_rule(rule: to.Rule) -> None:
    whole = trained(lambda model: lambda: model(X), rule=rule)
    pieces = trained(lambda model: to.Chunked(model, X, 3), rule=rule)
    assert torch.allclose(pieces, whole, rtol=1e-10, atol=1e-12)


def test_exact_of_a_linear_model() -> None:
    found = []
    for chunked in (False, True):
        model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
        nn.init.zeros_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        forward = to.Chunked(model, X, 4) if chunked else lambda model=model: model(X)
        to.SSO(model.parameters(), 1.0, inner=to.Exact()).step(forward, to.losses.Squared(Y))
        found.append(model[0].weight.detach().clone())
    assert torch.allclose(found[0], found[1], rtol=1e-12, atol=1e-14)


def forms() -> dict[str, Any]:
    loader = DataLoader(TensorDataset(X), batch_size=4)
    return {
        "tuple": lambda model: to.Chunked(model, (X,), 5),
        "mapping": lambda model: to.Chunked(model, {"input": X}, 5),
        "list": lambda model: to.Chunked(model, [X[:2], X[2:]]),
        "loader": lambda model: to.Chunked(model, loader),
        "function": lambda model: to.Chunked(lambda x: model(x), X, 4, params=model.parameters()),
        "checkpointed": lambda model: to.Chunked(
            lambda x: checkpoint(model, x, use_reentrant=False), X, 4, params=model.parameters()
        ),
        "more than all": lambda model: to.Chunked(model, X, 100),
    }


@pytest.mark.parametrize("form", list(forms()))
def test_every_form_of_a_batch(form: str) -> None:
    whole = trained(lambda model: lambda: model(X), steps=1)
    assert torch.allclose(trained(forms()[form], steps=1), whole, rtol=1e-12, atol=1e-12)


def test_no_graph_of_more_than_one_piece_is_alive() -> None:
    alive, most, kept = 0, 0, []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, v: Tensor) -> Tensor:
            return v

    model = network()

    def piece(x: Tensor) -> Tensor:
        nonlocal alive, most
        z = Watched.apply(model(x))  # type: ignore[no-untyped-call]
        if z.requires_grad:
            alive += 1
            most = max(most, alive)
            z.register_hook(lambda _: ended())
        kept.append(x.shape[0])
        return z

    def ended() -> None:
        nonlocal alive
        alive -= 1

    forward = to.Chunked(piece, X, 2, params=model.parameters())
    to.SSO(model.parameters(), 1.0, inner=to.Armijo(max_steps=3)).step(
        forward, to.losses.Logistic(Y)
    )
    assert most == 1
    assert set(kept) == {2, 1}


def test_dropout_draws_one_mask_per_piece_and_step() -> None:
    model = network(dropout=0.5)
    forward = to.Chunked(model, X, 4)
    torch.manual_seed(5)
    z = forward()
    after = torch.get_rng_state()
    (gradient,) = torch.autograd.grad(z.sum(), model[0].weight)
    assert torch.equal(torch.get_rng_state(), after)  # the backward pass draws nothing of its own
    torch.manual_seed(5)
    pieces = torch.cat([model(X[i : i + 4]) for i in range(0, 11, 4)])
    (expected,) = torch.autograd.grad(pieces.sum(), model[0].weight)
    assert torch.equal(z, pieces)
    assert torch.allclose(gradient, expected, rtol=1e-13)
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.LBFGS(max_steps=5))
    assert opt.step(forward, to.losses.Logistic(Y)).surrogate_decrease > 0


def test_parameters_may_be_frozen_between_steps() -> None:
    model = network()
    forward = to.Chunked(model, X, 4)
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=2))
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    opt.step(forward, to.losses.Logistic(Y))
    assert torch.equal(before, model[0].weight)


def test_batch_statistics_are_refused_and_fixed_ones_are_not() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Flatten(0))
    model = model.double()
    forward = to.Chunked(model, X, 4)
    opt = to.SSO(model.parameters(), lr=1.0, inner=to.Armijo(max_steps=1))
    with pytest.raises(to.BadForward, match="statistics over the rows of a piece"):
        opt.step(forward, to.losses.Logistic(Y))
    model[1].eval()
    opt.step(forward, to.losses.Logistic(Y))


def test_other_moving_buffers_are_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = network()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1  # type: ignore[operator, misc]
            return self.inside(x)  # type: ignore[no-any-return]

    model = Counting()
    with pytest.raises(to.BadForward, match="moves its buffers"):
        to.Chunked(model, X, 4)()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, X, 4), {}, "must be a module or a function"),
        ((lambda x: x, X, 4), {}, "params= was not given"),
        ((network(), X), {}, "size= is missing"),
        ((network(), X, 0), {}, "size=0 must be a whole number"),
        ((network(), [X], 3), {}, "Leave size= out"),
        ((network(), (X, Y[:3]), 3), {}, "one row per example"),
        ((network(), (X, "labels"), 3), {}, "must hold tensors"),
    ],
)
def test_what_cannot_be_cut_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(to.BadArgument, match=message):
        to.Chunked(*arguments, **options)


def test_a_loader_that_shuffles_is_refused() -> None:
    loader = DataLoader(TensorDataset(X), batch_size=4, shuffle=True)
    opt = to.SSO((model := network()).parameters(), lr=1.0)
    with pytest.raises(to.BadForward):
        opt.step(
            to.Chunked(lambda x: model(x), [], params=model.parameters()), to.losses.Logistic(Y)
        )
    assert len(list(to.Chunked(model, loader).pieces())) == 3


def test_autocast_around_it_is_refused() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(to.BadForward, match="inside"):
        to.Chunked(network(), X, 4)()


def test_pieces_whose_rows_have_other_shapes_are_refused():
    w = torch.ones(3, requires_grad=True)
    forward = to.Chunked(
        lambda x: x * w[: x.shape[1]], [torch.ones(2, 3), torch.ones(2, 1)], params=[w]
    )
    with pytest.raises(to.TargetoptError, match="All rows must have targets of one shape"):
        forward()


def test_an_iterable_that_does_not_say_how_many_pieces_it_has():
    class Pieces:
        def __iter__(self):
            return iter(torch.arange(12.0).reshape(6, 2).split(1))

    w = torch.ones(2, requires_grad=True)
    forward = to.Chunked(lambda x: x * w, Pieces(), params=[w])
    (gradient,) = torch.autograd.grad(forward().sum(), w)
    assert torch.equal(gradient, torch.tensor([30.0, 36.0]))


@pytest.mark.slow
def test_many_pieces_take_the_memory_of_one():
    """In use during a step on 64 pieces, beside a step on one without `Chunked`, each in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.distributed", "pieces"]
    # blocks that are freed go back to the system at once, so that what is resident is what is in use
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    one, cut = (
        json.loads(
            subprocess.check_output(
                [*command, kind], cwd=Path(__file__).parents[1], env=environment
            )
        )["megabytes"]
        for kind in ("one", "cut")
    )
    assert cut <= 1.3 * one
