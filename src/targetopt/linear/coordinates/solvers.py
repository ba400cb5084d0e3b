"""One inner problem solved in coordinates, with numpy: the same steps as ``targetopt.inner``.

An inner solver that can work in coordinates registers with `solves`, for exactly its own class: a
subclass may do something else, so its ``minimise`` is called instead.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.inner import LBFGS, Armijo, Exact, GradientDescent, Inner
from targetopt.inner.stopping import most
from targetopt.linear.coordinates.choice import DUAL, MATVEC, PRIMAL, choose_form
from targetopt.linear.coordinates.forms import Dual, Form, Matvec, Primal
from targetopt.linear.coordinates.solution import (
    BY_DECREASE,
    BY_EXACT,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
    Result,
    Solution,
)
from targetopt.linear.coordinates.wolfe import wolfe
from targetopt.linear.design import Design, SparseDesign

Array = NDArray[np.float64]


class Solver(NamedTuple):
    """An inner solver in coordinates.

    Attributes:
        solve: decreases q over the `Form` by what the inner solver says, from the step size that was
            carried (nan: none yet); gives the shift θ − θ_t in coordinates, and what it did.
        first_step: the step size before the first outer step; nan if there is none.
        carries: whether the last step size is handed to the next outer step.
        exact: whether it solves a linear system instead of taking steps.
    """

    solve: Callable[[Form, Any, float], tuple[Array, Result]]
    first_step: Callable[[Any], float]
    carries: bool
    exact: bool


SOLVERS: dict[type[Inner], Solver] = {}


def solves(
    kind: type[Inner],
    *,
    first_step: Callable[[Any], float] = lambda inner: math.nan,
    carries: bool = False,
    exact: bool = False,
) -> Callable[[Any], Any]:
    """Register a function as the way in which exactly this class of inner solvers works in coordinates."""

    def register(solve: Any) -> Any:
        SOLVERS[kind] = Solver(solve, first_step, carries, exact)
        return solve

    return register


@np.errstate(over="ignore", invalid="ignore")  # divergence is answered, not warned of
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
    """Decrease q(θ) = mean[s·(z − z_t) + ½(z − z_t)ᵀW(z − z_t)] + ½λ‖θ‖² from θ_t.

    Args:
        X: the batch's rows.
        theta: θ_t, shape ``(d, k)``.
        targets: z_t = Xθ_t, shape ``(n, k)``.
        slope: s, the surrogate's gradient at z_t, per example, shape ``(n, k)``.
        metric: W: shape ``()``, ``(n, k)`` or ``(n, k, k)``.
        decay: λ.
        inner: an inner solver that is registered here.
        step: its carried step size, nan if there is none yet.
        form: one of `FORMS` by number, or −1 for the cheapest.
    """
    solver = SOLVERS[type(inner)]
    if form < 0:
        form = _cheapest(X, targets, metric, inner, solver)
    kind = {DUAL: Dual, PRIMAL: Primal, MATVEC: Matvec}[form]
    problem = kind(X, theta, targets, slope, metric, decay)
    shift, result = solver.solve(problem, inner, step)
    found = problem.moved(shift)
    return Solution(found, result, form, problem.forward_calls, problem.backward_calls)


def _cheapest(X: Design, targets: Array, metric: Array, inner: Inner, solver: Solver) -> int:
    (n, d), k = X.shape, targets.shape[1]
    shared = metric.ndim == 0 or k == 1
    if solver.exact and metric.ndim == 3:  # examples couple the outputs: one system of all of them
        return PRIMAL if d * k <= 2000 else MATVEC
    width = d if shared else d * k
    meetings = 0.0
    if isinstance(X, SparseDesign):
        meetings = float(np.square(np.bincount(X.indices), dtype=float).sum())
    steps = getattr(inner, "max_steps", 1)
    return choose_form(n, width, X.nnz, meetings, X.is_sparse, steps, solver.exact)


@solves(Exact, exact=True)
def _exact(problem: Form, solver: Exact, step: float) -> tuple[Array, Result]:
    shift = problem.exact()
    return shift, Result(1, problem.decrease(shift), BY_EXACT, step)


@solves(Armijo, first_step=lambda inner: inner.initial_step, carries=True)
def _armijo(problem: Form, solver: Armijo, alpha: float) -> tuple[Array, Result]:
    x = problem.gradient()
    shift, total = np.zeros_like(x), 0.0
    for steps in range(most(solver.max_steps)):
        squared, bend, image = problem.probe(x)
        if solver.stopping.small_gradient(squared**0.5):
            return shift, Result(steps, total, BY_GRADIENT, alpha)
        tries = 0
        while not 0.5 * alpha * alpha * bend - alpha * squared <= -solver.c * alpha * squared:
            alpha *= solver.shrink
            tries += 1
            if tries > solver.max_backtracks:
                return shift, Result(steps, total, BY_LINE_SEARCH, solver.initial_step)
        shift -= alpha * x
        x = x - alpha * image
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        total += decrease
        alpha *= solver.grow
        if solver.stopping.small_decrease(decrease, total):
            return shift, Result(steps + 1, total, BY_DECREASE, alpha)
    return shift, Result(most(solver.max_steps), total, BY_MAX_STEPS, alpha)


@solves(GradientDescent, first_step=lambda inner: inner.step_size)
def _descent(problem: Form, solver: GradientDescent, alpha: float) -> tuple[Array, Result]:
    x = problem.gradient()
    shift, total = np.zeros_like(x), 0.0
    for steps in range(most(solver.max_steps)):
        squared, bend, image = problem.probe(x)
        if solver.stopping.gradient_tolerance > 0 and solver.stopping.small_gradient(squared**0.5):
            return shift, Result(steps, total, BY_GRADIENT, alpha)
        shift -= alpha * x
        x = x - alpha * image
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        total += decrease
        if solver.stopping.small_decrease(decrease, total):
            return shift, Result(steps + 1, total, BY_DECREASE, alpha)
    return shift, Result(most(solver.max_steps), total, BY_MAX_STEPS, alpha)


@solves(LBFGS, carries=True)
def _lbfgs(problem: Form, solver: LBFGS, step: float) -> tuple[Array, Result]:
    x = problem.gradient()
    shift = np.zeros_like(x)
    # s, y, and their functionals, with which an inner product is a dot product
    pairs: deque[tuple[Array, Array, Array, Array, float]] = deque(maxlen=solver.history)
    total, steps, carried = 0.0, 0, step
    while steps < most(solver.max_steps):
        functional = problem.covector(x)
        norm = max(float(functional @ x), 0.0) ** 0.5
        if solver.stopping.small_gradient(norm):
            return shift, Result(steps, total, BY_GRADIENT, carried)
        d = _two_loop(pairs, x)
        slope = float(functional @ d)
        _, bend, image = problem.probe(d)
        first = 1.0 if pairs else (1.0 / norm if math.isnan(step) else step)
        alpha = wolfe(slope, bend, first, solver.max_backtracks)
        if alpha == 0.0 and pairs:  # stale curvature: once more along the gradient
            pairs.clear()
            continue
        if alpha == 0.0:
            return shift, Result(steps, total, BY_LINE_SEARCH, carried)
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
        if solver.stopping.small_decrease(decrease, total):
            return shift, Result(steps, total, BY_DECREASE, carried)
    return shift, Result(steps, total, BY_MAX_STEPS, carried)


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
