"""One mask and one move of the buffers per outer step; a forward that is no function is refused."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import targetopt as to
from core_parts import fingerprint, identical, moody_mlp

X = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
ORACLE = to.LossOracle(to.losses.Squared(Y))

SOLVERS = [
    to.GradientDescent(step_size=0.05, max_steps=4),
    to.Armijo(max_steps=4),
    to.LBFGS(max_steps=4),
    to.GaussNewton(max_steps=2),
    to.Torch(lambda params: torch.optim.Adam(params, lr=0.01), max_steps=4),
]
each_solver = pytest.mark.parametrize("inner", SOLVERS, ids=lambda inner: type(inner).__name__)


class Masks(nn.Module):
    """Dropout that keeps a record of what it dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, h: Tensor) -> Tensor:
        mask = torch.rand(h.shape, dtype=h.dtype) > 0.4
        self.seen.append(mask)
        return h * mask


@each_solver
def test_one_mask_per_outer_step(inner: to.Inner) -> None:
    torch.manual_seed(3)
    masks = Masks()
    model = nn.Sequential(nn.Linear(4, 6), masks, nn.Linear(6, 1), nn.Flatten(0)).double()
    opt = to.SSO(model.parameters(), lr=0.5, inner=inner)
    per_step = []
    for _ in range(3):
        masks.seen.clear()
        report = opt.step(lambda: model(X), ORACLE)
        assert len(masks.seen) == report.forward_calls > 2
        assert all(torch.equal(mask, masks.seen[0]) for mask in masks.seen)
        per_step.append(masks.seen[0])
    assert not torch.equal(per_step[0], per_step[1])
    assert not torch.equal(per_step[1], per_step[2])


@each_solver
def test_a_step_moves_generator_and_buffers_as_one_forward_does(inner: to.Inner) -> None:
    torch.manual_seed(3)
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=0.5, inner=inner)
    twin = moody_mlp()
    for t in range(3):
        twin.load_state_dict(model.state_dict())
        start = torch.get_rng_state()
        twin(X)
        expected = torch.get_rng_state()
        torch.set_rng_state(start)
        opt.step(lambda: model(X)[:, 0], ORACLE)
        assert torch.equal(torch.get_rng_state(), expected)
        assert identical(dict(model.named_buffers()), dict(twin.named_buffers()))
        assert int(model[1].num_batches_tracked) == t + 1


def test_an_oracle_that_draws_numbers_draws_new_ones() -> None:
    torch.manual_seed(0)
    model, noise = moody_mlp(), []

    def noisy(z: Tensor) -> tuple[Tensor, Tensor]:
        noise.append(torch.randn(12, dtype=torch.float64))
        return z.square() / 2, z + noise[-1]

    opt = to.SSO(model.parameters(), lr=0.5, inner=to.Armijo(max_steps=3))
    for _ in range(2):
        opt.step(lambda: model(X)[:, 0], to.GradientOracle(noisy))
    assert not torch.equal(noise[0], noise[1])
    torch.manual_seed(0)
    twin = moody_mlp()
    twin(X)
    assert torch.equal(torch.randn(12, dtype=torch.float64), noise[0])


