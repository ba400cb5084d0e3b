"""Many steps of a baseline in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import batch, losses
from targetopt.linear.compiled.batch import Batch, Matrix
from targetopt.linear.compiled.jit import as_written, jit
from targetopt.linear.compiled.quadratic import dot
from targetopt.linear.spec import (
    ACCUMULATED,
    ADAGRAD_KIND,
    ADAGRAD_NORM_KIND,
    ADAM_KIND,
    BACKWARD_CALLS,
    FIRST,
    FORWARD_CALLS,
    GROW,
    INNER_STEPS,
    LAST_STEP,
    MATVEC,
    ORACLE_CALLS,
    RESTART,
    SECOND,
    SLS_KIND,
    STEPS_MADE,
    SVRG_KIND,
    VALUE_CALLS,
    BaselineSpec,
    LossSpec,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@jit
def run(
    X: Matrix,
    y: Array,
    loss: LossSpec,
    baseline: BaselineSpec,
    decay: float,
    order: Index,
    ends: Index,
    lr: float,
    multipliers: Array,
    theta: Array,
    memory: Array,
    numbers: Array,
    counts: Index,
) -> int:
    """See `targetopt.linear.plain.run_baseline`."""
    mark = np.full(X.columns, -1, np.int32)
    # Without weight decay or momentum, columns the batch does not touch stay as they are.
    touches_all = decay > 0.0 or baseline.kind == ADAM_KIND or baseline.kind == SVRG_KIND
    full = np.empty(X.columns if touches_all else 0)
    begin = 0
    for t in range(ends.size):
        rows = order[begin : ends[t]]
        begin = ends[t]
        XB, _ = batch.load(X, rows, MATVEC, 1, False, mark)
        local = batch.read(XB, theta)
        z, slope = np.empty(rows.size), np.empty(rows.size)
        batch.matvec(XB, local, z)
        _slopes(loss, rows, y, z, slope)
        if not np.isfinite(dot(slope, slope)):
            return t
        _count_gradient(counts)
        counts[INNER_STEPS] += 1
        numbers[STEPS_MADE] += 1.0
        g = np.zeros(XB.width)
        batch.add_rmatvec(XB, slope, g)
        if baseline.kind == SVRG_KIND:
            batch.matvec(XB, batch.read(XB, memory[FIRST]), z)
            _slopes(loss, rows, y, z, slope)
            for i in range(rows.size):
                slope[i] = -slope[i]
            batch.add_rmatvec(XB, slope, g)
            _count_gradient(counts)
        if touches_all:
            for j in range(theta.size):
                full[j] = decay * theta[j]
            if baseline.kind == SVRG_KIND:
                for j in range(theta.size):
                    full[j] += memory[SECOND, j]
            _add(XB, g, full)
            _update(
                loss, baseline, decay, XB, rows, y, z, lr, multipliers[t], theta, full, False,
                memory, numbers, counts,
            )  # fmt: skip
        else:
            tables = np.empty((memory.shape[0], XB.width))
            for table in range(memory.shape[0]):
                tables[table] = batch.read(XB, memory[table])
            _update(
                loss, baseline, decay, XB, rows, y, z, lr, multipliers[t], local, g, True,
                tables, numbers, counts,
            )  # fmt: skip
            batch.write(XB, local, theta)
            for table in range(memory.shape[0]):
                batch.write(XB, tables[table], memory[table])
    return int(ends.size)


@jit
def _slopes(loss: LossSpec, rows: Index, y: Array, z: Array, slope: Array) -> None:
    """∂ℓ_i/∂z_i divided by the number of rows."""
    share = 1.0 / rows.size
    for i in range(rows.size):
        slope[i] = losses.slope(loss, z[i], y[rows[i]]) * share


@jit
def _add(XB: Batch, local: Array, full: Array) -> None:
    """full += local, spread over its columns."""
    if XB.all_columns:
        for j in range(full.size):
            full[j] += local[j]
    else:
        for j in range(XB.width):
            full[XB.active[j]] += local[j]


@jit
def _count_gradient(counts: Index) -> None:
    counts[ORACLE_CALLS] += 1
    counts[FORWARD_CALLS] += 1
    counts[BACKWARD_CALLS] += 1


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
    root = np.sqrt(1.0 - baseline.beta2**steps)
    step = lr / (1.0 - baseline.beta1**steps)
    keep1, keep2 = 1.0 - baseline.beta1, 1.0 - baseline.beta2
    for j in range(theta.size):
        first[j] += (g[j] - first[j]) * keep1
        second[j] = baseline.beta2 * second[j] + keep2 * g[j] * g[j]
        theta[j] -= step * first[j] / (np.sqrt(second[j]) / root + baseline.eps)


@jit
def _update(
    loss: LossSpec,
    baseline: BaselineSpec,
    decay: float,
    XB: Batch,
    rows: Index,
    y: Array,
    z: Array,
    lr: float,
    multiplier: float,
    theta: Array,
    g: Array,
    theta_is_local: bool,
    memory: Array,
    numbers: Array,
    counts: Index,
) -> None:
    """Move θ by g; all arrays on the same columns (all of them, or the batch's)."""
    scheduled = lr * multiplier
    if baseline.kind == ADAM_KIND:
        _adam(baseline, numbers[STEPS_MADE], scheduled, theta, g, memory[FIRST], memory[SECOND])
        return
    if baseline.kind == ADAGRAD_KIND:
        for j in range(theta.size):
            memory[FIRST, j] += g[j] * g[j]
            theta[j] -= scheduled * g[j] / (np.sqrt(memory[FIRST, j]) + baseline.eps)
        return
    step = scheduled
    if baseline.kind == ADAGRAD_NORM_KIND:
        numbers[ACCUMULATED] += dot(g, g)
        step = scheduled / np.sqrt(numbers[ACCUMULATED]) if numbers[ACCUMULATED] > 0.0 else 0.0
    elif baseline.kind == SLS_KIND:
        step = multiplier * _line_search(
            loss, baseline, decay, XB, rows, y, z, lr, theta, g, theta_is_local, numbers, counts
        )
    for j in range(theta.size):
        theta[j] -= step * g[j]


@jit
def _line_search(
    loss: LossSpec,
    baseline: BaselineSpec,
    decay: float,
    XB: Batch,
    rows: Index,
    y: Array,
    z: Array,
    lr: float,
    theta: Array,
    g: Array,
    theta_is_local: bool,
    numbers: Array,
    counts: Index,
) -> float:
    """The accepted step; 0 if there is none."""
    eta, last = lr, numbers[LAST_STEP]
    if baseline.reset != RESTART and not np.isnan(last):
        eta = min(lr, last * baseline.growth if baseline.reset == GROW else last)
    squared, along = dot(g, g), dot(theta, g)
    p = np.empty(rows.size)
    batch.matvec(XB, g if theta_is_local else batch.read(XB, g), p)
    before = 0.0
    for i in range(rows.size):
        before += losses.value(loss, z[i], y[rows[i]])
    before /= rows.size
    for _ in range(baseline.max_backtracks + 1):
        if squared == 0.0 or eta == 0.0:
            return 0.0
        counts[VALUE_CALLS] += 1
        counts[FORWARD_CALLS] += 1
        after = 0.0
        for i in range(rows.size):
            after += losses.value(loss, z[i] - eta * p[i], y[rows[i]])
        penalty = decay * eta * (0.5 * eta * squared - along)
        if after / rows.size + penalty <= before - baseline.c * eta * squared:
            numbers[LAST_STEP] = eta
            return eta
        eta *= baseline.shrink
    return 0.0
