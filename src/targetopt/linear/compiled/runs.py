"""Whole runs: the compiled loops behind the signatures of ``targetopt.linear.plain``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import baselines, sso
from targetopt.linear.compiled.inner import matrix_of
from targetopt.linear.operators import Design, SparseDesign
from targetopt.linear.spec import (
    ADAM_KIND,
    SVRG_KIND,
    BaselineSpec,
    LossSpec,
    RuleSpec,
    SolverSpec,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def run_sso(
    X: Design,
    y: Array,
    loss: LossSpec,
    rule: RuleSpec,
    solver: SolverSpec,
    decay: float,
    form: int,
    order: Index,
    ends: Index,
    multipliers: Array,
    theta: Array,
    memory: Array,
    numbers: Array,
    counts: Index,
    path: Array,
) -> int:
    """See `targetopt.linear.plain.run_sso`."""
    return sso.run(
        matrix_of(X), y, loss, rule, solver, decay, form, order, ends, multipliers, theta, memory,
        numbers, counts, path,
    )  # fmt: skip


def run_baseline(
    X: Design,
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
    fixed, steps = (y, loss, baseline, decay), (order, ends, lr, multipliers)
    sweeps = baseline.kind in (ADAM_KIND, SVRG_KIND)
    if not sweeps or decay > 0.0 or not isinstance(X, SparseDesign):
        return baselines.run(matrix_of(X), *fixed, *steps, theta, memory, numbers, counts)
    # These visit all columns at each step, but move nothing in the empty ones.
    X, filled = X.without_empty_columns
    some, tables = theta[filled], np.ascontiguousarray(memory[:, filled])
    made = baselines.run(matrix_of(X), *fixed, *steps, some, tables, numbers, counts)
    theta[filled], memory[:, filled] = some, tables
    return made