class Replacing(nn.Module):
    """Puts a new tensor in its buffer's place at each call, from nothing at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.register_buffer("cache", None)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        if self.cache is None:
            self.cache = torch.zeros((), dtype=torch.float64)
        self.cache = 0.5 * self.cache + x.mean()
        return self.linear(x)[:, 0] * self.calls.double() + self.cache


def test_buffers_that_are_replaced_move_once() -> None:
    model = Replacing().double()
    opt = to.SSO(model.parameters(), lr=0.1, inner=to.LBFGS(max_steps=3))
    for t in range(3):
        report = opt.step(lambda: model(X), ORACLE)
        assert report.surrogate_decrease > 0
        assert float(model.calls) == t + 1
    fresh = Replacing().double()
    for _ in range(3):
        fresh(X)
    assert torch.equal(model.cache, fresh.cache)


def test_a_failed_first_step_empties_a_buffer_again() -> None:
    model = Replacing().double()
    opt = to.SSO(model.parameters(), lr=0.1)
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: model(X), lambda z: z / (1 // 0))
    assert model.cache is None
    assert float(model.calls) == 0


class Tied(nn.Module):
    """Two modules with one buffer: the first writes it, the second reads it."""

    class Writer(nn.Module):
        def __init__(self, shared: Tensor) -> None:
            super().__init__()
            self.register_buffer("shared", shared)

        def forward(self, h: Tensor) -> Tensor:
            self.shared.add_(1.0)
            return h

    class Reader(Writer):
        def forward(self, h: Tensor) -> Tensor:
            return h * self.shared

    def __init__(self) -> None:
        super().__init__()
        shared = torch.zeros((), dtype=torch.float64)
        self.linear = nn.Linear(4, 1).double()
        self.writer, self.reader = Tied.Writer(shared), Tied.Reader(shared)

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.writer(self.linear(x)[:, 0]))


def test_tied_buffers_stay_tied() -> None:
    model = Tied()
    opt = to.SSO(model.parameters(), lr=0.1, inner=to.Armijo(max_steps=3))
    for t in range(3):
        assert opt.step(lambda: model(X), ORACLE).surrogate_decrease > 0
        assert model.writer.shared is model.reader.shared
        assert float(model.writer.shared) == t + 1


@each_solver
def test_spectral_norm_iterates_once(inner: to.Inner) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)).double()
    opt = to.SSO(model.parameters(), lr=0.5, inner=inner)
    torch.manual_seed(0)
    twin = nn.Sequential(spectral_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 1)).double()
    for _ in range(2):
        twin.load_state_dict(model.state_dict())
        twin(X)
        report = opt.step(lambda: model(X)[:, 0], ORACLE)
        assert identical(dict(model.named_buffers()), dict(twin.named_buffers()))
        assert report.surrogate_decrease > 0


@each_solver
def test_eval_mode_moves_nothing(inner: to.Inner) -> None:
    model = moody_mlp().eval()
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    opt = to.SSO(model.parameters(), lr=0.5, inner=inner)
    rng = torch.get_rng_state()
    assert opt.step(lambda: model(X)[:, 0], ORACLE).surrogate_decrease > 0
    assert identical(dict(model.named_buffers()), buffers)
    assert torch.equal(torch.get_rng_state(), rng)


def test_a_transformer_in_eval_mode_is_pure() -> None:
    """Its fast path without gradients differs in the last digits; that is no impurity."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    tokens = torch.randn(5, 3, 8)
    opt = to.SSO(model.parameters(), lr=0.5, inner=to.Armijo(max_steps=2))
    report = opt.step(lambda: model(tokens).mean(dim=1), lambda z: z.square().sum(dim=1))
    assert report.surrogate_decrease > 0


def new_batch(model: nn.Module) -> Callable[[], Tensor]:
    batches = iter(torch.utils.data.DataLoader(X, batch_size=4, generator=torch.Generator()))
    return lambda: model(next(batches))[:, 0]


def short_batch(model: nn.Module) -> Callable[[], Tensor]:
    batches = iter([X[:8], X[8:]])
    return lambda: model(next(batches))[:, 0]


def numpy_noise(model: nn.Module) -> Callable[[], Tensor]:
    return lambda: model(X * float(np.random.rand()))[:, 0]  # noqa: NPY002 (what users do)


def python_noise(model: nn.Module) -> Callable[[], Tensor]:
    return lambda: model(X * random.random())[:, 0]


def own_generator(model: nn.Module) -> Callable[[], Tensor]:
    generator = torch.Generator()
    return lambda: model(X)[:, 0] + torch.randn(12, generator=generator)


def counter(model: nn.Module) -> Callable[[], Tensor]:
    calls: list[int] = []

    def forward() -> Tensor:
        calls.append(1)
        return model(X)[:, 0] * len(calls)

    return forward


@pytest.mark.parametrize(
    ("impure", "cause"),
    [
        (new_batch, "4 of 4 rows changed.*fetches a new batch"),
        (short_batch, r"shape \(8,\), then \(4,\).*draw a new batch at each call"),
        (numpy_noise, "12 of 12 rows changed.*numpy.random's global generator"),
        (python_noise, "12 of 12 rows changed.*Python's `random`"),
        (own_generator, "generator of its own"),
        (counter, "keeps a counter"),
    ],
)
def test_an_impure_forward_is_refused_with_cause_and_remedy(impure, cause: str) -> None:
    torch.manual_seed(0)
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=0.5)
    before = fingerprint(model, opt)
    with pytest.raises(to.BadForward) as caught:
        opt.step(impure(model), lambda z: z.square())
    assert re.search(cause, str(caught.value), re.DOTALL), str(caught.value)
    assert "fix the batch and any noise outside of it" in str(caught.value)
    assert "x = next(batches); opt.step(lambda: model(x)" in str(caught.value)
    assert identical(fingerprint(model, opt), before)


def test_the_check_can_be_switched_off() -> None:
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=0.5, check_purity=False)
    assert opt.step(counter(model), ORACLE).step == 1


def test_a_refused_step_leaves_the_check_to_the_next() -> None:
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=0.5)
    for _ in range(2):
        with pytest.raises(to.BadForward, match="not a function of the parameters"):
            opt.step(counter(model), ORACLE)
    assert opt.step(lambda: model(X)[:, 0], ORACLE).step == 1
