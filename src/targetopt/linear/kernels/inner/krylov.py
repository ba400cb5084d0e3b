"""Gradient steps on a quadratic in the Krylov space of its first gradient: O(k) per step.

Every iterate of gradient descent is a polynomial in the Hessian A times the first gradient. In the
orthonormal basis that Lanczos' process builds of these vectors, A is tridiagonal: a step needs no
product with A, and all the inner products a line-search asks for are sums over k numbers.

The basis grows by one product with A, and only when a step would otherwise lose more than rounding
does: the last coordinate of the gradient must be seen to count. Gradient descent damps the far
coordinates so strongly that a hundred steps commonly need some forty products, a thousand some fifty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates.choice import DENSE_NS, DUAL, KRYLOV_SHARE, PRIMAL, SPARSE_NS
from targetopt.linear.coordinates.solution import (
    BY_DECREASE,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
)
from targetopt.linear.kernels.arguments import SolverSpec
from targetopt.linear.kernels.compiler.jit import jit, loop
from targetopt.linear.kernels.data import batch
from targetopt.linear.kernels.inner.quadratic import (
    CANCELLED,
    Problem,
    accepted,
    add,
    count_products,
    dot,
    symmetric_product,
)

Array = NDArray[np.float64]

# Why `descend` stopped, beside the reasons of `spec`: digits are lost, or the basis is full.
DIGITS_LOST, BASIS_FULL = -1, -2
# A coordinate whose square is below this share of the gradient's changes nothing but its last digits:
# 1e-14 of it, as much as a product with X rounds away.
NEGLIGIBLE = 1e-28
# A new basis vector below this share of A's size is rounding: the space is exhausted.
EXHAUSTED = 1e-15
# Nanoseconds that come with each step, with each vector of a basis, and with each step in a basis;
# products and orthogonalisation apart. Measured, like those of `spec`.
STEP_NS, BASIS_NS, BASIS_STEP_NS = 100.0, 400.0, 40.0
LANES = 16
# Without a Gram matrix, the basis has at most twice as many numbers as X has non-zeros, or so many.
BASIS_NUMBERS = 1_000_000


class Basis(NamedTuple):
    """What grows as `descend` goes: the basis V, A in it and two vectors in it; and scratch.

    A's column i is beside[i], diagonal[i], beside[i + 1] (it is tridiagonal); the gradient's coordinate
    i is c[i + 1]. Zeros follow, up to whole lanes: short loops are slow where they do not fill the
    registers.
    """

    vectors: Array  # V, a row each
    root: Array  # R, see `_symmetriser`
    diagonal: Array
    beside: Array
    c: Array  # the gradient
    moved: Array  # the shift
    image: Array  # scratch: A times the gradient
    targets: Array  # scratch: one entry per row of X


@jit
def by_rows(problem: Problem) -> Problem:
    """A problem in matvec form, for `descend` alone: in dual coordinates, which are fewer.

    The Gram matrix is not built: a product with it is one with Xᵀ and one with X.
    """
    return Problem(
        problem.X,
        DUAL,
        problem.gram,
        problem.trace,
        problem.metric,
        problem.targets,
        problem.slope,
        problem.theta,
        problem.outside,
        problem.length,
        problem.decay,
        problem.scratch,
        problem.products,
    )


@loop
def capacity(problem: Problem, steps: int) -> int:
    """The largest basis that so many steps may need and memory allows; 0 if it is not worthwhile."""
    X = problem.X
    if problem.form == DUAL and problem.decay > 0.0:  # then the Hessian is not one symmetric matrix
        return 0
    rank = min(X.rows, X.width)
    if problem.gram.size == 0:
        length = X.rows if problem.form == DUAL else X.width
        product = 2.0 * (DENSE_NS * X.dense.size + SPARSE_NS * X.data.size)
        most = max(2 * (X.dense.size + X.data.size), BASIS_NUMBERS) // max(length, 1)
    else:
        length = problem.gram.shape[0]
        product = DENSE_NS * length * length
        most = rank
    products = min(KRYLOV_SHARE * steps**0.5, float(steps), float(rank))
    one_by_one = (product + STEP_NS) * steps
    orthogonalise = DENSE_NS * length * products
    in_basis = (product + orthogonalise + BASIS_NS) * products + BASIS_STEP_NS * steps
    return min(most, steps) if in_basis < one_by_one and products <= most else 0


@jit
def descend(
    problem: Problem,
    solver: SolverSpec,
    x: Array,
    shift: Array,
    alpha: float,
    steps: int,
    total: float,
    most: int,
) -> tuple[int, float, int, float]:
    """Go on after ``steps`` steps and a decrease of ``total``, with a basis of at most ``most``.

    Returns steps, decrease, reason and step size; x (the gradient) and shift are moved along.
    """
    size = x.size - 1
    room = _whole_lanes(most + 1)
    basis = Basis(
        np.empty((most + 1, size)),
        _symmetriser(problem, size),
        np.zeros(room),
        np.zeros(room + 1),
        np.zeros(room + 2),
        np.zeros(room),
        np.empty(room),
        np.empty(problem.X.rows),
    )
    return _descend_in(basis, problem, solver, x, shift, alpha, steps, total)


@loop
def _descend_in(
    basis: Basis,
    problem: Problem,
    solver: SolverSpec,
    x: Array,
    shift: Array,
    alpha: float,
    steps: int,
    total: float,
) -> tuple[int, float, int, float]:
    V, root, diagonal, beside, c, moved, image, p = basis
    most, size, decay = V.shape[0] - 1, V.shape[1], problem.decay
    dual, armijo = problem.form == DUAL, solver.searches
    tolerance = solver.gradient_tolerance**2
    for i in range(size):
        V[0, i] = x[i] / root[i]
    across = dot(V[0], V[0])
    c[1] = np.sqrt(across)
    for i in range(size):
        V[0, i] = V[0, i] / c[1] if across > 0.0 else 0.0
    k, trace, reason = 0, 0.0, BY_MAX_STEPS  # k basis vectors have been multiplied by A
    while steps < solver.max_steps:
        if c[k + 1] * c[k + 1] > NEGLIGIBLE * across:
            if k == most:
                reason = BASIS_FULL
                break
            _apply(problem, root, V[k], p, V[k + 1])
            diagonal[k], beside[k + 1] = _orthogonalise(V, k, beside[k], trace)
            trace += diagonal[k]
            k += 1
        along, square = _product(_whole_lanes(k + 1), diagonal, beside, c, image)
        if along < CANCELLED * trace * across:
            reason = DIGITS_LOST
            break
        if dual:
            squared, bend = along, square
        else:
            squared = across + x[-1] * x[-1] * problem.outside
            bend = along + decay * squared
        if squared <= tolerance and (armijo or tolerance > 0.0):
            reason = BY_GRADIENT
            break
        if armijo:
            alpha = accepted(solver, alpha, squared, bend)
            if alpha == 0.0:
                alpha, reason = solver.first_step, BY_LINE_SEARCH
                break
        across = _step(_whole_lanes(k + 1), alpha, decay, image, c, moved)
        shift[-1] -= alpha * x[-1]
        x[-1] -= alpha * decay * x[-1]
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        steps += 1
        total += decrease
        if armijo:
            alpha *= solver.grow
        if solver.relative_decrease > 0.0 and decrease <= solver.relative_decrease * abs(total):
            reason = BY_DECREASE
            break
    if reason < 0:  # the caller goes on from here
        for i in range(size):
            x[i] = 0.0
        _add_combination(V, c[1 : k + 2], root, x)
    _add_combination(V, moved[: k + 1], root, shift)
    return steps, total, reason, alpha


@loop
def _whole_lanes(size: int) -> int:
    return -(-size // LANES) * LANES


@jit
def _symmetriser(problem: Problem, size: int) -> Array:
    """The diagonal R with x = Ru, in whose coordinates u the Hessian is symmetric.

    In the dual form that is R = √(W/b), and the Hessian is A = RKR; in the others R = I.
    """
    root = np.ones(size)
    if problem.form == DUAL:
        _fill_root(problem.metric, root)
    return root


@loop
def _fill_root(metric: Array, root: Array) -> None:
    for i in range(root.size):
        root[i] = np.sqrt(metric[i] / root.size)


@loop
def _apply(problem: Problem, root: Array, u: Array, p: Array, out: Array) -> None:
    """out = Au, without weight decay; p is scratch with one entry per row."""
    if problem.form == DUAL:
        for i in range(u.size):
            p[i] = root[i] * u[i]
        if problem.gram.size > 0:
            symmetric_product(problem.gram, p, out)
        else:
            full = problem.scratch
            for j in range(full.size):
                full[j] = 0.0
            batch.add_rmatvec(problem.X, p, full)
            batch.matvec(problem.X, full, out)
            count_products(problem)
        for i in range(u.size):
            out[i] *= root[i]
    elif problem.form == PRIMAL:
        symmetric_product(problem.gram, u, out)
    else:
        batch.matvec(problem.X, u, p)
        for i in range(p.size):
            p[i] *= problem.metric[i] / p.size
        for j in range(out.size):
            out[j] = 0.0
        batch.add_rmatvec(problem.X, p, out)
        count_products(problem)


@loop
def _orthogonalise(V: Array, k: int, before: float, trace: float) -> tuple[float, float]:
    """Make V[k + 1], which is A·V[k], a basis vector: a new column of the tridiagonal matrix.

    The three-term recurrence leaves little along the old vectors, but after some steps more than
    rounding; that is removed as well, twice if the vector nearly vanishes.
    """
    w = V[k + 1]
    length = dot(w, w)
    if k > 0:
        add(V[k - 1], -before, w)
    on_diagonal = dot(V[k], w)
    add(V[k], -on_diagonal, w)
    on_diagonal += _remove(V, k, w)
    left = dot(w, w)
    if left < 1e-4 * length:
        on_diagonal += _remove(V, k, w)
        left = dot(w, w)
    beside = np.sqrt(left)
    if k + 1 == w.size or beside <= EXHAUSTED * (trace + on_diagonal):
        beside = 0.0
    for i in range(w.size):
        w[i] = w[i] / beside if beside > 0.0 else 0.0
    return on_diagonal, beside


@loop
def _remove(V: Array, k: int, w: Array) -> float:
    """Make w orthogonal to V[0], …, V[k], four at a time; what was removed along V[k]."""
    i = 0
    while i + 4 <= k:
        v0, v1, v2, v3 = V[i], V[i + 1], V[i + 2], V[i + 3]
        h0, h1, h2, h3 = 0.0, 0.0, 0.0, 0.0
        for j in range(w.size):
            h0 += v0[j] * w[j]
            h1 += v1[j] * w[j]
            h2 += v2[j] * w[j]
            h3 += v3[j] * w[j]
        for j in range(w.size):
            w[j] -= h0 * v0[j] + h1 * v1[j] + h2 * v2[j] + h3 * v3[j]
        i += 4
    h = 0.0
    while i <= k:
        h = dot(V[i], w)
        add(V[i], -h, w)
        i += 1
    return h


@loop
def _product(
    size: int, diagonal: Array, beside: Array, c: Array, out: Array
) -> tuple[float, float]:
    """out = Tc on the first ``size`` coordinates; c·out and out·out."""
    along, square = 0.0, 0.0
    for i in range(size):
        here = c[i + 1]
        value = beside[i] * c[i] + diagonal[i] * here + beside[i + 1] * c[i + 2]
        out[i] = value
        along += here * value
        square += value * value
    return along, square


@loop
def _step(size: int, alpha: float, decay: float, image: Array, c: Array, moved: Array) -> float:
    """Move the gradient c and the shift by a step of alpha; the new c·c."""
    across = 0.0
    for i in range(size):
        here = c[i + 1]
        moved[i] -= alpha * here
        here -= alpha * (image[i] + decay * here)
        c[i + 1] = here
        across += here * here
    return across


@loop
def _add_combination(V: Array, weights: Array, root: Array, out: Array) -> None:
    """out += R Σ_j weights_j V[j]."""
    for j in range(weights.size):
        row, weight = V[j], weights[j]
        for i in range(row.size):
            out[i] += root[i] * (weight * row[i])
