"""Inner solvers on a `Problem`: the same steps as ``targetopt.inner``, in coordinates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled import batch, krylov
from targetopt.linear.compiled.exact import exact
from targetopt.linear.compiled.jit import jit, loop
from targetopt.linear.compiled.quadratic import Problem, accepted, covector, dot, gradient, probe
from targetopt.linear.spec import (
    ARMIJO,
    BY_DECREASE,
    BY_EXACT,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
    DESCENT,
    LBFGS_SOLVER,
    MATVEC,
    SolverSpec,
)

Array = NDArray[np.float64]


class Outcome(NamedTuple):
    """What a solver did; ``shift`` is θ − θ_t in coordinates, ``step`` the step size to carry."""

    shift: Array
    steps: int
    decrease: float
    reason: int
    step: float


@jit
def solve(problem: Problem, solver: SolverSpec, step: float) -> Outcome:
    """Run the solver; ``step`` is the carried step size (nan: none yet)."""
    if solver.kind == ARMIJO or solver.kind == DESCENT:
        return _descent(problem, solver, step)
    if solver.kind == LBFGS_SOLVER:
        return _lbfgs(problem, solver, step)
    shift, decrease = exact(problem)
    return Outcome(shift, 1, decrease, BY_EXACT, step)


@jit
def _through_rows(problem: Problem, v: Array) -> Array:
    """The direction Xᵀv in the coordinates of the matvec form."""
    x = np.zeros(problem.X.width + 1)
    batch.add_rmatvec(problem.X, v[:-1], x)
    problem.products[1] += 1
    return x


@jit
def _descent(problem: Problem, solver: SolverSpec, alpha: float) -> Outcome:
    """Gradient steps of size α, or found by Armijo's rule; in a Krylov space where that is cheaper."""
    total, steps, reason = 0.0, 0, krylov.BASIS_FULL
    if problem.form == MATVEC and problem.decay == 0.0 and problem.X.rows < problem.X.width:
        rows = krylov.by_rows(problem)
        most = krylov.capacity(rows, solver.max_steps)
        if most > 0:
            v = gradient(rows)
            shift = np.zeros(v.size)
            steps, total, reason, alpha = krylov.descend(
                rows, solver, v, shift, alpha, steps, total, most
            )
            shift = _through_rows(problem, shift)
            if reason >= 0:
                return Outcome(shift, steps, total, reason, alpha)
            x = _through_rows(problem, v)
    if steps == 0:
        x = gradient(problem)
        shift = np.zeros(x.size)
    while reason == krylov.BASIS_FULL:
        most = krylov.capacity(problem, solver.max_steps - steps)
        if most == 0:
            break
        steps, total, reason, alpha = krylov.descend(
            problem, solver, x, shift, alpha, steps, total, most
        )
    if reason >= 0:
        return Outcome(shift, steps, total, reason, alpha)
    image, p = np.empty(x.size), np.empty(problem.X.rows)
    steps, total, reason, alpha = _step_by_step(
        problem, solver, x, shift, image, p, alpha, steps, total
    )
    return Outcome(shift, steps, total, reason, alpha)


@loop
def _step_by_step(
    problem: Problem,
    solver: SolverSpec,
    x: Array,
    shift: Array,
    image: Array,
    p: Array,
    alpha: float,
    steps: int,
    total: float,
) -> tuple[int, float, int, float]:
    """Go on after ``steps`` steps, one product with the Hessian each."""
    armijo = solver.kind == ARMIJO
    while steps < solver.max_steps:
        squared, bend = probe(problem, x, p, image)
        if squared**0.5 <= solver.gradient_tolerance and (
            armijo or solver.gradient_tolerance > 0.0
        ):
            return steps, total, BY_GRADIENT, alpha
        if armijo:
            alpha = accepted(solver, alpha, squared, bend)
            if alpha == 0.0:
                return steps, total, BY_LINE_SEARCH, solver.first_step
        for i in range(x.size):
            shift[i] -= alpha * x[i]
            x[i] -= alpha * image[i]
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        steps += 1
        total += decrease
        if armijo:
            alpha *= solver.grow
        if solver.relative_decrease > 0.0 and decrease <= solver.relative_decrease * abs(total):
            return steps, total, BY_DECREASE, alpha
    return steps, total, BY_MAX_STEPS, alpha


class Memory(NamedTuple):
    """L-BFGS's pairs (s, y); beside each, its functional, so that an inner product is a dot product."""

    pairs: Array
    curvature: Array  # s·y
    length: Array  # y·y
    weights: Array  # scratch


