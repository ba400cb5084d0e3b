"""Many outer steps of SSO in one call: query, rule, inner solve, update, and again."""

from __future__ import annotations

from functools import cache

import numpy as np

from targetopt.linear.coordinates.choice import DUAL, PRIMAL
from targetopt.linear.kernels import losses, rules
from targetopt.linear.kernels.arguments import (
    BACKWARD_CALLS,
    FORM_STEPS,
    FORWARD_CALLS,
    INNER_STEP,
    INNER_STEPS,
    ORACLE_CALLS,
    Array,
    Criterion,
    Index,
    Point,
    RuleSpec,
    SolverSpec,
    State,
)
from targetopt.linear.kernels.compiler.jit import Request, entry, jit, loop, request
from targetopt.linear.kernels.data import batch
from targetopt.linear.kernels.data.batch import NO_MATRIX, Batch
from targetopt.linear.kernels.data.gathered import Gathered, everything, form_of, gram_of, view
from targetopt.linear.kernels.inner import solvers
from targetopt.linear.kernels.inner.quadratic import gram_for, moved, setup

propose, solve = rules.CALLS.call, solvers.CALLS.call


@entry
def run(
    gathered: Gathered,
    first: int,
    objective: Criterion,
    rule: RuleSpec,
    solver: SolverSpec,
    form: int,
    multipliers: Array,
    state: State,
    path: Array,
) -> int:
    """Steps made, on the batches from ``first`` on, one for each of the multipliers.

    They are fewer than asked for if the targets or the parameters left the finite numbers; θ, the numbers
    and the counts are then as before the step that did it. ``path`` takes θ after each step, one row each,
    unless it has no rows.
    """
    last = gathered.rows.size - 2
    counts, numbers = np.empty_like(state.counts), np.empty_like(state.numbers)
    for t in range(multipliers.size):
        place = min(first + t, last)
        _copy_state(state.counts, state.numbers, counts, numbers)
        if not _step(gathered, place, objective, rule, solver, form, multipliers[t], state):
            _copy_state(counts, numbers, state.counts, state.numbers)
            return t
        if path.shape[0] > 0:
            _keep(state.theta, path[t])
    return int(multipliers.size)


@cache
def running() -> Request:
    """`run`, with the types that it always has."""
    return request(
        run,
        everything(NO_MATRIX),
        0,
        rules.NO_CRITERION,
        rules.NO_RULE,
        solvers.NOTHING,
        0,
        np.empty(0),
        rules.NO_STATE,
        np.empty((0, 0)),
    )


@loop
def _copy_state(counts: Index, numbers: Array, to_counts: Index, to_numbers: Array) -> None:
    for i in range(counts.size):
        to_counts[i] = counts[i]
    for i in range(numbers.size):
        to_numbers[i] = numbers[i]


@loop
def _keep(theta: Array, place: Array) -> None:
    for j in range(theta.size):
        place[j] = theta[j]


@jit
def _step(
    gathered: Gathered,
    t: int,
    objective: Criterion,
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
        form = form_of(gathered, t, XB, solver.max_steps, solver.exact)
    local = batch.read(XB, theta)
    z = np.empty(rows.size)
    batch.matvec(XB, local, z)
    slope = np.empty(rows.size)
    squared = _slopes(objective, rows, z, slope)
    if not np.isfinite(squared):
        return False
    counts[ORACLE_CALLS] += 1
    counts[FORWARD_CALLS] += 1
    if rule.given * multiplier == 0.0:  # a schedule has brought the step to nought
        return True
    metric = np.empty(rows.size)
    point = Point(objective, rows, z, slope, squared / rows.size, multiplier)
    summed = propose(rule.address, (point, rule, state, metric))
    if summed == 0.0:
        return True
    decay *= summed
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
    shift = np.zeros(XB.rows + 1 if form == DUAL else XB.width + 1)
    result = solve(solver.address, (problem, solver, numbers[INNER_STEP], shift))
    numbers[INNER_STEP] = result.step
    counts[INNER_STEPS] += result.steps
    counts[FORM_STEPS + form] += 1
    local = moved(problem, shift)
    if not (np.isfinite(result.decrease) and _finite(local, shift[-1])):
        return False
    if decay > 0.0:
        for j in range(theta.size):
            theta[j] *= 1.0 + shift[-1]
    batch.write(XB, local, theta)
    return True


@loop
def _finite(local: Array, last: float) -> bool:
    """Whether all entries are finite: no sum of such overflows unless one of them nearly does."""
    total = last
    for j in range(local.size):
        total += local[j]
    if np.isfinite(total):
        return True
    for j in range(local.size):
        if not np.isfinite(local[j]):
            return False
    return bool(np.isfinite(last))


@jit
def _gram(gathered: Gathered, t: int, XB: Batch, form: int, rule: RuleSpec, metric: Array) -> Array:
    """As `gram_for`, from what was gathered where W is a multiple of I or does not matter."""
    if form == DUAL:
        return gram_of(gathered, t, XB, form)
    if form == PRIMAL and rule.uniform:
        shared = gram_of(gathered, t, XB, form)
        gram = np.empty((XB.width, XB.width))
        _scale_into(shared, metric[0] / XB.rows, gram)
        return gram
    return gram_for(XB, form, metric)


@loop
def _scale_into(matrix: Array, factor: float, out: Array) -> None:
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[i, j] = factor * matrix[i, j]


@loop
def _slopes(objective: Criterion, rows: Index, z: Array, slope: Array) -> float:
    """Fill in ∂ℓ_i/∂z_i; the sum of their squares."""
    y, loss, _ = objective
    squared = 0.0
    for i in range(rows.size):
        slope[i] = losses.slope(loss, z[i], y[rows[i]])
        squared += slope[i] * slope[i]
    return squared


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
