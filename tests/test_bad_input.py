"""Bad input gives an error that says what, which value, why and the fix, and changes nothing.

One table. For each row the optimiser has run before, so there is state to spoil; afterwards the
model, its buffers, the optimiser and torch's generator must be bit-identical, and the run must go on
as if nothing had happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from core_parts import fingerprint, identical, moody_mlp

ROWS = 10


@dataclass
class Run:
    """A model with dropout and BatchNorm in mid-training, ten examples, two good steps behind it."""

    rule: to.Rule
    inner: to.Inner
    model: nn.Module = field(init=False)
    opt: to.SSO = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        data = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 4, dtype=torch.float64, generator=data)
        self.y = torch.randn(ROWS, dtype=torch.float64, generator=data)
        self.model = moody_mlp()
        self.opt = to.SSO(self.model.parameters(), lr=0.5, rule=self.rule, inner=self.inner)
        self.good_steps(2)

    def forward(self) -> Tensor:
        return self.model(self.x)[:, 0]

    @property
    def oracle(self) -> to.LossOracle:
        return to.LossOracle(to.losses.Squared(self.y))

    def good_steps(self, count: int) -> list[to.StepReport]:
        return [self.opt.step(self.forward, self.oracle) for _ in range(count)]


def spoiled_rows(losses: float = 0.0, gradients: float = 0.0) -> to.GradientOracle:
    def query(z: Tensor) -> tuple[Tensor, Tensor]:
        bad = torch.zeros(ROWS, dtype=z.dtype)
        bad[[3, 7]] = 1.0
        return z.square() / 2 + torch.where(bad > 0, losses, 0.0), z + torch.where(
            bad > 0, gradients, 0.0
        )

    return to.GradientOracle(query)


def answers(losses: Any, gradients: Any) -> to.GradientOracle:
    return to.GradientOracle(lambda z: (losses, gradients))


def on_call(number: int, run: Run, action: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """The run's forward; its ``number``-th call has something done to its targets."""
    calls = 0

    def forward() -> Tensor:
        nonlocal calls
        calls += 1
        z = run.forward()
        return action(z) if calls == number else z

    return forward


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_args: object) -> Any:
        raise error

    return fail


def step(
    forward: Callable[[Run], Callable[[], Any]] = lambda run: run.forward,
    oracle: Callable[[Run], Any] = lambda run: run.oracle,
    **options: Any,
) -> Callable[[Run], Any]:
    return lambda run: run.opt.step(forward(run), oracle(run), **options)


def with_group(**values: Any) -> Callable[[Run], Any]:
    """A step with other values in the parameter group, which are put back after."""

    def act(run: Run) -> None:
        group = run.opt.param_groups[0]
        kept = {name: group[name] for name in values}
        group.update(values)
        try:
            run.good_steps(1)
        finally:
            group.update(kept)

    return act


def with_part(**parts: Any) -> Callable[[Run], Any]:
    """A step with another rule, inner solver or schedule."""

    def act(run: Run) -> None:
        kept = {name: getattr(run.opt, name) for name in parts}
        for name, part in parts.items():
            setattr(run.opt, name, part)
        try:
            run.good_steps(1)
        finally:
            for name, part in kept.items():
                setattr(run.opt, name, part)

    return act


