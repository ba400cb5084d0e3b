"""Inner solvers on a `Problem`: the same steps as ``targetopt.inner``, in coordinates.

Each is registered for exactly its own class. Its kernel adds θ − θ_t, in coordinates, to ``shift`` (which
is all 0) and returns what it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from targetopt.inner import LBFGS, Armijo, Exact, GradientDescent, Inner
from targetopt.linear.coordinates import wolfe as plain
from targetopt.linear.coordinates.choice import MATVEC
from targetopt.linear.coordinates.solution import (
    BY_DECREASE,
    BY_EXACT,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
    Result,
)
from targetopt.linear.kernels.arguments import Array, SolverSpec
from targetopt.linear.kernels.compiler.jit import Calls, Pointer, jit, loop
from targetopt.linear.kernels.data import batch
from targetopt.linear.kernels.inner import krylov
from targetopt.linear.kernels.inner.exact import exact
from targetopt.linear.kernels.inner.quadratic import (
    EXAMPLE,
    Problem,
    accepted,
    covector,
    dot,
    gradient,
    probe,
)

wolfe = loop(plain.wolfe)

NOTHING = SolverSpec(0, False, False, 1, math.nan, 0.0, 0.0, 0.0, 0, 1, 0.0, 0.0)
CALLS = Calls(Result(0, 0.0, 0, 0.0), EXAMPLE, NOTHING, 0.0, np.empty(0), allocate=True)


class SolverKernel(NamedTuple):
    """The compiled function of an inner solver, and its numbers."""

    pointer: Pointer
    spec: Callable[[Any], SolverSpec]


SOLVERS: dict[type[Inner], SolverKernel] = {}


def solver_kernel(
    kind: type[Inner], spec: Callable[[Any], SolverSpec], *also: tuple[type[Inner], Any]
) -> Callable[[Callable[..., Result]], Pointer]:
    """Register a function as the kernel of exactly this class of inner solvers (and of ``also``)."""

    def register(function: Callable[..., Result]) -> Pointer:
        pointer = CALLS.pointer(function)
        for each, its_spec in ((kind, spec), *also):
            SOLVERS[each] = SolverKernel(pointer, its_spec)
        return pointer

    return register


def solver_spec(inner: Inner) -> SolverSpec:
    """The inner solver for kernels, compiled if it was not before."""
    pointer, spec = SOLVERS[type(inner)]
    return spec(inner)._replace(address=pointer.address)


def _stepping(inner: Any, **own: Any) -> SolverSpec:
    return NOTHING._replace(
        max_steps=inner.max_steps,
        gradient_tolerance=float(inner.stopping.gradient_tolerance),
        relative_decrease=float(inner.stopping.relative_decrease),
        **own,
    )


def _of_armijo(inner: Armijo) -> SolverSpec:
    return _stepping(
        inner,
        searches=True,
        first_step=float(inner.initial_step),
        c=float(inner.c),
        shrink=float(inner.shrink),
        grow=float(inner.grow),
        max_backtracks=inner.max_backtracks,
    )


def _of_descent(inner: GradientDescent) -> SolverSpec:
    return _stepping(inner, first_step=float(inner.step_size))


def _of_lbfgs(inner: LBFGS) -> SolverSpec:
    return _stepping(inner, max_backtracks=inner.max_backtracks, history=inner.history)


@solver_kernel(Exact, lambda inner: NOTHING._replace(exact=True))
def solve_exactly(problem: Problem, solver: SolverSpec, step: float, shift: Array) -> Result:
    found, decrease = exact(problem)
    for i in range(shift.size):
        shift[i] = found[i]
    return Result(1, decrease, BY_EXACT, step)


@jit
def _through_rows(problem: Problem, v: Array) -> Array:
    """The direction Xᵀv in the coordinates of the matvec form."""
    x = np.zeros(problem.X.width + 1)
    batch.add_rmatvec(problem.X, v[:-1], x)
    problem.products[1] += 1
    return x


@solver_kernel(Armijo, _of_armijo, (GradientDescent, _of_descent))
def descend(problem: Problem, solver: SolverSpec, step: float, shift: Array) -> Result:
    """Gradient steps of one size, or found by Armijo's rule; in a Krylov space where that is cheaper."""
    alpha = step
    total, steps, reason = 0.0, 0, krylov.BASIS_FULL
    x = np.empty(0)
    if problem.form == MATVEC and problem.decay == 0.0 and problem.X.rows < problem.X.width:
        rows = krylov.by_rows(problem)
        most = krylov.capacity(rows, solver.max_steps)
        if most > 0:
            v = gradient(rows)
            along = np.zeros(v.size)
            steps, total, reason, alpha = krylov.descend(
                rows, solver, v, along, alpha, steps, total, most
            )
            batch.add_rmatvec(problem.X, along[:-1], shift)
            problem.products[1] += 1
            if reason >= 0:
                return Result(steps, total, reason, alpha)
            x = _through_rows(problem, v)
    if steps == 0:
        x = gradient(problem)
        for i in range(shift.size):
            shift[i] = 0.0
    while reason == krylov.BASIS_FULL:
        most = krylov.capacity(problem, solver.max_steps - steps)
        if most == 0:
            break
        steps, total, reason, alpha = krylov.descend(
            problem, solver, x, shift, alpha, steps, total, most
        )
    if reason >= 0:
        return Result(steps, total, reason, alpha)
    image, p = np.empty(x.size), np.empty(problem.X.rows)
    steps, total, reason, alpha = _step_by_step(
        problem, solver, x, shift, image, p, alpha, steps, total
    )
    return Result(steps, total, reason, alpha)


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
    armijo = solver.searches
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


@solver_kernel(LBFGS, _of_lbfgs)
def lbfgs(problem: Problem, solver: SolverSpec, step: float, shift: Array) -> Result:
    x = gradient(problem)
    size, history = x.size, solver.history
    memory = Memory(
        np.empty((history, 4, size)), np.empty(history), np.empty(history), np.empty(history)
    )
    image, d = np.empty(size), np.empty(size)
    p, functional = np.empty(problem.X.rows), np.empty(size)
    steps, total, reason, step = _lbfgs_steps(
        problem, solver, step, memory, x, shift, image, d, p, functional
    )
    return Result(steps, total, reason, step)


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
        alpha = wolfe(slope, bend, first, solver.max_backtracks)
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
