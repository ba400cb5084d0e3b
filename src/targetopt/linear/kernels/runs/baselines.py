"""Many steps of a baseline in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.kernels import losses
from targetopt.linear.kernels.arguments import (
    ACCUMULATED,
    BACKWARD_CALLS,
    FIRST,
    FORWARD_CALLS,
    INNER_STEPS,
    LAST_STEP,
    ORACLE_CALLS,
    SECOND,
    STEPS_MADE,
    VALUE_CALLS,
    Array,
    BaselineSpec,
    Criterion,
    Index,
    LossSpec,
    State,
    Stretch,
)
from targetopt.linear.kernels.compiler.jit import as_written, entry, loop
from targetopt.linear.kernels.data import rows
from targetopt.linear.kernels.data.batch import Matrix
from targetopt.linear.kernels.inner.quadratic import dot

Columns = NDArray[np.int32]


@entry
def run(
    X: Matrix,
    objective: Criterion,
    baseline: BaselineSpec,
    lr: float,
    stretch: Stretch,
    state: State,
) -> int:
    """Steps made: all of the stretch, or fewer if the targets left the finite numbers.

    The multipliers are of ``lr``; for a line-search, of the step found from ``lr`` on.
    """
    y, loss, decay = objective
    order, ends, first, multipliers = stretch
    theta, memory, numbers, counts = state
    # Without weight decay or momentum, columns the batch does not touch stay as they are: then the
    # gradient is taken from g, where it gathers, as a list of its non-zeros.
    everywhere = decay > 0.0 or baseline.averages or baseline.corrects
    g = np.zeros(X.columns)
    listed = 0 if everywhere else X.columns + 1
    columns, values = np.empty(listed, np.int32), np.empty(listed)
    begin = ends[first - 1] if first > 0 else 0
    for t in range(multipliers.size):
        batch = order[begin : ends[first + t]]
        begin = ends[first + t]
        z, p, slope = np.empty(batch.size), np.empty(batch.size), np.empty(batch.size)
        rows.matvec(X, batch, theta, z)
        _slopes(loss, batch, y, z, slope)
        if not np.isfinite(dot(slope, slope)):
            return t
        _count_gradient(counts)
        counts[INNER_STEPS] += 1
        numbers[STEPS_MADE] += 1.0
        rows.add_rmatvec(X, batch, slope, g)
        if baseline.corrects:
            rows.matvec(X, batch, memory[FIRST], z)
            _slopes(loss, batch, y, z, slope)
            for i in range(batch.size):
                slope[i] = -slope[i]
            rows.add_rmatvec(X, batch, slope, g)
            _count_gradient(counts)
            for j in range(theta.size):
                g[j] += memory[SECOND, j]
        if decay > 0.0:
            for j in range(theta.size):
                g[j] += decay * theta[j]
        if baseline.searches:
            rows.matvec(X, batch, g, p)
        if everywhere:
            along = dot(theta, g) if decay > 0.0 else 0.0
            step = _step(objective, baseline, batch, z, p, lr, multipliers[t], g, along, state)
            _move_all(baseline, numbers[STEPS_MADE], step, theta, g, memory)
            for j in range(g.size):
                g[j] = 0.0
        else:
            length = rows.collect(X, batch, g, columns, values)
            sparse = values[:length]
            step = _step(objective, baseline, batch, z, p, lr, multipliers[t], sparse, 0.0, state)
            _move_some(baseline, step, theta, columns, sparse, memory[FIRST])
    return int(multipliers.size)


@loop
def _slopes(loss: LossSpec, batch: Index, y: Array, z: Array, slope: Array) -> None:
    """∂ℓ_i/∂z_i divided by the number of rows."""
    share = 1.0 / batch.size
    for i in range(batch.size):
        slope[i] = losses.slope(loss, z[i], y[batch[i]]) * share


@loop
def _count_gradient(counts: Index) -> None:
    counts[ORACLE_CALLS] += 1
    counts[FORWARD_CALLS] += 1
    counts[BACKWARD_CALLS] += 1


@loop
def _step(
    objective: Criterion,
    baseline: BaselineSpec,
    batch: Index,
    z: Array,
    p: Array,
    lr: float,
    multiplier: float,
    g: Array,
    along: float,
    state: State,
) -> float:
    """The step size; g holds the gradient's non-zeros at least, p its products with the rows."""
    numbers = state.numbers
    if baseline.norms:
        numbers[ACCUMULATED] += dot(g, g)
        return (
            lr * multiplier / np.sqrt(numbers[ACCUMULATED]) if numbers[ACCUMULATED] > 0.0 else 0.0
        )
    if baseline.searches:
        squared = dot(g, g)
        return multiplier * _line_search(
            objective, baseline, batch, z, p, lr, squared, along, state
        )
    return lr * multiplier


