"""Many outer steps of SSO in one call: query, rule, inner solve, update, and again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import batch, losses
from targetopt.linear.compiled.batch import Matrix
from targetopt.linear.compiled.jit import entry, jit
from targetopt.linear.compiled.quadratic import moved, setup
from targetopt.linear.compiled.solvers import solve
from targetopt.linear.spec import (
    ADAGRAD,
    ADAGRAD_NORM,
    BACKWARD_CALLS,
    EXACT_SOLVER,
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
    Objective,
    RuleSpec,
    SolverSpec,
    State,
    Stretch,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Columns = NDArray[np.int32]


@entry
def run(
    X: Matrix,
    objective: Objective,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    stretch: Stretch,
    state: State,
    path: Array,
) -> int:
    """See `targetopt.linear.plain.run_sso`."""
    order, ends, multipliers = stretch
    mark = np.full(X.columns, -1, np.int32)
    begin = 0
    for t in range(ends.size):
        rows = order[begin : ends[t]]
        begin = ends[t]
        if not _step(X, objective, rule, solver, form, rows, multipliers[t], state, mark):
            return t
        if path.shape[0] > 0:
            path[t] = state.theta
    return int(ends.size)


@jit
def _step(
    X: Matrix,
    objective: Objective,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    rows: Index,
    multiplier: float,
    state: State,
    mark: Columns,
) -> bool:
    y, loss, decay = objective
    theta, _, numbers, counts = state
    XB, form = batch.load(X, rows, form, solver.max_steps, solver.kind == EXACT_SOLVER, mark)
    local = batch.read(XB, theta)
    z = np.empty(rows.size)
    batch.matvec(XB, local, z)
    slope = np.empty(rows.size)
    squared = 0.0
    for i in range(rows.size):
        slope[i] = losses.slope(loss, z[i], y[rows[i]])
        squared += slope[i] * slope[i]
    if not np.isfinite(squared):
        return False
    counts[ORACLE_CALLS] += 1
    counts[FORWARD_CALLS] += 1
    metric = np.empty(rows.size)
    decay *= _propose(
        objective, rule, rows, z, slope, squared / rows.size, multiplier, state, metric
    )
    outside = _squared_outside(XB, local, theta) if decay > 0.0 else 0.0
    problem = setup(
        XB,
        form,
        metric,
        z,
        slope,
        local,
        outside,
        decay,
        counts[FORWARD_CALLS : BACKWARD_CALLS + 1],
    )
    outcome = solve(problem, solver, numbers[INNER_STEP])
    numbers[INNER_STEP] = outcome.step
    counts[INNER_STEPS] += outcome.steps
    counts[FORM_STEPS + form] += 1
    local = moved(problem, outcome.shift)
    if decay > 0.0:
        for j in range(theta.size):
            theta[j] *= 1.0 + outcome.shift[-1]
    batch.write(XB, local, theta)
    return True


@jit
def _propose(
    objective: Objective,
    rule: RuleSpec,
    rows: Index,
    z: Array,
    slope: Array,
    squared: float,
    multiplier: float,
    state: State,
    metric: Array,
) -> float:
    """Fill ``metric`` with W and ``slope`` with the surrogate's at z; how many losses that sums."""
    y, loss, _ = objective
    _, memory, numbers, _ = state
    eta = rule.lr * multiplier
    if rule.kind == LINE_SEARCH_RULE:
        accepted = _target_line_search(objective, rule, rows, z, slope, squared, state)
        numbers[RULE_NUMBER] = accepted
        eta = accepted * multiplier
    elif rule.kind == ADAGRAD_NORM:
        numbers[RULE_NUMBER] += squared
        if numbers[RULE_NUMBER] > 0.0:
            eta /= np.sqrt(numbers[RULE_NUMBER])
    for i in range(rows.size):
        if rule.kind == ADAGRAD:
            memory[SUMS, rows[i]] += slope[i] * slope[i]
            metric[i] = (np.sqrt(memory[SUMS, rows[i]]) + rule.eps) / eta
        elif rule.kind == NEWTON:
            metric[i] = max(losses.curvature(loss, z[i], y[rows[i]]), rule.floor) / eta
        else:
            metric[i] = 1.0 / eta
    if rule.kind == FTRL_RULE:
        summed = 0.0
        for i in range(rows.size):
            row = rows[i]
            if memory[TIMES_SEEN, row] == 0.0:
                memory[STARTS, row] = z[i]
            memory[TIMES_SEEN, row] += 1.0
            memory[SUMS, row] += slope[i]
            slope[i] = memory[SUMS, row] + metric[i] * (z[i] - memory[STARTS, row])
            summed += memory[TIMES_SEEN, row]
        return summed / rows.size
    return 1.0


@jit
def _target_line_search(
    objective: Objective,
    rule: RuleSpec,
    rows: Index,
    z: Array,
    slope: Array,
    squared: float,
    state: State,
) -> float:
    y, loss, _ = objective
    _, _, numbers, counts = state
    before = 0.0
    for i in range(rows.size):
        before += losses.value(loss, z[i], y[rows[i]])
    before /= rows.size
    eta = rule.lr if np.isnan(numbers[RULE_NUMBER]) else rule.grow * numbers[RULE_NUMBER]
    eta = min(eta, rule.ceiling)
    for _ in range(rule.max_backtracks + 1):
        after = 0.0
        for i in range(rows.size):
            after += losses.value(loss, z[i] - eta * slope[i], y[rows[i]])
        counts[VALUE_CALLS] += 1
        allowed = before - rule.c * eta * squared + LINE_SEARCH_ALLOWANCE * abs(before)
        if after / rows.size <= allowed:
            return eta
        eta *= rule.shrink
    return min(eta, rule.safe)


@jit
def _squared_outside(XB: batch.Batch, local: Array, theta: Array) -> float:
    """‖θ‖² over the columns the batch does not touch."""
    if XB.all_columns:
        return 0.0
    for column in XB.active:
        theta[column] = 0.0
    total = 0.0
    for j in range(theta.size):
        total += theta[j] * theta[j]
    batch.write(XB, local, theta)
    return total
