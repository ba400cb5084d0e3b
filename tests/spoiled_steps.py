"""A run in mid-training and ways to spoil its next step: what `test_bad_input`'s table is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

import targetopt as to
from core_parts import moody_mlp

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


def with_rule(run: Run, rule: to.Rule, oracle: Any, **options: Any) -> None:
    kept, run.opt.rule = run.opt.rule, rule
    state = run.opt._progress
    run.opt._progress = replace(state, rule_state={})
    try:
        run.opt.step(run.forward, oracle, **options)
    finally:
        run.opt.rule, run.opt._progress = kept, state


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
