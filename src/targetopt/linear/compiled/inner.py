"""One inner problem solved on its own: what a `to.Linear` forward calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear import plain
from targetopt.linear.compiled.batch import Batch, Matrix, cheapest
from targetopt.linear.compiled.jit import entry
from targetopt.linear.compiled.quadratic import gram_for, moved, setup
from targetopt.linear.compiled.solvers import Outcome, solve
from targetopt.linear.operators import DenseDesign, Design, SparseDesign
from targetopt.linear.spec import EXACT_SOLVER, Solution, SolverSpec

Array = NDArray[np.float64]
Index = NDArray[np.int64]


def matrix_of(X: Design) -> Matrix:
    """The arrays of a design, as kernels take them."""
    if isinstance(X, SparseDesign):
        return Matrix(X.indptr, X.indices, X.data, np.empty((0, 0)), X.shape[1])
    assert isinstance(X, DenseDesign)
    return Matrix(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0), X.array, X.shape[1])


def solve_inner(
    X: Design,
    theta: Array,
    targets: Array,
    slope: Array,
    metric: Array,
    decay: float,
    solver: SolverSpec,
    step: float,
    form: int,
) -> Solution:
    """See `targetopt.linear.plain.solve_inner`; several outputs go there (they are BLAS's work)."""
    if targets.shape[1] > 1:
        return plain.solve_inner(X, theta, targets, slope, metric, decay, solver, step, form)
    products = np.zeros(2, np.int64)
    weights = np.broadcast_to(metric.reshape(-1), targets.shape[:1]).copy()
    found, form, outcome = _solve(
        matrix_of(X),
        np.ascontiguousarray(theta[:, 0]),
        np.ascontiguousarray(targets[:, 0]),
        np.ascontiguousarray(slope[:, 0]),
        weights,
        decay,
        solver,
        step,
        form,
        products,
    )
    return Solution(
        found[:, None],
        outcome.steps,
        outcome.decrease,
        outcome.reason,
        outcome.step,
        form,
        int(products[0]),
        int(products[1]),
    )


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
) -> tuple[Array, int, Outcome]:
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
        form, _ = cheapest(XB, -1.0, solver.max_steps, solver.kind == EXACT_SOLVER)
    gram = gram_for(XB, form, metric)
    problem = setup(XB, form, gram, metric, targets, slope, theta, 0.0, decay, products)
    outcome = solve(problem, solver, step)
    return moved(problem, outcome.shift), form, outcome
