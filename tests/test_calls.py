"""The modules of a forward are seen, and nobody else notices: other threads, compiled modules, nested steps."""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils._python_dispatch import TorchDispatchMode

import targetopt as to
from core_parts import identical
from targetopt.step import calls
from targetopt.step.journal import Journal

F64 = torch.float64
X = torch.randn(16, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(16, dtype=F64, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))[:, 0]


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().double()


def steps(model: nn.Module, forward: Callable[[], Tensor], times: int = 3) -> list[float]:
    opt = to.SSO(model.parameters(), lr=0.5, inner=to.Armijo(max_steps=4))
    return [opt.step(forward, to.losses.Squared(Y)).loss for _ in range(times)]


# -- compiled modules -----------------------------------------------------------------------------


class Compiler:
    """A backend that counts what it is given to compile, and runs it as it is."""

    def __init__(self) -> None:
        self.frame_count = 0

    def __call__(self, graph: Any, _inputs: object) -> Any:
        self.frame_count += 1
        return graph.forward


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    torch._dynamo.reset()
    yield Compiler()
    torch._dynamo.reset()


def whole(model: Net, backend: Any) -> Callable[[], Tensor]:
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    return lambda: compiled(X)


def in_place(model: Net, backend: Any) -> Callable[[], Tensor]:
    model.compile(backend=backend, fullgraph=True)
    return lambda: model(X)


def a_part(model: Net, backend: Any) -> Callable[[], Tensor]:
    model.norm = torch.compile(model.norm, backend=backend, fullgraph=True)
    return partial(model, X)


def a_function(model: Net, backend: Any) -> Callable[[], Tensor]:
    return torch.compile(lambda: model(X), backend=backend, fullgraph=True)


TORCHS_OWN = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
SLOW = pytest.mark.slow
HOW = [whole, *(pytest.param(how, marks=SLOW) for how in (in_place, a_part, a_function))]


@TORCHS_OWN
@pytest.mark.parametrize("how", HOW)
def test_a_compiled_forward_stays_compiled_and_its_buffers_move_once(
    how: Callable[..., Any], compiler: Compiler
) -> None:
    plain, model = net(), net()
    expected = steps(plain, lambda: plain(X))
    assert steps(model, how(model, compiler)) == expected
    assert compiler.frame_count == 1
    assert identical(list(model.buffers()), list(plain.buffers()))


def test_a_compiled_forward_that_fails_leaves_its_buffers(compiler: Compiler) -> None:
    model = net()
    forward = whole(model, compiler)
    before = copy.deepcopy(model.state_dict())
    opt = to.SSO(model.parameters(), lr=0.5)
    with pytest.raises(ZeroDivisionError):
        opt.step(forward, to.GradientOracle(lambda z: 1 / 0))
    assert identical(dict(model.state_dict()), dict(before))


# -- where modules are found ----------------------------------------------------------------------

ELSEWHERE = net()


class Trainer:
    def __init__(self) -> None:
        self.parts = {"models": [net()]}

    def forward(self) -> Tensor:
        return self.parts["models"][0](X)


def test_modules_are_found_wherever_a_forward_holds_them() -> None:
    model, trainer, package = net(), Trainer(), types.ModuleType("package")
    package.model = model  # type: ignore[attr-defined]
    own = trainer.parts["models"]
    for forward, expected in [
        (model, [model]),
        (lambda: model(X), [model]),
        (lambda model=model: model(X), [model]),
        (lambda: next(f(X) for f in (lambda z: ELSEWHERE(z),)), [ELSEWHERE]),
        (partial(lambda f, z: f(z), model, z=X), [model]),
        (trainer.forward, own),
        (lambda: trainer.forward(), own),
    ]:
        assert calls.found_from(forward) == (expected, False)
    globals_of_a_package = types.FunctionType(
        compile("package.model(x)", "here", "eval"), {"package": package}
    )
    assert calls.found_from(globals_of_a_package) == ([model], False)


