"""Target-space rules in kernels: each is registered for exactly its own class.

A rule's kernel fills ``metric`` with W and the point's ``slope`` with the surrogate's gradient at z, and returns how
many losses the surrogate sums; 0 means that nothing is to move. It gets a `Point`, its own `RuleSpec` and
the run's `State`, in which it may keep a number and a table with a column per data row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from targetopt.linear.kernels import losses
from targetopt.linear.kernels.arguments import (
    RULE_NUMBER,
    STARTS,
    SUMS,
    TIMES_SEEN,
    VALUE_CALLS,
    Array,
    Criterion,
    Index,
    LossSpec,
    Point,
    RuleSpec,
    State,
)
from targetopt.linear.kernels.compiler.jit import Calls, Pointer, loop
from targetopt.rules import FTRL, AdaGrad, AdaGradNorm, GradientStep, LineSearch, Newton, Rule
from targetopt.rules.line_search import ROUNDING

LINE_SEARCH_ALLOWANCE = ROUNDING * float(np.finfo(np.float64).eps)

# Values of the types that all have.
NO_CRITERION = Criterion(np.empty(0), LossSpec(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0), 0.0)
NO_RULE = RuleSpec(0, 0.0, 0.0, True, np.empty(0))
NO_STATE = State(np.empty(0), np.empty((0, 0)), np.empty(0), np.empty(0, np.int64))
NO_POINT = Point(NO_CRITERION, np.empty(0, np.int64), np.empty(0), np.empty(0), 0.0, 0.0)
CALLS = Calls(0.0, NO_POINT, NO_RULE, NO_STATE, np.empty(0), allocate=False)


class RuleKernel(NamedTuple):
    """How a rule runs in kernels.

    Attributes:
        pointer: the compiled function.
        remembers: whether it keeps a table with a column per data row.
        lr: its lr from the user's (None: its own choice) and the loss's L; nan where it needs none.
        own: its own numbers, from the rule, the user's lr and L.
        number: the number it keeps, before the first step.
    """

    pointer: Pointer
    remembers: bool
    lr: Callable[[Any, float | None, float | None], float]
    own: Callable[[Any, float | None, float | None], tuple[float, ...]]
    number: Callable[[Any], float]


RULES: dict[type[Rule], RuleKernel] = {}


def rule_kernel(
    kind: type[Rule],
    *,
    remembers: bool = False,
    lr: Callable[[Any, float | None, float | None], float] = Rule.resolved,
    own: Callable[[Any, float | None, float | None], tuple[float, ...]] = lambda rule, lr, L: (),
    number: Callable[[Any], float] = lambda rule: math.nan,
) -> Callable[[Callable[..., float]], Pointer]:
    """Register a function as the kernel of exactly this class of rules; see `RuleKernel`."""

    def register(function: Callable[..., float]) -> Pointer:
        pointer = CALLS.pointer(function)
        RULES[kind] = RuleKernel(pointer, remembers, lr, own, number)
        return pointer

    return register


def rule_spec(rule: Rule, lr: float | None, smoothness: float | None) -> RuleSpec:
    """The rule for kernels, compiled if it was not before."""
    kernel = RULES[type(rule)]
    return RuleSpec(
        kernel.pointer.address,
        kernel.lr(rule, lr, smoothness),
        1.0 if lr is None else lr,
        rule.uniform,
        np.array(kernel.own(rule, lr, smoothness), dtype=np.float64),
    )


@loop
def spread(weight: float, metric: Array) -> None:
    """W is this number for every example."""
    for i in range(metric.size):
        metric[i] = weight


@rule_kernel(GradientStep)
def gradient_step(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    spread(1.0 / (rule.lr * point.multiplier), metric)
    return 1.0


@rule_kernel(AdaGradNorm, number=lambda rule: rule.initial**2)
def adagrad_norm(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    eta = rule.lr * point.multiplier
    state.numbers[RULE_NUMBER] += point.squared
    if state.numbers[RULE_NUMBER] > 0.0:
        eta /= np.sqrt(state.numbers[RULE_NUMBER])
    spread(1.0 / eta, metric)
    return 1.0


@rule_kernel(AdaGrad, remembers=True, own=lambda rule, lr, L: (rule.eps,))
def adagrad(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    eta, eps, memory = rule.lr * point.multiplier, rule.own[0], state.memory
    rows, slope = point.rows, point.slope
    for i in range(rows.size):
        memory[SUMS, rows[i]] += slope[i] * slope[i]
        metric[i] = (np.sqrt(memory[SUMS, rows[i]]) + eps) / eta
    return 1.0


@rule_kernel(Newton, own=lambda rule, lr, L: (rule.floor,))
def newton(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    eta, floor = rule.lr * point.multiplier, rule.own[0]
    rows, z, objective = point.rows, point.z, point.objective
    for i in range(rows.size):
        curved = losses.curvature(objective.loss, z[i], objective.y[rows[i]])
        metric[i] = max(curved, floor) / eta
    return 1.0


@rule_kernel(FTRL, remembers=True)
def ftrl(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    memory, summed = state.memory, 0.0
    rows, z, slope = point.rows, point.z, point.slope
    spread(1.0 / (rule.lr * point.multiplier), metric)
    for i in range(rows.size):
        row = rows[i]
        if memory[TIMES_SEEN, row] == 0.0:
            memory[STARTS, row] = z[i]
        memory[TIMES_SEEN, row] += 1.0
        memory[SUMS, row] += slope[i]
        slope[i] = memory[SUMS, row] + metric[i] * (z[i] - memory[STARTS, row])
        summed += memory[TIMES_SEEN, row]
    return summed / rows.size


# Places of the line-search's own numbers.
_FIRST, _CEILING, _C, _SHRINK, _GROW, _BACKTRACKS, _SAFE = range(7)


def _line_search_numbers(
    rule: LineSearch, lr: float | None, smoothness: float | None
) -> tuple[float, ...]:
    return (
        rule.first_step(lr, smoothness),
        math.inf if lr is None else lr,
        rule.c,
        rule.shrink,
        rule.grow,
        rule.max_backtracks,
        rule.safe_step(smoothness),  # inf if L is unknown
    )


@rule_kernel(LineSearch, lr=lambda rule, lr, L: math.nan, own=_line_search_numbers)
def line_search(point: Point, rule: RuleSpec, state: State, metric: Array) -> float:
    own, last = rule.own, state.numbers[RULE_NUMBER]
    squared, multiplier = point.squared, point.multiplier
    eta = own[_FIRST]
    if not np.isnan(last):  # where no slope is left any η would do, and it must not grow
        eta = min(last * (own[_GROW] if squared != 0.0 else 1.0), own[_CEILING])
    if squared != 0.0:
        eta, found = _search(point, own, eta, state.counts)
        if not found and np.isinf(own[_SAFE]):
            swallowed = _swallowed(point.z, point.slope, eta)
            state.numbers[RULE_NUMBER] = np.nan if swallowed else eta / own[_GROW]
            return 0.0
        if not found:
            eta = min(eta, own[_SAFE])
        state.numbers[RULE_NUMBER] = eta
    if eta * multiplier == 0.0:
        return 0.0
    spread(1.0 / (eta * multiplier), metric)
    return 1.0


@loop
def _search(point: Point, own: Array, eta: float, counts: Index) -> tuple[float, bool]:
    """The η that was accepted, or the one after the last trial; and whether one was."""
    (y, loss, _), rows, z, slope, squared, _ = point
    before = 0.0
    for i in range(rows.size):
        before += losses.value(loss, z[i], y[rows[i]])
    before /= rows.size
    for _ in range(int(own[_BACKTRACKS]) + 1):
        after = 0.0
        for i in range(rows.size):
            after += losses.value(loss, z[i] - eta * slope[i], y[rows[i]])
        counts[VALUE_CALLS] += 1
        allowed = before - own[_C] * eta * squared + LINE_SEARCH_ALLOWANCE * abs(before)
        if after / rows.size <= allowed:
            return eta, True
        eta *= own[_SHRINK]
    return eta, False


@loop
def _swallowed(z: Array, slope: Array, eta: float) -> bool:
    """Whether a step so short changes no target."""
    moved = 0
    for i in range(z.size):
        moved += z[i] - eta * slope[i] != z[i]
    return moved == 0
