"""One inner problem solved in coordinates: the same steps as ``targetopt.inner``."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.inner import LBFGS
from targetopt.linear.operators import Design, SparseDesign
from targetopt.linear.plain.forms import Dual, Form, Matvec, Primal
from targetopt.linear.spec import (
    ARMIJO,
    BY_DECREASE,
    BY_EXACT,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
    DESCENT,
    DUAL,
    EXACT_SOLVER,
    LBFGS_SOLVER,
    MATVEC,
    PRIMAL,
    Solution,
    SolverSpec,
    choose_form,
)

Array = NDArray[np.float64]


class Outcome(NamedTuple):
    """What a solver did; ``shift`` is θ − θ_t in coordinates, ``step`` the step size to carry."""

    shift: Array
    steps: int
    decrease: float
    reason: int
    step: float


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
    """Decrease q(θ) = mean[s·(z − z_t) + ½(z − z_t)ᵀW(z − z_t)] + ½λ‖θ‖² from θ_t.

    Args:
        X: the batch's rows.
        theta: θ_t, shape ``(d, k)``.
        targets: z_t = Xθ_t, shape ``(n, k)``.
        slope: s, the surrogate's gradient at z_t, per example, shape ``(n, k)``.
        metric: W: shape ``()``, ``(n, k)`` or ``(n, k, k)``.
        decay: λ.
        solver: the inner solver.
        step: its carried step size, nan if there is none yet.
        form: one of `spec.FORMS` by number, or −1 for the cheapest.
    """
    if form < 0:
        form = _cheapest(X, targets, metric, solver)
    kind = {DUAL: Dual, PRIMAL: Primal, MATVEC: Matvec}[form]
    problem = kind(X, theta, targets, slope, metric, decay)
    outcome = _solve(problem, solver, step)
    found = problem.moved(outcome.shift)
    return Solution(found, *outcome[1:], form, problem.forward_calls, problem.backward_calls)


def _cheapest(X: Design, targets: Array, metric: Array, solver: SolverSpec) -> int:
    (n, d), k = X.shape, targets.shape[1]
    exact = solver.kind == EXACT_SOLVER
    shared = metric.ndim == 0 or k == 1
    if exact and metric.ndim == 3:  # examples couple the outputs: one system of all of them
        return PRIMAL if d * k <= 2000 else MATVEC
    width = d if shared else d * k
    meetings = 0.0
    if isinstance(X, SparseDesign):
        meetings = float(np.square(np.bincount(X.indices), dtype=float).sum())
    return choose_form(n, width, X.nnz, meetings, X.is_sparse, solver.max_steps, exact)


def _solve(problem: Form, solver: SolverSpec, step: float) -> Outcome:
    if solver.kind == ARMIJO:
        return _armijo(problem, solver, step)
    if solver.kind == DESCENT:
        return _descent(problem, solver, step)
    if solver.kind == LBFGS_SOLVER:
        return _lbfgs(problem, solver, step)
    shift = problem.exact()
    return Outcome(shift, 1, problem.decrease(shift), BY_EXACT, step)


def _armijo(problem: Form, solver: SolverSpec, alpha: float) -> Outcome:
    x = problem.gradient()
    shift, total = np.zeros_like(x), 0.0
    for steps in range(solver.max_steps):
        squared, bend, image = problem.probe(x)
        if squared == 0.0 or squared**0.5 <= solver.gradient_tolerance:
            return Outcome(shift, steps, total, BY_GRADIENT, alpha)
        tries = 0
        while not 0.5 * alpha * alpha * bend - alpha * squared <= -solver.c * alpha * squared:
            alpha *= solver.shrink
            tries += 1
            if tries > solver.max_backtracks:
                return Outcome(shift, steps, total, BY_LINE_SEARCH, solver.first_step)
        shift -= alpha * x
        x = x - alpha * image
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        total += decrease
        alpha *= solver.grow
        if solver.relative_decrease > 0 and decrease <= solver.relative_decrease * total:
            return Outcome(shift, steps + 1, total, BY_DECREASE, alpha)
    return Outcome(shift, solver.max_steps, total, BY_MAX_STEPS, alpha)


def _descent(problem: Form, solver: SolverSpec, alpha: float) -> Outcome:
    x = problem.gradient()
    shift, total = np.zeros_like(x), 0.0
    for steps in range(solver.max_steps):
        squared, bend, image = problem.probe(x)
        if solver.gradient_tolerance > 0 and squared**0.5 <= solver.gradient_tolerance:
            return Outcome(shift, steps, total, BY_GRADIENT, alpha)
        shift -= alpha * x
        x = x - alpha * image
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        total += decrease
        if solver.relative_decrease > 0 and decrease <= solver.relative_decrease * abs(total):
            return Outcome(shift, steps + 1, total, BY_DECREASE, alpha)
    return Outcome(shift, solver.max_steps, total, BY_MAX_STEPS, alpha)


def _lbfgs(problem: Form, solver: SolverSpec, step: float) -> Outcome:
    x = problem.gradient()
    shift = np.zeros_like(x)
    # s, y, and their functionals, with which an inner product is a dot product
    pairs: deque[tuple[Array, Array, Array, Array, float]] = deque(maxlen=solver.history)
    total, steps, carried = 0.0, 0, step
    while steps < solver.max_steps:
        functional = problem.covector(x)
        norm = max(float(functional @ x), 0.0) ** 0.5
        if norm == 0.0 or norm <= solver.gradient_tolerance:
            return Outcome(shift, steps, total, BY_GRADIENT, carried)
        d = _two_loop(pairs, x)
        slope = float(functional @ d)
        _, bend, image = problem.probe(d)
        first = 1.0 if pairs else (1.0 / norm if math.isnan(step) else step)
        alpha = _wolfe(slope, bend, first, solver.max_backtracks)
        if alpha == 0.0 and pairs:  # stale curvature: once more along the gradient
            pairs.clear()
            continue
        if alpha == 0.0:
            return Outcome(shift, steps, total, BY_LINE_SEARCH, carried)
        if not pairs:
            carried = alpha
        if alpha * alpha * bend > 0:
            s, y = alpha * d, alpha * image
            pairs.append((s, y, problem.covector(s), problem.covector(y), alpha * alpha * bend))
        shift += alpha * d
        x = x + alpha * image
        decrease = -alpha * slope - 0.5 * alpha * alpha * bend
        steps += 1
        total += decrease
        if solver.relative_decrease > 0 and decrease <= solver.relative_decrease * abs(total):
            return Outcome(shift, steps, total, BY_DECREASE, carried)
    return Outcome(shift, steps, total, BY_MAX_STEPS, carried)


def _two_loop(pairs: deque[tuple[Array, Array, Array, Array, float]], x: Array) -> Array:
    d = -x
    if not pairs:
        return d
    weights = []
    for _, y, s_functional, _, curvature in reversed(pairs):
        weights.append((s_functional @ d) / curvature)
        d = d - weights[-1] * y
    _, y, _, y_functional, curvature = pairs[-1]
    d = d * (curvature / (y_functional @ y))
    for (s, _, _, y_functional, curvature), weight in zip(pairs, reversed(weights), strict=True):
        d = d + s * (weight - (y_functional @ d) / curvature)
    return d


def _wolfe(slope: float, bend: float, alpha: float, trials: int) -> float:
    """The step `targetopt.LBFGS` finds on a line where q is ``α·slope + ½α²·bend``; 0 if none."""
    low, high, best = 0.0, math.inf, 0.0
    for _ in range(trials):
        change = alpha * slope + 0.5 * alpha * alpha * bend
        if change <= LBFGS.SUFFICIENT * alpha * slope:
            best = alpha
            new_slope = slope + alpha * bend
            if new_slope >= LBFGS.CURVATURE * slope:
                return best
            low = alpha
            if high == math.inf:
                grown = low * slope / (slope - new_slope) if new_slope != slope else 2 * low
                alpha = min(max(grown, 1.5 * low), 10 * low)
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