def test_nested_steps_each_see_their_own_modules() -> None:
    """A forward that trains another model first, as unrolled methods do."""
    outer, inner = net(0), net(1)
    inner_opt = to.SSO(inner.parameters(), lr=0.5, inner=to.Armijo(max_steps=2))
    seen: list[nn.Module] = []

    def forward() -> Tensor:
        if int(inner.norm.num_batches_tracked) == 0:
            inner_opt.step(lambda: inner(X), to.losses.Squared(Y))
        return outer(X)

    journal = Journal()
    with calls.noticed(forward, seen.append, journal):
        forward()
    assert seen[0] is inner  # the outer one is told of all of them
    assert outer in seen
    assert seen.index(outer) > seen.index(inner.last)
    assert int(inner.norm.num_batches_tracked) == 1
    assert not torch_modules._global_forward_pre_hooks


# -- other threads --------------------------------------------------------------------------------


class Beside:
    """A thread that does something while a forward runs, again and again; nothing leads from one to the other."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.begin, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.times, self.errors = 0, []
        self._do = do
        self._stops = False
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        while self.begin.acquire() and not self._stops:
            try:
                self._do()
                self.times += 1
            except BaseException as error:
                self.errors.append(error)
            self.done.release()

    def stop(self) -> None:
        self._stops = True
        self.begin.release()
        self._thread.join()


def train_beside(do: Callable[[], object]) -> Beside:
    """Three steps; in every one of their forwards, the other thread does its work once."""
    beside = Beside(do)
    begin, done = beside.begin.release, beside.done.acquire
    model = net()
    try:
        steps(model, lambda: (begin(), done(), model(X))[-1])
    finally:
        beside.stop()
    assert not beside.errors, beside.errors
    alone = net()
    steps(alone, lambda: alone(X))
    assert identical(dict(model.state_dict()), dict(alone.state_dict()))
    return beside


def test_batch_norm_in_another_thread_keeps_every_update() -> None:
    innocent = net(3)
    beside = train_beside(lambda: innocent(X))
    assert beside.times > 10
    twin = net(3)
    for _ in range(beside.times):
        twin(X)
    assert identical(dict(innocent.state_dict()), dict(twin.state_dict()))


@TORCHS_OWN
@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
@pytest.mark.parametrize("how", HOW)
def test_another_thread_compiles_while_a_step_runs(
    how: Callable[..., Any], compiler: Compiler
) -> None:
    innocent = net(3)
    forward = how(innocent, compiler)
    compiled_at: list[int] = []

    def run() -> None:
        forward()
        compiled_at.append(compiler.frame_count)

    beside = train_beside(run)
    assert int(innocent.norm.num_batches_tracked) == beside.times > 10
    assert 1 <= compiled_at[-1] <= 3  # once with the hook in place, once without
    twin = net(3)
    for _ in range(beside.times):
        twin(X)
    assert identical(list(innocent.buffers()), list(twin.buffers()))


def test_steps_in_several_threads_are_those_of_one_thread() -> None:
    alone = [net(seed) for seed in range(4)]
    expected = [steps(m, lambda m=m: m(X), times=8) for m in alone]
    models = [net(seed) for seed in range(4)]
    found: dict[int, list[float]] = {}

    def train(seed: int) -> None:
        model = models[seed]
        found[seed] = steps(model, lambda: model(X), times=8)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected
    for model, twin in zip(models, alone, strict=True):
        assert identical(dict(model.state_dict()), dict(twin.state_dict()))
    assert not torch_modules._global_forward_pre_hooks


class Reads(TorchDispatchMode):
    """Counts the numbers that Python reads out of tensors, for each of which a graphics card would be waited for."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("solver", "per_step"),
    [
        (lambda m: to.GradientDescent(step_size=0.1, max_steps=m), 0),
        # torch's optimisers are told the value by their closure, and may use it
        (lambda m: to.Torch(partial(torch.optim.SGD, lr=0.01, momentum=0.9), max_steps=m), 1),
    ],
    ids=["gd", "torch"],
)
def test_inner_steps_read_no_number_that_decides_nothing(solver, per_step) -> None:
    x, y = torch.randn(20, 4), torch.randn(20)
    reads = []
    for steps in (2, 12):
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))
        opt = to.SSO(model.parameters(), lr=0.5, inner=solver(steps))
        with Reads() as counting:
            opt.step(lambda model=model: model(x), to.LossOracle(to.losses.Squared(y)))
        reads.append(counting.count)
    assert reads[1] - reads[0] == 10 * per_step
