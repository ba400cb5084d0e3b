"""A part with a value it cannot have is refused where it is made, with the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import targetopt as to

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
    "history": (lambda: to.LBFGS(history=0), "LBFGS: history=0 must be a whole number ≥ 1"),
    "damping": (lambda: to.GaussNewton(initial_damping=0.0), "initial_damping=0.0"),
    "factory": (lambda: to.Torch("Adam"), "factory='Adam' must be a function"),
    "tolerance": (lambda: to.Stopping(gradient_tolerance=-1.0), "gradient_tolerance=-1.0"),
    "tolerance nan": (lambda: to.Stopping(relative_decrease=float("nan")), "relative_decrease=nan"),
    "floor": (lambda: to.Newton(floor=0.0), "floor=0.0 must be positive"),
    "eps": (lambda: to.AdaGrad(eps=0.0), "eps=0.0 must be positive"),
    "b0": (lambda: to.AdaGradNorm(initial=-1.0), "initial=-1.0 must be ≥ 0"),
    "grow": (lambda: to.LineSearch(grow=0.5), "shrink < 1 ≤ grow.*grow=0.5"),
    "complex": (
        lambda: to.SSO([torch.zeros(2, dtype=torch.complex64, requires_grad=True)]),
        r"SSO: parameters must be real.*complex64 of shape \(2,\).*view_as_real",
    ),
    "history of halves": (lambda: to.LBFGS(history=2.5), "history=2.5 must be a whole number"),
    "trials": (lambda: to.Armijo(max_backtracks=1.5), "max_backtracks=1.5 must be a whole number"),
    "CG steps": (lambda: to.GaussNewton(cg_steps=0), "GaussNewton: cg_steps=0 must be a whole"),
    "LineSearch's trials": (
        lambda: to.LineSearch(max_backtracks=-1),
        "LineSearch: max_backtracks=-1 must be a whole number ≥ 0",
    ),
    "divergence a class": (
        lambda: to.MirrorDescent(to.NegativeEntropy),
        r"MirrorDescent: divergence=.*NegativeEntropy.*with its parentheses",
    ),
    "divergence a word": (lambda: to.MirrorDescent("kl"), "MirrorDescent: divergence='kl' must be"),
    **{
        f"stopping of {part.__name__}": (
            partial(part, **{**needed, "stopping": 1e-6}),
            rf"{part.__name__}: stopping=1e-06 must be.*Stopping\(gradient_tolerance=",
        )
        for part, needed in {
            to.Armijo: {},
            to.LBFGS: {},
            to.GaussNewton: {},
            to.GradientDescent: {"step_size": 1.0},
            to.Torch: {"factory": torch.optim.SGD},
        }.items()
    },
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


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    """They are kept as Python's, so that state and reports hold plain numbers."""
    four = np.int64(4)
    parts = [
        (to.Armijo(max_steps=four, max_backtracks=four), ["max_steps", "max_backtracks"]),
        (to.LBFGS(four, four, four), ["max_steps", "history", "max_backtracks"]),
        (
            to.GaussNewton(four, four, max_backtracks=four),
            ["max_steps", "cg_steps", "max_backtracks"],
        ),
        (to.GradientDescent(0.1, four), ["max_steps"]),
        (to.Torch(torch.optim.SGD, four), ["max_steps"]),
        (to.LineSearch(max_backtracks=four), ["max_backtracks"]),
    ]
    for part, names in parts:
        for name in names:
            assert type(getattr(part, name)) is int
            assert getattr(part, name) == 4
    rival = to.baselines.SLS([W], batches_per_epoch=four, max_backtracks=four)
    for name in ("batches_per_epoch", "max_backtracks"):
        assert type(rival.param_groups[0][name]) is int


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
