"""One inner problem solved on its own: what a `to.Linear` forward calls."""

from __future__ import annotations

import numpy as np

from targetopt.inner import Inner
from targetopt.linear import coordinates
from targetopt.linear.coordinates import Result, Solution
from targetopt.linear.coordinates.choice import DUAL
from targetopt.linear.design import Design
from targetopt.linear.kernels.arguments import Array, Index, SolverSpec
from targetopt.linear.kernels.compiler.jit import entry
from targetopt.linear.kernels.data.batch import Batch, Matrix, cheapest, matrix_of
from targetopt.linear.kernels.inner import solvers
from targetopt.linear.kernels.inner.quadratic import gram_for, moved, setup

solve = solvers.CALLS.call


def solve_inner(
    X: Design,
    theta: Array,
    targets: Array,
    slope: Array,
    metric: Array,
    decay: float,
    inner: Inner,
    step: float,
    form: int,
) -> Solution:
    """See `coordinates.solve_inner`, which takes several outputs (they are BLAS's work)."""
    if targets.shape[1] > 1 or type(inner) not in solvers.SOLVERS:
        return coordinates.solve_inner(X, theta, targets, slope, metric, decay, inner, step, form)
    products = np.zeros(2, np.int64)
    weights = np.broadcast_to(metric.reshape(-1), targets.shape[:1]).copy()
    found, form, result = _solve(
        matrix_of(X),
        np.ascontiguousarray(theta[:, 0]),
        np.ascontiguousarray(targets[:, 0]),
        np.ascontiguousarray(slope[:, 0]),
        weights,
        decay,
        solvers.solver_spec(inner),
        step,
        form,
        products,
    )
    return Solution(found[:, None], result, form, int(products[0]), int(products[1]))


@entry
def _solve(
    X: Matrix,
    theta: Array,
    targets: Array,
    slope: Array,
    metric: Array,
    decay: float,
    solver: SolverSpec,
    step: float,
    form: int,
    products: Index,
) -> tuple[Array, int, Result]:
    XB = Batch(
        X.indptr,
        X.indices,
        X.data,
        X.dense,
        np.empty(0, np.int32),
        True,
        targets.size,
        X.columns,
    )
    if form < 0:
        form, _ = cheapest(XB, -1.0, solver.max_steps, solver.exact)
    gram = gram_for(XB, form, metric)
    problem = setup(XB, form, gram, metric, targets, slope, theta, 0.0, decay, products)
    shift = np.zeros(XB.rows + 1 if form == DUAL else XB.width + 1)
    result = solve(solver.address, (problem, solver, step, shift))
    return moved(problem, shift), form, result
