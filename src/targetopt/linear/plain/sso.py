"""Many outer steps of SSO in one call, with numpy: what ``compiled.sso`` does, readable."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.operators import Design
from targetopt.linear.plain import losses
from targetopt.linear.plain.inner import solve_inner
from targetopt.linear.spec import (
    ADAGRAD,
    ADAGRAD_NORM,
    BACKWARD_CALLS,
    FORM_STEPS,
    FORWARD_CALLS,
    FTRL_RULE,
    INNER_STEP,
    INNER_STEPS,
    LINE_SEARCH_ALLOWANCE,
    LINE_SEARCH_RULE,
    NEWTON,
    ORACLE_CALLS,
    RULE_NUMBER,
    STARTS,
    SUMS,
    TIMES_SEEN,
    VALUE_CALLS,
    LossSpec,
    Objective,
    RuleSpec,
    SolverSpec,
    State,
    Stretch,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@np.errstate(over="ignore", invalid="ignore")  # divergence is answered, not warned of
def run_sso(
    X: Design,
    objective: Objective,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    stretch: Stretch,
    state: State,
    path: Array,
) -> int:
    """Steps made: all of the stretch, or fewer if the targets left the finite numbers.

    ``path`` takes θ after each step, one row each, unless it has no rows.
    """
    y, loss, decay = objective
    order, ends, first, multipliers = stretch
    theta, _, numbers, counts = state
    begin = ends[first - 1] if first > 0 else 0
    for t, end in enumerate(ends[first : first + multipliers.size]):
        rows = order[begin:end]
        begin = end
        XB, yB = X.take(rows), y[rows]
        z = XB.matvec(theta)
        slope = losses.slope(loss, z, yB)
        if not np.isfinite(slope @ slope):
            return t
        counts[ORACLE_CALLS] += 1
        counts[FORWARD_CALLS] += 1
        slope, metric, summed = _propose(loss, rule, rows, yB, z, slope, multipliers[t], state)
        solution = solve_inner(
            XB,
            theta[:, None],
            z[:, None],
            slope[:, None],
            metric[:, None] if metric.ndim else metric,
            decay * summed,
            solver,
            numbers[INNER_STEP],
            form,
        )
        numbers[INNER_STEP] = solution.step
        counts[INNER_STEPS] += solution.steps
        counts[FORWARD_CALLS] += solution.forward_calls
        counts[BACKWARD_CALLS] += solution.backward_calls
        counts[FORM_STEPS + solution.form] += 1
        theta[:] = solution.theta[:, 0]
        if len(path):
            path[t] = theta
    return multipliers.size


def _propose(
    loss: LossSpec,
    rule: RuleSpec,
    rows: Index,
    y: Array,
    z: Array,
    slope: Array,
    multiplier: float,
    state: State,
) -> tuple[Array, Array, float]:
    """The surrogate's slope at z, its metric, and how many losses it sums."""
    _, memory, numbers, counts = state
    eta = rule.lr * multiplier
    squared = float(slope @ slope) / rows.size
    if rule.kind == LINE_SEARCH_RULE:
        if squared != 0:
            numbers[RULE_NUMBER] = _target_line_search(
                loss, rule, y, z, slope, squared, numbers, counts
            )
            eta = numbers[RULE_NUMBER] * multiplier
        elif not np.isnan(numbers[RULE_NUMBER]):  # any η would do, and none is tried
            eta = min(numbers[RULE_NUMBER], rule.ceiling) * multiplier
    elif rule.kind == ADAGRAD_NORM:
        numbers[RULE_NUMBER] += squared
        eta /= numbers[RULE_NUMBER] ** 0.5 if numbers[RULE_NUMBER] > 0 else 1.0
    elif rule.kind == ADAGRAD:
        memory[SUMS, rows] += slope**2
        return slope, (np.sqrt(memory[SUMS, rows]) + rule.eps) / eta, 1.0
    elif rule.kind == NEWTON:
        return slope, np.maximum(losses.curvature(loss, z, y), rule.floor) / eta, 1.0
    elif rule.kind == FTRL_RULE:
        new = memory[TIMES_SEEN, rows] == 0
        memory[STARTS, rows] = np.where(new, z, memory[STARTS, rows])
        memory[TIMES_SEEN, rows] += 1.0
        memory[SUMS, rows] += slope
        slope = memory[SUMS, rows] + (z - memory[STARTS, rows]) / eta
        return slope, np.asarray(1.0 / eta), float(memory[TIMES_SEEN, rows].mean())
    return slope, np.asarray(1.0 / eta), 1.0


def _target_line_search(
    loss: LossSpec,
    rule: RuleSpec,
    y: Array,
    z: Array,
    slope: Array,
    squared: float,
    numbers: Array,
    counts: Index,
) -> float:
    before = losses.value(loss, z, y).mean()
    last = numbers[RULE_NUMBER]
    eta = min(rule.lr if np.isnan(last) else rule.grow * last, rule.ceiling)
    for _ in range(rule.max_backtracks + 1):
        counts[VALUE_CALLS] += 1
        after = losses.value(loss, z - eta * slope, y).mean()
        if after <= before - rule.c * eta * squared + LINE_SEARCH_ALLOWANCE * abs(before):
            return float(eta)
        eta *= rule.shrink
    return float(min(eta, rule.safe))
