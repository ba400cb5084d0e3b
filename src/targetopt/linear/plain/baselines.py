"""Many steps of a baseline in one call, with numpy: what ``compiled.baselines`` does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.operators import Design
from targetopt.linear.plain import losses
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
    ORACLE_CALLS,
    RESTART,
    SECOND,
    SLS_KIND,
    STEPS_MADE,
    SVRG_KIND,
    VALUE_CALLS,
    BaselineSpec,
    LossSpec,
    Objective,
    State,
    Stretch,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@np.errstate(over="ignore", invalid="ignore")  # divergence is answered, not warned of
def run_baseline(
    X: Design,
    objective: Objective,
    baseline: BaselineSpec,
    lr: float,
    stretch: Stretch,
    state: State,
) -> int:
    """Steps made: all of the stretch, or fewer if the targets left the finite numbers.

    The multipliers are of ``lr``; for SLS, of the step found from ``lr`` on.
    """
    y, loss, decay = objective
    order, ends, first, multipliers = stretch
    theta, memory, numbers, counts = state
    begin = ends[first - 1] if first > 0 else 0
    for t, end in enumerate(ends[first : first + multipliers.size]):
        rows = order[begin:end]
        begin = end
        step = lr * multipliers[t]
        XB, yB = X.take(rows), y[rows]
        z = XB.matvec(theta)
        slope = losses.slope(loss, z, yB)
        if not np.isfinite(slope @ slope):
            return t
        g = XB.rmatvec(slope / rows.size) + decay * theta
        numbers[STEPS_MADE] += 1
        _count_gradient(counts)
        counts[INNER_STEPS] += 1
        if baseline.kind == SLS_KIND:
            found = _line_search(loss, baseline, decay, XB, yB, z, theta, g, lr, numbers, counts)
            g *= multipliers[t] * found
        elif baseline.kind == ADAGRAD_NORM_KIND:
            numbers[ACCUMULATED] += g @ g
            g *= step / numbers[ACCUMULATED] ** 0.5 if numbers[ACCUMULATED] > 0 else 0.0
        elif baseline.kind == SVRG_KIND:
            stale = losses.slope(loss, XB.matvec(memory[FIRST]), yB)
            _count_gradient(counts)
            g = step * (g - XB.rmatvec(stale / rows.size) + memory[SECOND])
        elif baseline.kind == ADAM_KIND:
            memory[FIRST] += (g - memory[FIRST]) * (1 - baseline.beta1)
            memory[SECOND] *= baseline.beta2
            memory[SECOND] += (1 - baseline.beta2) * g * g
            root = (1 - baseline.beta2 ** numbers[STEPS_MADE]) ** 0.5
            g = memory[FIRST] / (np.sqrt(memory[SECOND]) / root + baseline.eps)
            g *= step / (1 - baseline.beta1 ** numbers[STEPS_MADE])
        elif baseline.kind == ADAGRAD_KIND:
            memory[FIRST] += g * g
            g *= step / (np.sqrt(memory[FIRST]) + baseline.eps)
        else:
            g *= step
        theta -= g
    return multipliers.size


def _count_gradient(counts: Index) -> None:
    counts[[ORACLE_CALLS, FORWARD_CALLS, BACKWARD_CALLS]] += 1


def _line_search(
    loss: LossSpec,
    baseline: BaselineSpec,
    decay: float,
    XB: Design,
    y: Array,
    z: Array,
    theta: Array,
    g: Array,
    lr: float,
    numbers: Array,
    counts: Index,
) -> float:
    """The accepted step; 0 if there is none."""
    eta, last = lr, numbers[LAST_STEP]
    if baseline.reset != RESTART and not np.isnan(last):
        eta = min(lr, last * baseline.growth if baseline.reset == GROW else last)
    squared, along = float(g @ g), float(theta @ g)
    p = XB.matvec(g)
    before = losses.value(loss, z, y).mean()
    for _ in range(baseline.max_backtracks + 1):
        if squared == 0.0 or eta == 0.0:
            return 0.0
        counts[[VALUE_CALLS, FORWARD_CALLS]] += 1
        after = losses.value(loss, z - eta * p, y).mean()
        penalty = decay * eta * (0.5 * eta * squared - along)
        if after + penalty <= before - baseline.c * eta * squared:
            numbers[LAST_STEP] = eta
            return eta
        eta *= baseline.shrink
    return 0.0
