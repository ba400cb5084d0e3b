"""Whole runs: the compiled loops behind the signatures of ``targetopt.linear.plain``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import baselines, sso
from targetopt.linear.compiled.inner import matrix_of
from targetopt.linear.compiled.pieces import batches_of
from targetopt.linear.operators import Design, SparseDesign
from targetopt.linear.spec import (
    ADAM_KIND,
    EXACT_SOLVER,
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
    movable = _movable(X, objective)
    if movable is None or not movable.gains_by_order or path.size > 0:
        columns, own = None, state
    else:
        X, columns = movable.by_use
        own = state._replace(theta=state.theta[columns])
    made, steps = 0, stretch.multipliers.size
    while made < steps:  # as many at once as were gathered
        at = stretch.first + made
        with batches_of(X, stretch, at, solver.kind == EXACT_SOLVER) as piece:
            count = min(piece.last - at, steps - made)
            done = sso.run(
                piece.gathered,
                at - piece.first,
                objective,
                rule,
                solver,
                form,
                stretch.multipliers[made : made + count],
                own,
                path[made : made + count],
            )
        made += done
        if done < count:
            break
    if columns is not None:
        state.theta[columns] = own.theta
    return made


def run_baseline(
    X: Design,
    objective: Objective,
    baseline: BaselineSpec,
    lr: float,
    stretch: Stretch,
    state: State,
) -> int:
    """See `targetopt.linear.plain.run_baseline`."""
    sweeps = baseline.kind in (
        ADAM_KIND,
        SVRG_KIND,
    )  # all columns at each step, empty ones for nothing
    movable = _movable(X, objective)
    if movable is None or not (sweeps or movable.gains_by_order):
        return baselines.run(matrix_of(X), objective, baseline, lr, stretch, state)
    X, columns = movable.by_use
    theta, memory, _, _ = state
    some = state._replace(theta=theta[columns], memory=np.ascontiguousarray(memory[:, columns]))
    made = baselines.run(matrix_of(X), objective, baseline, lr, stretch, some)
    theta[columns], memory[:, columns] = some.theta, some.memory
    return made


def _movable(X: Design, objective: Objective) -> SparseDesign | None:
    """X if its columns can be reordered and left out: without weight decay nothing happens in empty ones."""
    return X if isinstance(X, SparseDesign) and objective.decay == 0.0 else None
