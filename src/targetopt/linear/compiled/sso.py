"""Many outer steps of SSO in one call: query, rule, inner solve, update, and again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import batch, losses
from targetopt.linear.compiled.batch import Batch
from targetopt.linear.compiled.gathered import Gathered, form_of, gram_of, view
from targetopt.linear.compiled.jit import entry, jit, loop
from targetopt.linear.compiled.quadratic import gram_for, moved, scaled, setup
from targetopt.linear.compiled.solvers import solve
from targetopt.linear.spec import (
    ADAGRAD,
    ADAGRAD_NORM,
    BACKWARD_CALLS,
    DUAL,
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
    PRIMAL,
    RULE_NUMBER,
    STARTS,
    SUMS,
    TIMES_SEEN,
    VALUE_CALLS,
    Objective,
    RuleSpec,
    SolverSpec,
    State,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@entry
def run(
    gathered: Gathered,
    first: int,
    objective: Objective,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    multipliers: Array,
    state: State,
    path: Array,
) -> int:
    """See `targetopt.linear.plain.run_sso`; the steps are those of the batches from ``first`` on."""
    last = gathered.rows.size - 2
    for t in range(multipliers.size):
        place = min(first + t, last)
        if not _step(gathered, place, objective, rule, solver, form, multipliers[t], state):
            return t
        if path.shape[0] > 0:
            path[t] = state.theta
    return int(multipliers.size)


@jit
def _step(
    gathered: Gathered,
    t: int,
    objective: Objective,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    multiplier: float,
    state: State,
) -> bool:
    decay = objective.decay
    theta, _, numbers, counts = state
    rows = gathered.order[gathered.rows[t] : gathered.rows[t + 1]]
    XB = view(gathered, t)
    if form < 0:
        form = form_of(gathered, t, XB, solver.max_steps, solver.kind == EXACT_SOLVER)
    local = batch.read(XB, theta)
    z = np.empty(rows.size)
    batch.matvec(XB, local, z)
    slope = np.empty(rows.size)
    squared = _slopes(objective, rows, z, slope)
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
        _gram(gathered, t, XB, form, rule, metric),
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
def _gram(gathered: Gathered, t: int, XB: Batch, form: int, rule: RuleSpec, metric: Array) -> Array:
    """As `gram_for`, from what was gathered where W is a multiple of I or does not matter."""
    if form == DUAL:
        return gram_of(gathered, t, XB, form)
    if form == PRIMAL and rule.kind != ADAGRAD and rule.kind != NEWTON:
        shared = gram_of(gathered, t, XB, form)
        return scaled(shared.reshape(-1), metric[0] / XB.rows).reshape(shared.shape)
    return gram_for(XB, form, metric)


@loop
def _slopes(objective: Objective, rows: Index, z: Array, slope: Array) -> float:
    """Fill in ∂ℓ_i/∂z_i; the sum of their squares."""
    y, loss, _ = objective
    squared = 0.0
    for i in range(rows.size):
        slope[i] = losses.slope(loss, z[i], y[rows[i]])
        squared += slope[i] * slope[i]
    return squared


@loop
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
        if squared != 0.0:
            accepted = _target_line_search(objective, rule, rows, z, slope, squared, state)
            numbers[RULE_NUMBER] = accepted
            eta = accepted * multiplier
        elif not np.isnan(numbers[RULE_NUMBER]):  # any η would do, and none is tried
            eta = min(numbers[RULE_NUMBER], rule.ceiling) * multiplier
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


@loop
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


@loop
def _squared_outside(XB: Batch, local: Array, theta: Array) -> float:
    """‖θ‖² over the columns the batch does not touch."""
    if XB.all_columns:
        return 0.0
    for j in range(XB.active.size):
        theta[XB.active[j]] = 0.0
    total = 0.0
    for j in range(theta.size):
        total += theta[j] * theta[j]
    batch.write(XB, local, theta)
    return total
