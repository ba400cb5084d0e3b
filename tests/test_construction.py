"""A part with a value it cannot have is refused where it is made, with the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