def by_grad_scaler(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.step(run.opt, run.forward, run.oracle)


def inside_autocast(run: Run) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run.good_steps(1)


def of_another_model(run: Run) -> Callable[[], Tensor]:
    with torch.random.fork_rng():
        other = moody_mlp()
    return lambda: other(run.x)[:, 0]


TEACHER = nn.Linear(1, 1).double()

CASES: dict[str, tuple[Callable[[Run], Any], type[BaseException], str]] = {
    # the oracle
    "oracle raises": (
        step(oracle=lambda run: raising(OSError("no network"))),
        OSError,
        "no network",
    ),
    "oracle interrupted": (
        step(oracle=lambda run: raising(KeyboardInterrupt())),
        KeyboardInterrupt,
        "",
    ),
    "losses nan": (
        step(oracle=lambda run: spoiled_rows(losses=torch.nan)),
        to.BadAnswer,
        r"not finite in 2 of 10 rows: 3, 7\..*repair",
    ),
    "gradients inf": (
        step(oracle=lambda run: spoiled_rows(gradients=torch.inf)),
        to.BadAnswer,
        r"not finite in 2 of 10 rows: 3, 7\..*repair",
    ),
    "losses of wrong shape": (
        step(oracle=lambda run: lambda z: torch.stack([z, z], dim=1)),
        to.BadAnswer,
        r"one loss per example, shape \(10,\); got \(10, 2\)\. Sum over the outputs",
    ),
    "scalar loss": (
        step(oracle=lambda run: lambda z: z.square().mean()),
        to.BadAnswer,
        r"one loss per example, shape \(10,\); got \(\)\..*reduction='none'",
    ),
    "gradients of wrong shape": (
        step(oracle=lambda run: answers(torch.zeros(10), torch.zeros(10, 1))),
        to.BadAnswer,
        r"gradients must be shaped like the targets, \(10,\); got \(10, 1\)",
    ),
    "oracle loses the graph": (
        step(oracle=lambda run: lambda z: z.detach().square()),
        to.BadAnswer,
        r"do not depend on the targets.*Remove detach\(\).*GradientOracle",
    ),
    "oracle's own network hides the lost graph": (
        step(oracle=lambda run: lambda z: TEACHER(z.detach().unsqueeze(1))[:, 0]),
        to.BadAnswer,
        r"do not depend on the targets.*Remove detach\(\)",
    ),
    "oracle returns nothing": (
        step(oracle=lambda run: lambda z: None),
        to.BadAnswer,
        r"must be a tensor of shape \(10,\); got NoneType",
    ),
    "black box returns one thing": (
        step(oracle=lambda run: to.GradientOracle(lambda z: z)),
        to.BadAnswer,
        r"must return \(losses, gradients\); got Tensor",
    ),
    "black box returns no numbers": (
        step(oracle=lambda run: answers(torch.zeros(10), None)),
        to.BadAnswer,
        "tensor, an array or a list of numbers; got NoneType",
    ),
    "query returns no TargetPoint": (
        step(oracle=lambda run: type("Tuple", (), {"query": lambda self, z: (z, z)})()),
        to.BadAnswer,
        "must return a TargetPoint; got tuple.*GradientOracle",
    ),
    "oracle is a loss": (
        step(oracle=lambda run: to.losses.Squared(run.y)),
        to.BadArgument,
        "oracle=.*Squared.*must have query.*LossOracle",
    ),
    "labels of another batch": (
        step(oracle=lambda run: to.LossOracle(to.losses.Squared(run.y[:9]))),
        to.BadArgument,
        r"targets have shape \(10,\), labels \(9,\)",
    ),
    # the forward
    "forward is the targets": (
        step(forward=lambda run: run.x),
        to.BadArgument,
        r"forward=Tensor must be a function.*lambda: model\(x\)",
    ),
    "forward raises": (
        step(forward=lambda run: on_call(1, run, raising(OSError("disk")))),
        OSError,
        "disk",
    ),
    "forward raises in the inner loop": (
        step(forward=lambda run: on_call(3, run, raising(OSError("disk")))),
        OSError,
        "disk",
    ),
    "inner loop interrupted": (
        step(forward=lambda run: on_call(3, run, raising(KeyboardInterrupt()))),
        KeyboardInterrupt,
        "",
    ),
    "forward changes shape at once": (
        step(forward=lambda run: on_call(2, run, lambda z: z[:9])),
        to.BadForward,
        r"returned shape \(9,\); the oracle was asked about \(10,\).*fix the batch outside",
    ),
    "forward changes shape in the inner loop": (
        step(forward=lambda run: on_call(4, run, lambda z: z.unsqueeze(1))),
        to.BadForward,
        r"returned shape \(10, 1\); the oracle was asked about \(10,\)",
    ),
    "forward returns integers": (
        step(forward=lambda run: lambda: run.forward().round().long()),
        to.BadForward,
        "floating-point targets; got torch.int64. Return the logits",
    ),
    "forward returns the loss": (
        step(forward=lambda run: lambda: run.forward().square().mean()),
        to.BadForward,
        "one row of targets per example; it returned a single number.*loss belongs in the oracle",
    ),
    "forward returns a tuple": (
        step(forward=lambda run: lambda: (run.forward(), None)),
        to.BadForward,
        "must return a tensor of targets; it returned tuple",
    ),
    "forward detaches": (
        step(forward=lambda run: lambda: run.forward().detach()),
        to.BadForward,
        r"do not depend on the parameters through autograd.*Remove detach\(\)",
    ),
    "forward of another model": (
        step(forward=of_another_model),
        to.BadForward,
        "do not depend on the parameters.*give SSO the parameters it uses",
    ),
    "forward diverged": (
        step(forward=lambda run: lambda: run.forward() / 0.0),
        to.BadForward,
        "not finite: the model has diverged, or its input.*Nothing was asked",
    ),
    "forward of no rows": (
        step(forward=lambda run: lambda: run.forward()[:0]),
        to.BadForward,
        "no rows: the batch is empty",
    ),
    # what goes with the batch
    "index of floats": (
        step(index=torch.arange(10.0)),
        to.BadArgument,
        r"index= must be one whole number per example, shape \(10,\).*got torch.float32",
    ),
    "index too short": (
        step(index=torch.arange(9)),
        to.BadArgument,
        r"index= must be one whole number per example, shape \(10,\).*shape \(9,\)",
    ),
    "index negative": (
        step(index=torch.arange(10) - 1),
        to.BadArgument,
        "negative row, -1; rows count from 0",
    ),
    "all data of another shape": (
        step(regularise_on=lambda: TEACHER(torch.ones(5, 1, dtype=torch.float64))),
        to.BadForward,
        r"regularise_on\(\) must give targets like forward\(\)'s.*\(5, 1\).*\(10,\)",
    ),
    # the numbers
    "lr negative": (with_group(lr=-0.5), to.BadArgument, "lr=-0.5 must be positive.*None for 1/"),
    "lr nan": (with_group(lr=float("nan")), to.BadArgument, "lr=nan must be positive and finite"),
    "weight decay negative": (
        with_group(weight_decay=-1.0),
        to.BadArgument,
        "weight_decay=-1.0 must be ≥ 0 and finite",
    ),
    "schedule gives nan": (
        with_part(schedule=lambda t: float("nan")),
        to.BadArgument,
        "schedule=.*gave nan at t = 3.*must be ≥ 0",
    ),
    "schedule raises": (with_part(schedule=raising(OSError("table"))), OSError, "table"),
    # the parts
    "Newton without curvature": (
        lambda run: with_newton(run, to.GradientOracle(lambda z: (z.square() / 2, z))),
        to.MissingCapability,
        "Newton needs the oracle's curvature.*offers none.*GradientStep or AdaGrad",
    ),
    "curvature nan": (
        lambda run: with_newton(
            run,
            to.GradientOracle(lambda z: (z.square() / 2, z), curvature=lambda z: z * torch.nan),
        ),
        to.BadAnswer,
        "curvature has entries that are not finite",
    ),
    "curvature of wrong shape": (
        lambda run: with_newton(
            run, to.GradientOracle(lambda z: (z.square() / 2, z), curvature=lambda z: [1.0])
        ),
        to.BadAnswer,
        r"curvature has shape \(1,\); targets of shape \(10,\) need",
    ),
    "LineSearch without value": (
        lambda run: with_rule(run, to.LineSearch(), answers(torch.zeros(10), torch.ones(10))),
        to.MissingCapability,
        "LineSearch needs the oracle's value.*offers none.*value=",
    ),
    "value raises": (
        lambda run: with_rule(
            run,
            to.LineSearch(),
            to.GradientOracle(lambda z: (z, z), value=raising(OSError("simulator"))),
        ),
        OSError,
        "simulator",
    ),
    "value of wrong shape": (
        lambda run: with_rule(
            run, to.LineSearch(), to.GradientOracle(lambda z: (z, z), value=lambda z: z.sum())
        ),
        to.BadAnswer,
        r"shape \(10,\); got \(\)",
    ),
    "unknown smoothness": (
        lambda run: with_unknown_smoothness(run),
        to.MissingCapability,
        r"lr=None means 1/\(2L\).*does not say its smoothness.*Pass lr=.*LineSearch",
    ),
    "entropy of one number": (
        with_part(rule=to.MirrorDescent(to.NegativeEntropy())),
        to.BadForward,
        r"probabilities of shape \(n, k\); the forward gives \(10,\).*softmax",
    ),
    "entropy of logits": (
        lambda run: entropy_of_logits(run),
        to.BadForward,
        "probabilities, rows ≥ 0 with sum 1; row 0 has smallest entry.*softmax",
    ),
    "rule's table and q̃": (
        lambda run: with_rule(run, to.AdaGrad(), run.oracle, regularise_on=run.forward),
        to.MissingCapability,
        "regularise_on= needs.*Use GradientStep",
    ),
    "inner solver blows up": (
        with_part(inner=to.GradientDescent(step_size=1e200, max_steps=4)),
        to.Diverged,
        "GradientDescent left the finite numbers.*put back.*Lower its step size.*Armijo",
    ),
    "Exact on a network": (
        with_part(inner=to.Exact()),
        to.BadForward,
        "Exact needs a forward that is linear.*Use LBFGS or GaussNewton",
    ),
    "factory returns no optimiser": (
        with_part(inner=to.Torch(lambda params: params)),
        to.BadArgument,
        "factory must return a torch.optim.Optimizer; it returned list",
    ),
    # torch's habits
    "step()": (lambda run: run.opt.step(), to.BadArgument, "needs the forward and the oracle"),
    "step(closure)": (
        lambda run: run.opt.step(lambda: run.forward().square().mean()),
        to.BadArgument,
        "needs the forward and the oracle.*closure.*Split it",
    ),
    "GradScaler": (by_grad_scaler, to.BadArgument, "GradScaler.*autocast.*inside forward"),
    "autocast": (inside_autocast, to.BadArgument, "autocast.*Put it inside forward"),
    "a second group": (
        lambda run: run.opt.add_param_group({"params": [torch.zeros(2, requires_grad=True)]}),
        to.BadArgument,
        "one parameter group.*Pass all parameters in one list",
    ),
}


def with_rule(run: Run, rule: to.Rule, oracle: Any, **options: Any) -> None:
    kept, run.opt.rule = run.opt.rule, rule
    state, run.opt._rule_state = run.opt._rule_state, {}
    try:
        run.opt.step(run.forward, oracle, **options)
    finally:
        run.opt.rule, run.opt._rule_state = kept, state


def with_newton(run: Run, oracle: Any) -> None:
    with_rule(run, to.Newton(), oracle)


def with_unknown_smoothness(run: Run) -> None:
    run.opt.param_groups[0]["lr"] = None
    try:
        with_rule(run, to.GradientStep(), lambda z: z**4)
    finally:
        run.opt.param_groups[0]["lr"] = 0.5


def entropy_of_logits(run: Run) -> None:
    kept, run.opt.rule = run.opt.rule, to.MirrorDescent(to.NegativeEntropy())
    try:
        run.opt.step(lambda: torch.stack([run.forward()] * 3, dim=1), lambda z: z.sum(dim=1))
    finally:
        run.opt.rule = kept


PARTS = {
    "adagrad-adam": (to.AdaGrad(), to.Torch(partial(torch.optim.Adam, lr=0.01), max_steps=8)),
    "ftrl-armijo": (to.FTRL(), to.Armijo(max_steps=8, initial_step=0.1)),
    "gradient-lbfgs": (to.GradientStep(), to.LBFGS(max_steps=8)),
    "gradient-gauss-newton": (to.GradientStep(), to.GaussNewton(max_steps=8)),
    "gradient-gd": (to.GradientStep(), to.GradientDescent(step_size=0.01, max_steps=8)),
}
STATEFUL = ["adagrad-adam", "ftrl-armijo"]
IN_THE_INNER_LOOP = [
    "forward raises in the inner loop",
    "inner loop interrupted",
    "forward changes shape at once",
    "forward changes shape in the inner loop",
    "forward of another model",
]
TABLE = [(case, parts) for case in CASES for parts in STATEFUL]
TABLE += [(case, parts) for case in IN_THE_INNER_LOOP for parts in PARTS if parts not in STATEFUL]


@pytest.mark.parametrize(("case", "parts"), TABLE)
def test_an_error_says_what_to_do_and_changes_nothing(case: str, parts: str) -> None:
    act, error, words = CASES[case]
    run = Run(*PARTS[parts])
    for p in run.model.parameters():
        p.grad = torch.full_like(p, 3.0)  # the user's own
    before = fingerprint(run.model, run.opt)
    with pytest.raises(error) as caught:
        act(run)
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
    assert identical(fingerprint(run.model, run.opt), before)
    reports = run.good_steps(1)
    assert Run(*PARTS[parts]).good_steps(1) == reports


@pytest.mark.parametrize("rule", [to.AdaGrad(), to.FTRL()])
def test_a_short_batch_without_its_rows_is_refused(rule: to.Rule) -> None:
    run = Run(rule, to.Armijo(max_steps=2))
    before = fingerprint(run.model, run.opt)
    with pytest.raises(to.BadArgument, match=r"had 10 examples before and has 9 now\. Pass index="):
        run.opt.step(lambda: run.forward()[:9], lambda z: z.square())
    with pytest.raises(
        to.BadArgument, match=r"memory holds rows of shape \(\), the targets have \(2,\)"
    ):
        run.opt.step(lambda: run.forward().reshape(5, 2), lambda z: z.square().sum(dim=1))
    assert identical(fingerprint(run.model, run.opt), before)


W = torch.zeros(2, requires_grad=True)

CONSTRUCTION: dict[str, tuple[Callable[[], Any], str]] = {
    "no params": (lambda: to.SSO([]), "params is empty.*model.parameters"),
    "a used generator": (lambda: to.SSO(iter(())), "params is empty.*generator was used"),
    "one tensor": (lambda: to.SSO(W), r"one tensor of shape \(2,\); pass a list"),
    "two groups": (
        lambda: to.SSO([{"params": [W]}, {"params": [W.detach().requires_grad_()]}]),
        "one parameter group",
    ),
    "lr 0": (lambda: to.SSO([W], lr=0.0), "lr=0.0 must be positive"),
    "lr negative": (lambda: to.SSO([W], lr=-1.0), "lr=-1.0 must be positive and finite: it is η"),
    "lr nan": (lambda: to.SSO([W], lr=float("nan")), "lr=nan must be positive"),
    "lr inf": (lambda: to.SSO([W], lr=float("inf")), "lr=inf must be positive and finite"),
    "lr a word": (lambda: to.SSO([W], lr="0.1"), "lr='0.1' must be positive"),
    "lr a vector": (lambda: to.SSO([W], lr=torch.ones(2)), "lr=tensor.*must be positive"),
    "weight decay": (lambda: to.SSO([W], weight_decay=-0.1), "weight_decay=-0.1 must be ≥ 0"),
    "weight decay nan": (lambda: to.SSO([W], weight_decay=float("nan")), "weight_decay=nan"),
    "rule a class": (lambda: to.SSO([W], rule=to.Newton), "rule=.*with its parentheses"),
    "inner a torch class": (
        lambda: to.SSO([W], inner=torch.optim.Adam),
        r"inner=.*to.Armijo.*wrapped as to.Torch\(factory\)",
    ),
    "schedule a number": (lambda: to.SSO([W], schedule=0.9), "schedule=0.9 must be callable"),
    "no steps": (lambda: to.Armijo(max_steps=0), "Armijo: max_steps=0 must be a whole number ≥ 1"),
    "half a step": (lambda: to.LBFGS(max_steps=1.5), "LBFGS: max_steps=1.5 must be a whole"),
    "true steps": (lambda: to.GaussNewton(max_steps=True), "GaussNewton: max_steps=True"),
    "Armijo's c": (lambda: to.Armijo(c=1.0), "0 < c < 1.*c=1.0"),
    "Armijo's start": (lambda: to.Armijo(initial_step=0.0), "initial_step=0.0"),
    "step size": (
        lambda: to.GradientDescent(step_size=-1.0),
        r"step_size=-1.0 must be positive.*Armijo\(\) finds it",
    ),
    "history": (lambda: to.LBFGS(history=0), "history ≥ 1.*history=0"),
    "damping": (lambda: to.GaussNewton(initial_damping=0.0), "initial_damping=0.0"),
    "factory": (lambda: to.Torch("Adam"), "factory='Adam' must be a function"),
    "tolerance": (lambda: to.Stopping(gradient_tolerance=-1.0), "gradient_tolerance=-1.0"),
    "tolerance nan": (lambda: to.Stopping(relative_decrease=float("nan")), "relative_decrease=nan"),
    "floor": (lambda: to.Newton(floor=0.0), "floor=0.0 must be positive"),
    "eps": (lambda: to.AdaGrad(eps=0.0), "eps=0.0 must be positive"),
    "b0": (lambda: to.AdaGradNorm(initial=-1.0), "initial=-1.0 must be ≥ 0"),
    "grow": (lambda: to.LineSearch(grow=0.5), "shrink < 1 ≤ grow.*grow=0.5"),
    "T": (lambda: to.schedules.exponential(0), "total_steps=0 must be at least 1"),
    "beta": (lambda: to.schedules.exponential(10, beta=11.0), "beta=11.0 must lie in"),
    "no loss": (lambda: to.LossOracle(3), "loss=3 must be a targetopt loss or a function"),
    "no function": (lambda: to.GradientOracle(3), "function=3 must be callable"),
    "L": (lambda: to.GradientOracle(print, smoothness=-1.0), "smoothness=-1.0 must be positive"),
}


@pytest.mark.parametrize("case", CONSTRUCTION)
def test_a_part_is_refused_where_it_is_made(case: str) -> None:
    make, words = CONSTRUCTION[case]
    with pytest.raises(to.BadArgument) as caught:
        make()
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)


def test_all_errors_have_one_base_and_a_builtin_one() -> None:
    """``except ValueError`` and ``except to.TargetoptError`` both work."""
    for error, builtin in [
        (to.BadArgument, ValueError),
        (to.BadAnswer, ValueError),
        (to.BadForward, RuntimeError),
        (to.MissingCapability, TypeError),
        (to.Diverged, ArithmeticError),
    ]:
        assert issubclass(error, to.TargetoptError)
        assert issubclass(error, builtin)
