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
    Objective,
    RuleSpec,
    SolverSpec,
    State,
    Stretch,
)

Array = NDArray[np.float64]
Index = NDArray[np.int64]


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
    """See `targetopt.linear.plain.run_sso`."""
    return sso.run(matrix_of(X), objective, rule, solver, form, stretch, state, path)


def run_baseline(
    X: Design,
    objective: Objective,
    baseline: BaselineSpec,
    lr: float,
    stretch: Stretch,
    state: State,
) -> int:
    """See `targetopt.linear.plain.run_baseline`."""
    sweeps = baseline.kind in (ADAM_KIND, SVRG_KIND)
    if not sweeps or objective.decay > 0.0 or not isinstance(X, SparseDesign):
        return baselines.run(matrix_of(X), objective, baseline, lr, stretch, state)
    # These visit all columns at each step, but move nothing in the empty ones.
    X, filled = X.without_empty_columns
    theta, memory, _, _ = state
    some = state._replace(theta=theta[filled], memory=np.ascontiguousarray(memory[:, filled]))
    made = baselines.run(matrix_of(X), objective, baseline, lr, stretch, some)
    theta[filled], memory[:, filled] = some.theta, some.memory
    return made
