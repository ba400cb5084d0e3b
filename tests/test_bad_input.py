"""Bad input gives an error that says what, which value, why and the fix, and changes nothing.

One table. For each row the optimiser has run before, so there is state to spoil; afterwards the
model, its buffers, the optimiser and torch's generator must be bit-identical, and the run must go on
as if nothing had happened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import targetopt as to
from core_parts import fingerprint, identical
from spoiled_steps import (
    Run,
    answers,
    by_grad_scaler,
    entropy_of_logits,
    inside_autocast,
    of_another_model,
    on_call,
    raising,
    spoiled_rows,
    step,
    with_group,
    with_newton,
    with_part,
    with_rule,
    with_unknown_smoothness,
)
from targetopt.inner import Objective

TEACHER = nn.Linear(1, 1).double()


class Claims:
    """An oracle that says odd things beside its losses and gradients."""

    def __init__(self, smoothness: Any, **more: Any) -> None:
        self.more = {"smoothness": smoothness, **more}

    def query(self, z: Tensor) -> to.TargetPoint:
        return to.TargetPoint(z, z.square() / 2, z, **self.more)


@dataclass(frozen=True)
class Needy(to.GradientStep):
    needs: ClassVar[frozenset[str]] = frozenset({"third_derivative"})


class Lost(to.Armijo):
    def minimise(self, objective: Objective, state: dict[str, Any]) -> to.InnerResult:
        return to.InnerResult(1, float("inf"), "max-steps")


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
    "oracle is a number": (
        step(oracle=lambda run: 3),
        to.BadArgument,
        "oracle=3 must have query.*to.losses.Logistic",
    ),
    "oracle is a class of losses": (
        step(oracle=lambda run: to.losses.Squared),
        to.BadArgument,
        r"oracle=.*Squared.*is a class without labels.*Squared\(y\)",
    ),
    "smoothness negative": (
        step(oracle=lambda run: Claims(-1.0)),
        to.BadAnswer,
        "smoothness=-1.0 must be positive and finite.*None",
    ),
    "smoothness nought": (step(oracle=lambda run: Claims(0)), to.BadAnswer, "smoothness=0 must be"),
    "smoothness nan": (
        step(oracle=lambda run: Claims(float("nan"))),
        to.BadAnswer,
        "smoothness=nan must be",
    ),
    "smoothness a word": (
        step(oracle=lambda run: Claims("large")),
        to.BadAnswer,
        "smoothness='large' must be",
    ),
    "value no function": (
        step(oracle=lambda run: Claims(None, value=3.0)),
        to.BadAnswer,
        "value=3.0 must be a function",
    ),
    "curvature no function": (
        step(oracle=lambda run: Claims(None, curvature=torch.ones(10))),
        to.BadAnswer,
        "curvature=.*must be a function",
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
    "all data no function": (
        step(regularise_on=torch.ones(5)),
        to.BadArgument,
        "regularise_on=Tensor must be a function without arguments",
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
        with_unknown_smoothness,
        to.MissingCapability,
        r"lr=None means 1/\(2L\).*does not say its smoothness.*Pass lr=.*LineSearch",
    ),
    "entropy of one number": (
        with_part(rule=to.MirrorDescent(to.NegativeEntropy())),
        to.BadForward,
        r"probabilities, between 0 and 1; row \d is .*sigmoid",
    ),
    "entropy of logits": (
        entropy_of_logits,
        to.BadForward,
        "probabilities, rows ≥ 0 with sum 1; row 0 has smallest entry.*softmax",
    ),
    "rule's table and q̃": (
        lambda run: with_rule(run, to.AdaGrad(), run.oracle, regularise_on=run.forward),
        to.MissingCapability,
        "regularise_on= needs.*Use GradientStep",
    ),
    "a rule with a need of its own": (
        lambda run: with_rule(run, Needy(), run.oracle),
        to.MissingCapability,
        "Needy needs the oracle's third_derivative. This oracle offers none",
    ),
    "Armijo blows up": (
        with_part(inner=Lost()),
        to.Diverged,
        r"Lost left the finite numbers.*put back\. Lower lr, or use LBFGS\.$",
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
@pytest.mark.product(3, each=1)
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


def told(run: Run, query: to.Query, **changes: Any) -> to.StepReport:
    z = query.targets
    given = {"losses": (z - run.y).square() / 2, "gradients": z - run.y, **changes}
    return run.opt.tell(query, run.forward, **given)


TOLD: dict[str, tuple[dict[str, Any], type[BaseException], str]] = {
    "no losses": ({"losses": None}, to.BadAnswer, "losses must be a tensor.*got NoneType"),
    "ragged losses": ({"losses": [[1.0], [2.0, 3.0]]}, to.BadAnswer, "losses must be.*got list"),
    "no gradients": ({"gradients": None}, to.BadAnswer, "gradients must be.*got NoneType"),
    "curvature a word": ({"curvature": "one"}, to.BadAnswer, "curvature must be.*got str"),
    "value no function": ({"value": 1.0}, to.BadAnswer, "value=1.0 must be a function"),
    "smoothness negative": ({"smoothness": -1}, to.BadAnswer, "smoothness=-1 must be positive"),
    "smoothness nought": ({"smoothness": 0.0}, to.BadAnswer, "smoothness=0.0 must be positive"),
    "smoothness nan": ({"smoothness": float("nan")}, to.BadAnswer, "smoothness=nan must be"),
    "all data in tell alone": (
        {"regularise_on": lambda: torch.ones(3, dtype=torch.float64)},
        to.BadArgument,
        "regularise_on= was not given to ask",
    ),
    "all data no function": (
        {"regularise_on": 3},
        to.BadArgument,
        "regularise_on=int must be a function",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_a_bad_answer_to_tell_changes_nothing(case: str) -> None:
    changes, error, words = TOLD[case]
    run = Run(to.GradientStep(), to.Armijo(max_steps=3))
    query = run.opt.ask(run.forward)
    before = fingerprint(run.model, run.opt)
    with pytest.raises(error) as caught:
        told(run, query, **changes)
    assert re.search(words, str(caught.value), re.DOTALL), str(caught.value)
    assert identical(fingerprint(run.model, run.opt), before)
    assert told(run, query).step == 3


def test_all_data_forgotten_in_tell_are_missed() -> None:
    run = Run(to.GradientStep(), to.Armijo(max_steps=3))
    query = run.opt.ask(run.forward, regularise_on=run.forward)
    before = fingerprint(run.model, run.opt)
    with pytest.raises(to.BadArgument, match=r"regularise_on= was given to ask.*tell too"):
        told(run, query)
    with pytest.raises(to.BadArgument, match=r"query=Tensor must be what opt\.ask returned"):
        run.opt.tell(query.targets, run.forward, query.targets, query.targets)
    assert identical(fingerprint(run.model, run.opt), before)
    assert told(run, query, regularise_on=run.forward).step == 3


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
