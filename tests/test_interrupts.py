"""An interrupt, wherever it strikes, finds a step that has not happened or one that is done and counted.

The quick tests try a sample of the lines of a step. ``-m slow`` tries more than 10 000 interrupts: for every rule
and solver some 550 lines, evenly spread, and for every rule 1000 real signals. With ``TARGETOPT_INTERRUPTS=every`` it
tries all lines, which takes hours.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import targetopt as to
from core_parts import ALL_RULES, SOLVERS, identical, moody_mlp, optimiser, problem
from interruptions import Answering, Remembering, World, and_again, by_line, by_signal, within

F64 = torch.float64
X = torch.randn(8, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
Y = torch.randn(8, dtype=F64, generator=torch.Generator().manual_seed(1)).sign()
LOSS = to.losses.Logistic(Y)
ANSWERING = (Answering.__call__, Remembering.query)
WANT_THE_LOSS = ("entropy", "majoriser", "proximal", "bought")
"""Rules that a bare gradient oracle does not serve."""
WANT_THE_SAME_ROWS = ("trust-region", "secant", "bundle", "automatic")
"""Rules that compare answers about the same rows; three steps on them fill what they keep."""


@dataclass
class Scene:
    """One step, to be done again and again from the same beginning."""

    world: World
    forward: Callable[[], Tensor]
    oracle: Any
    answers: list[Any] | None = None
    index: Tensor | None = None
    everything: Callable[[], Tensor] | None = None

    def __post_init__(self) -> None:
        self.step()
        self.end = self.world.seen()
        self.world.put_back()
        assert self.world.unchanged()

    def step(self, oracle: Any = None) -> to.StepReport:
        opt: Any = self.world.opt
        source = self.oracle if oracle is None else oracle
        return opt.step(self.forward, source, index=self.index, regularise_on=self.everything)

    def lines(self) -> int:
        self.world.put_back()
        return by_line(self.step, -1)[1]

    def interrupted(self, act: Callable[[], Any]) -> bool:
        """Whether ``act`` was interrupted; then the step has either not happened, or it is done."""
        self.world.put_back()
        if self.answers is not None:
            self.answers.clear()
        try:
            act()
        except KeyboardInterrupt as error:
            self._whole(error)
            return True
        return False

    def _whole(self, error: KeyboardInterrupt) -> None:
        now = self.world.seen()
        if identical(now, self.end):
            return
        torn = [name for name in now if not identical(now[name], self.world._start[name])]
        assert not torn, f"torn: {torn}, {error}"
        if self.answers and not any(within(error, f) for f in ANSWERING):
            # paid for, and not lost: the step needs no second call
            assert hasattr(error, "answer"), f"the answer is lost, {error}"
            assert "error.answer" in "".join(error.__notes__)
            self.step(error.answer)
            assert len(self.answers) == 1
            assert identical(self.world.seen(), self.end)


def classifier(rule: str, solver: str, *, labels: bool = False) -> Scene:
    """Dropout and BatchNorm, in the middle of training; probabilities for the entropic rule."""
    p = problem(rule, solver)
    opt = optimiser(p.model, rule, solver)
    repeats = rule in WANT_THE_SAME_ROWS
    rows = p.index(0 if repeats else 1)
    loss: Any = p.oracle(rows).loss  # type: ignore[attr-defined]
    if labels or rule in WANT_THE_LOSS:
        oracle: Any = Remembering(p.oracle(rows))
        answers = oracle.answers
    else:
        answering = Answering(loss)
        oracle = to.GradientOracle(
            answering, value=loss.value, curvature=loss.curvature, smoothness=loss.smoothness
        )
        answers = answering.answers
    if repeats:
        for _ in range(3):
            opt.step(lambda: p.forward(rows), oracle, index=rows)
    else:
        p.step(opt, 0)
    for parameter in p.model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)  # the user's own
    return Scene(
        World(p.model, opt),
        lambda: p.forward(rows),
        oracle,
        answers,
        index=rows,
        everything=p.wanted_by(opt),
    )


def borrowed() -> Scene:
    """Parameters and buffers that ``functional_call`` lends to a module."""
    torch.manual_seed(0)
    net = nn.Sequential(moody_mlp(), nn.Flatten(0))
    params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
    buffers = {k: v.clone() for k, v in net.named_buffers()}
    opt = to.SSO(list(params.values()), lr=0.5, inner=to.Armijo(max_steps=2))
    answering = Answering(LOSS)
    world = World(net, opt, *params.values(), *buffers.values())
    return Scene(
        world,
        lambda: functional_call(net, {**params, **buffers}, (X,)),
        to.GradientOracle(answering),
        answering.answers,
    )


def linear_model() -> Scene:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).double()
    opt = to.SSO(model.parameters(), lr=0.5, rule=to.AdaGrad(), inner=to.Armijo(max_steps=3))
    answering = Answering(LOSS)
    oracle = to.GradientOracle(answering)
    return Scene(World(model, opt), to.Linear(model, X.numpy()), oracle, answering.answers)


SCENES: dict[str, Callable[[], Scene]] = {
    **{f"rule {rule}": lambda rule=rule: classifier(rule, "gd") for rule in ALL_RULES},
    "rule automatic, labels": lambda: classifier("automatic", "lbfgs", labels=True),
    **{
        f"solver {solver}": lambda solver=solver: classifier("line-search", solver)
        for solver in SOLVERS
    },
    "functional_call": borrowed,
    "linear": linear_model,
}


@pytest.mark.parametrize("name", SCENES)
def test_some_lines_of_every_rule(name: str) -> None:
    scene = SCENES[name]()
    lines = scene.lines()
    draws = random.Random(name)
    moments = sorted(draws.sample(range(1, lines), 25)) + list(range(lines - 15, lines + 1))
    hit = sum(scene.interrupted(lambda m=m: by_line(scene.step, m)) for m in moments)
    assert hit >= 0.9 * len(moments)


def test_a_second_interrupt_while_the_first_is_dealt_with() -> None:
    scene = classifier("adagrad", "torch-adam")
    lines = scene.lines()
    draws = random.Random(0)
    for _ in range(60):
        moment, later = draws.randint(lines // 2, lines), draws.randint(1, 60)

        def twice(moment: int = moment, later: int = later) -> None:
            with and_again(later):
                by_line(scene.step, moment)

        scene.interrupted(twice)


def test_some_signals() -> None:
    scene = classifier("line-search", "armijo")
    assert some_signals(scene, tries=40, seed=0) > 5


def some_signals(scene: Scene, tries: int, seed: int) -> int:
    begin = time.perf_counter()
    for _ in range(3):
        scene.world.put_back()
        scene.step()
    usual = (time.perf_counter() - begin) / 3
    draws = random.Random(seed)
    return sum(
        scene.interrupted(lambda: by_signal(scene.step, draws.uniform(0.0, 1.1 * usual)))
        for _ in range(tries)
    )


@pytest.mark.parametrize("part", ["ask", "tell", "tell elsewhere"])
def test_ask_and_tell_are_whole_too(part: str) -> None:
    torch.manual_seed(0)
    model = moody_mlp()
    opt = to.SSO(model.parameters(), lr=0.5, inner=to.Armijo(max_steps=2))

    def forward() -> Tensor:
        return model(X)[:, 0]

    opt.step(forward, LOSS)
    if part != "ask":
        query = opt.ask(forward)

        def act() -> Any:
            told = pickle.loads(pickle.dumps(query))
            if part == "tell":  # in the process that asked
                told.live = copy.copy(query.live)
            z = told.targets
            return opt.tell(told, forward, LOSS.value(z), LOSS.gradient(z))
    else:

        def act() -> Any:
            return opt.ask(forward)

    world = World(model, opt)
    act()
    end = world.seen()
    world.put_back()
    _, lines = by_line(act, -1)
    draws = random.Random(part)
    for moment in sorted(draws.sample(range(1, lines), 40)) + list(range(lines - 10, lines)):
        world.put_back()
        with pytest.raises(KeyboardInterrupt):
            by_line(act, moment)
        assert world.unchanged() or identical(world.seen(), end)


@pytest.mark.parametrize("kind", ["SLS", "SVRG", "AdaGradNorm"])
def test_baselines_are_whole_too(kind: str) -> None:
    torch.manual_seed(0)
    model = moody_mlp()

    def closure() -> Tensor:
        return LOSS.value(model(X)[:, 0]).mean()

    if kind == "SLS":
        opt: Any = to.baselines.SLS(model.parameters(), lr=8.0)
    elif kind == "SVRG":
        opt = to.baselines.SVRG(model.parameters(), lr=0.1)
        opt.snapshot(closure)
    else:
        opt = to.baselines.AdaGradNorm(model.parameters(), lr=0.1)
        closure().backward()
    given = () if kind == "AdaGradNorm" else (closure,)
    opt.step(*given)
    world = World(model, opt)
    opt.step(*given)
    end = world.seen()
    world.put_back()
    _, lines = by_line(lambda: opt.step(*given), -1)
    draws = random.Random(kind)
    moments = set(draws.sample(range(1, lines), min(40, lines - 1))) | set(range(lines - 10, lines))
    for moment in sorted(moments):
        world.put_back()
        with pytest.raises(KeyboardInterrupt):
            by_line(lambda: opt.step(*given), moment)
        assert world.unchanged() or identical(world.seen(), end)


def test_an_interrupt_after_the_step_says_so() -> None:
    scene = classifier("gradient", "armijo")
    lines = scene.lines()
    done = []
    for moment in range(lines - 60, lines + 1):
        scene.world.put_back()
        with contextlib.suppress(KeyboardInterrupt):
            try:
                by_line(scene.step, moment)
            except KeyboardInterrupt as error:
                if identical(scene.world.seen(), scene.end) and hasattr(error, "report"):
                    done.append(error)
                raise
    assert done
    assert all(error.report.step == 2 and not hasattr(error, "answer") for error in done)


def test_an_interrupt_just_before_the_point_of_no_return_has_the_answer_and_no_report() -> None:
    scene = classifier("gradient", "gd")
    own: list[int] = []
    by_line(scene.step, -1, own)
    missed = 0
    for moment in own[-25:]:
        scene.world.put_back()
        with pytest.raises(KeyboardInterrupt) as stopped:
            by_line(scene.step, moment)
        done = identical(scene.world.seen(), scene.end)
        missed += not done
        assert hasattr(stopped.value, "answer") is not done
        assert hasattr(stopped.value, "report") <= done
    assert 0 < missed < 25


def test_the_answer_of_a_step_that_failed_is_handed_back() -> None:
    torch.manual_seed(0)
    model, asked = moody_mlp(), []

    def simulator(z: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(z.clone())
        return LOSS.value(z), LOSS.gradient(z)

    opt = to.SSO(model.parameters(), lr=0.5, inner=to.GradientDescent(step_size=1e200, max_steps=3))

    def forward() -> Tensor:
        return model(X)[:, 0]

    with pytest.raises(to.Diverged) as failed:
        opt.step(forward, to.GradientOracle(simulator))
    opt.inner = to.Armijo(max_steps=3)
    report = opt.step(forward, failed.value.answer)
    assert (report.step, report.oracle_calls, len(asked)) == (1, 1, 1)
    with pytest.raises(to.BadAnswer, match=r"belongs to other targets: 8 of 8 rows differ"):
        opt.step(forward, failed.value.answer)
    with pytest.raises(to.BadAnswer, match=r"targets of shape \(8,\); the forward gives \(4,\)"):
        opt.step(lambda: forward()[:4], failed.value.answer)


def evenly(lines: Sequence[int], number: int) -> Sequence[int]:
    number = min(number, len(lines))
    return [lines[i * len(lines) // number] for i in range(number)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.timeout(3600)
def test_many_lines(name: str) -> None:
    scene = SCENES[name]()
    own: list[int] = []
    scene.world.put_back()
    _, lines = by_line(scene.step, -1, own)
    if os.environ.get("TARGETOPT_INTERRUPTS") == "every":
        moments = list(range(1, lines + 1))
    else:  # the last ones of this package are around the point of no return
        moments = sorted({*evenly(own, 350), *evenly(range(1, lines + 1), 150), *own[-60:]})
    hit = sum(scene.interrupted(lambda m=m: by_line(scene.step, m)) for m in moments)
    print(f"\n{name}: {hit} interrupts at {len(moments)} of {lines} lines, none torn")
    assert hit >= 0.9 * len(moments)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.timeout(3600)
def test_many_signals(rule: str) -> None:
    hit = some_signals(classifier(rule, "armijo"), tries=1000, seed=1)
    print(f"\n{rule}: {hit} signals, none torn")
    assert hit > 200
