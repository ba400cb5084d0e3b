"""Armijo with many more steps than unknowns: on a tridiagonal matrix, O(size) per step.

All iterates of gradient descent lie in the Krylov space of the first gradient. Householder
reflections turn the symmetric Hessian A into a tridiagonal T whose first axis is that gradient; then
a step needs a product with T alone. This costs size³ multiply-adds once, and pays for itself as soon as
there are about twice as many steps as unknowns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.compiled.jit import jit
from targetopt.linear.compiled.quadratic import CANCELLED, Problem, dot
from targetopt.linear.spec import (
    BY_DECREASE,
    BY_GRADIENT,
    BY_LINE_SEARCH,
    BY_MAX_STEPS,
    DUAL,
    TRIDIAGONAL_FROM,
    SolverSpec,
)

Array = NDArray[np.float64]

UNFINISHED = -1


@jit
def worthwhile(problem: Problem, solver: SolverSpec) -> bool:
    """Whether the steps outnumber the unknowns; with weight decay the dual Hessian is not one matrix."""
    size = problem.gram.shape[0]
    if problem.form == DUAL and problem.decay > 0.0:
        return False
    return bool(size >= 3 and size * TRIDIAGONAL_FROM <= solver.max_steps)


@jit
def descend(
    problem: Problem, solver: SolverSpec, x: Array, shift: Array, alpha: float
) -> tuple[int, float, int, float]:
    """Steps made, decrease, reason and step size; x (the gradient) and shift are moved along.

    Stops `UNFINISHED` where cancellation begins: the caller goes on from there.
    """
    size, decay = problem.gram.shape[0], problem.decay
    dual = problem.form == DUAL
    root = np.ones(size)  # dual: D = √(W/b), and the matrix is DKD in coordinates D⁻¹v
    if dual:
        for i in range(size):
            root[i] = np.sqrt(problem.metric[i] / size)
    A, c = np.empty((size, size)), np.empty(size)
    for i in range(size):
        c[i] = x[i] / root[i]
        for j in range(size):
            A[i, j] = root[i] * problem.gram[i, j] * root[j]
    mirrors = _tridiagonalise(A, c)
    diagonal, beside = np.empty(size), np.zeros(size)
    trace = 0.0
    for i in range(size):
        diagonal[i] = A[i, i]
        trace += A[i, i]
        if i + 1 < size:
            beside[i] = A[i + 1, i]
    moved, image = np.zeros(size), np.empty(size)
    total, steps, reason = 0.0, 0, BY_MAX_STEPS
    while steps < solver.max_steps:
        across, along, square = _tridiagonal_product(diagonal, beside, c, image)
        if along < CANCELLED * trace * across:
            reason = UNFINISHED
            break
        if dual:
            squared, bend = along, square
        else:
            squared = across + x[-1] * x[-1] * problem.outside
            bend = along + decay * squared
        if squared == 0.0 or squared**0.5 <= solver.gradient_tolerance:
            reason = BY_GRADIENT
            break
        tries = 0
        while not 0.5 * alpha * alpha * bend - alpha * squared <= -solver.c * alpha * squared:
            alpha *= solver.shrink
            tries += 1
            if tries > solver.max_backtracks:
                break
        if tries > solver.max_backtracks:
            alpha, reason = solver.first_step, BY_LINE_SEARCH
            break
        for i in range(size):
            moved[i] -= alpha * c[i]
            c[i] -= alpha * (image[i] + decay * c[i])
        shift[-1] -= alpha * x[-1]
        x[-1] -= alpha * decay * x[-1]
        decrease = alpha * squared - 0.5 * alpha * alpha * bend
        steps += 1
        total += decrease
        alpha *= solver.grow
        if solver.relative_decrease > 0.0 and decrease <= solver.relative_decrease * total:
            reason = BY_DECREASE
            break
    _reflect_back(mirrors, c)
    _reflect_back(mirrors, moved)
    for i in range(size):
        x[i] = root[i] * c[i]
        shift[i] += root[i] * moved[i]
    return steps, total, reason, alpha


@jit
def _tridiagonal_product(
    diagonal: Array, beside: Array, c: Array, out: Array
) -> tuple[float, float, float]:
    """out = Tc; c·c, c·out and out·out."""
    last = c.size - 1
    first = diagonal[0] * c[0] + beside[0] * c[1]
    final = beside[last - 1] * c[last - 1] + diagonal[last] * c[last]
    out[0], out[last] = first, final
    across = c[0] * c[0] + c[last] * c[last]
    along = c[0] * first + c[last] * final
    square = first * first + final * final
    for i in range(1, last):
        value = beside[i - 1] * c[i - 1] + diagonal[i] * c[i] + beside[i] * c[i + 1]
        out[i] = value
        across += c[i] * c[i]
        along += c[i] * value
        square += value * value
    return across, along, square


@jit
def _tridiagonalise(A: Array, c: Array) -> Array:
    """A ← QᵀAQ, tridiagonal, and c ← Qᵀc = (±‖c‖, 0, …); Q is the product of the mirrors returned.

    Only the lower triangle of A is kept up to date.
    """
    size = c.size
    mirrors = np.zeros((size, size))
    p = np.empty(size)
    for k in range(size - 1):
        mirror = mirrors[k][k:]
        for i in range(mirror.size):
            mirror[i] = c[i] if k == 0 else A[k + i, k - 1]
        norm = np.sqrt(dot(mirror, mirror))
        if norm == 0.0:
            continue
        target = -norm if mirror[0] >= 0.0 else norm
        mirror[0] -= target
        length = np.sqrt(dot(mirror, mirror))
        for i in range(mirror.size):
            mirror[i] /= length
        if k == 0:
            for i in range(size):
                c[i] = 0.0
            c[0] = target
        else:
            A[k, k - 1] = target
        _reflect_block(A, mirror, p[k:], k)
    return mirrors


@jit
def _reflect_block(A: Array, mirror: Array, p: Array, k: int) -> None:
    """Rows and columns from k on: A ← PAP with P = I − 2·mirror·mirrorᵀ, in the lower triangle.

    (Rows are taken as slices from k: indices that start at 0 are what vectorises.)
    """
    size = mirror.size
    for i in range(size):
        p[i] = 0.0
    for i in range(size):
        row, scale = A[k + i][k:], mirror[i]
        total = row[i] * scale
        for j in range(i):
            p[j] += row[j] * scale
            total += row[j] * mirror[j]
        p[i] += total
    along = dot(p, mirror)
    for i in range(size):
        p[i] = 2.0 * (p[i] - along * mirror[i])
    for i in range(size):
        row, a, b = A[k + i][k:], mirror[i], p[i]
        for j in range(i + 1):
            row[j] -= a * p[j] + b * mirror[j]


@jit
def _reflect_back(mirrors: Array, c: Array) -> None:
    """c ← Qc."""
    for k in range(c.size - 2, -1, -1):
        mirror, part = mirrors[k][k:], c[k:]
        twice = 2.0 * dot(mirror, part)
        for i in range(part.size):
            part[i] -= twice * mirror[i]