@jit
def _lbfgs(problem: Problem, solver: SolverSpec, step: float) -> Outcome:
    x = gradient(problem)
    size, history = x.size, solver.history
    memory = Memory(
        np.empty((history, 4, size)), np.empty(history), np.empty(history), np.empty(history)
    )
    shift, image, d = np.zeros(size), np.empty(size), np.empty(size)
    p, functional = np.empty(problem.X.rows), np.empty(size)
    steps, total, reason, step = _lbfgs_steps(
        problem, solver, step, memory, x, shift, image, d, p, functional
    )
    return Outcome(shift, steps, total, reason, step)


@loop
def _lbfgs_steps(
    problem: Problem,
    solver: SolverSpec,
    step: float,
    memory: Memory,
    x: Array,
    shift: Array,
    image: Array,
    d: Array,
    p: Array,
    functional: Array,
) -> tuple[int, float, int, float]:
    pairs, curvature, length, weights = memory
    size = x.size
    kept, newest = 0, -1
    total, steps, carried = 0.0, 0, step
    while steps < solver.max_steps:
        covector(problem, x, functional)
        norm = max(dot(functional, x), 0.0) ** 0.5
        if norm == 0.0 or norm <= solver.gradient_tolerance:
            return steps, total, BY_GRADIENT, carried
        for i in range(size):
            d[i] = -x[i]
        if kept > 0:
            for back in range(kept):
                at = (newest - back) % solver.history
                weights[at] = dot(pairs[at, 2], d) / curvature[at]
                for i in range(size):
                    d[i] -= weights[at] * pairs[at, 1, i]
            scale = curvature[newest] / length[newest]
            for i in range(size):
                d[i] *= scale
            for forth in range(kept - 1, -1, -1):
                at = (newest - forth) % solver.history
                weight = weights[at] - dot(pairs[at, 3], d) / curvature[at]
                for i in range(size):
                    d[i] += weight * pairs[at, 0, i]
        slope = dot(functional, d)
        _, bend = probe(problem, d, p, image)
        first = 1.0
        if kept == 0:
            first = 1.0 / norm if np.isnan(step) else step
        alpha = _wolfe(slope, bend, first, solver.max_backtracks)
        if alpha == 0.0 and kept > 0:  # stale curvature: once more along the gradient
            kept = 0
            continue
        if alpha == 0.0:
            return steps, total, BY_LINE_SEARCH, carried
        if kept == 0:
            carried = alpha
        if alpha * alpha * bend > 0.0:
            newest = (newest + 1) % solver.history
            kept = min(kept + 1, solver.history)
            for i in range(size):
                pairs[newest, 0, i] = alpha * d[i]
                pairs[newest, 1, i] = alpha * image[i]
            covector(problem, pairs[newest, 0], pairs[newest, 2])
            covector(problem, pairs[newest, 1], pairs[newest, 3])
            curvature[newest] = alpha * alpha * bend
            length[newest] = dot(pairs[newest, 3], pairs[newest, 1])
        for i in range(size):
            shift[i] += alpha * d[i]
            x[i] += alpha * image[i]
        decrease = -alpha * slope - 0.5 * alpha * alpha * bend
        steps += 1
        total += decrease
        if solver.relative_decrease > 0.0 and decrease <= solver.relative_decrease * abs(total):
            return steps, total, BY_DECREASE, carried
    return steps, total, BY_MAX_STEPS, carried


@loop
def _wolfe(slope: float, bend: float, alpha: float, trials: int) -> float:
    """The step `targetopt.inner.LBFGS` finds on a line where q is ``α·slope + ½α²·bend``; 0: none."""
    low, high, best = 0.0, np.inf, 0.0
    for _ in range(trials):
        change = alpha * slope + 0.5 * alpha * alpha * bend
        if change <= 1e-4 * alpha * slope:
            best = alpha
            new_slope = slope + alpha * bend
            if new_slope >= 0.9 * slope:
                return best
            low = alpha
            if high == np.inf:
                grown = low * slope / (slope - new_slope) if new_slope != slope else 2.0 * low
                alpha = min(max(grown, 1.5 * low), 10.0 * low)
            else:
                alpha = 0.5 * (low + high)
        else:
            high = alpha
            fitted = -0.5 * slope * alpha * alpha / (change - slope * alpha)
            if low == 0.0 and 0.1 * high <= fitted <= 0.5 * high:
                alpha = fitted
            elif low > 0.0:
                alpha = low + 0.5 * (high - low)
            else:
                alpha = 0.2 * high
    return best