@loop
def _move_all(
    baseline: BaselineSpec, steps: float, step: float, theta: Array, g: Array, memory: Array
) -> None:
    if baseline.averages:
        _adam(baseline, steps, step, theta, g, memory[FIRST], memory[SECOND])
    elif baseline.scales:
        for j in range(theta.size):
            memory[FIRST, j] += g[j] * g[j]
            theta[j] -= step * g[j] / (np.sqrt(memory[FIRST, j]) + baseline.eps)
    else:
        for j in range(theta.size):
            theta[j] -= step * g[j]


@loop
def _move_some(
    baseline: BaselineSpec, step: float, theta: Array, columns: Columns, g: Array, sums: Array
) -> None:
    """As `_move_all`, for a gradient of few non-zeros."""
    if baseline.scales:
        for j in range(g.size):
            column = np.uint32(columns[j])
            sums[column] += g[j] * g[j]
            theta[column] -= step * g[j] / (np.sqrt(sums[column]) + baseline.eps)
    else:
        for j in range(g.size):
            theta[np.uint32(columns[j])] -= step * g[j]


@as_written
def _adam(
    baseline: BaselineSpec,
    steps: float,
    lr: float,
    theta: Array,
    g: Array,
    first: Array,
    second: Array,
) -> None:
    # The corrections of both moments go into the step and into eps: one division a number, not two.
    root = np.sqrt(1.0 - baseline.beta2**steps)
    step, eps = lr * root / (1.0 - baseline.beta1**steps), baseline.eps * root
    keep1, keep2 = 1.0 - baseline.beta1, 1.0 - baseline.beta2
    for j in range(theta.size):
        first[j] += (g[j] - first[j]) * keep1
        second[j] = baseline.beta2 * second[j] + keep2 * g[j] * g[j]
        theta[j] -= step * first[j] / (np.sqrt(second[j]) + eps)


@loop
def _line_search(
    objective: Criterion,
    baseline: BaselineSpec,
    batch: Index,
    z: Array,
    p: Array,
    lr: float,
    squared: float,
    along: float,
    state: State,
) -> float:
    """The accepted step; 0 if there is none. ``squared`` is ‖g‖², ``along`` θ·g."""
    y, loss, decay = objective
    _, _, numbers, counts = state
    eta, last = lr, numbers[LAST_STEP]
    if not (baseline.restarts or np.isnan(last)):
        eta = min(lr, last * baseline.growth)
    before = 0.0
    for i in range(batch.size):
        before += losses.value(loss, z[i], y[batch[i]])
    before /= batch.size
    for _ in range(baseline.max_backtracks + 1):
        if squared == 0.0 or eta == 0.0:
            return 0.0
        counts[VALUE_CALLS] += 1
        counts[FORWARD_CALLS] += 1
        after = 0.0
        for i in range(batch.size):
            after += losses.value(loss, z[i] - eta * p[i], y[batch[i]])
        penalty = decay * eta * (0.5 * eta * squared - along)
        if after / batch.size + penalty <= before - baseline.c * eta * squared:
            numbers[LAST_STEP] = eta
            return eta
        eta *= baseline.shrink
    return 0.0
