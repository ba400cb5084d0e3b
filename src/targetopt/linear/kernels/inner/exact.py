"""The exact minimiser of a `Problem`: of several, the one nearest to θ_t."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates.choice import DUAL, MATVEC
from targetopt.linear.kernels.compiler.jit import jit
from targetopt.linear.kernels.data import batch
from targetopt.linear.kernels.inner import pseudoinverse
from targetopt.linear.kernels.inner.quadratic import (
    Problem,
    count_products,
    dot,
    gradient,
    moved,
    probe,
)

Array = NDArray[np.float64]

REFINEMENTS = 2
# Conjugate gradients stop at this share of the first gradient; what is left is rounding.
CONVERGED = 1e-14
RESTARTS = 5


@jit
def exact(problem: Problem) -> tuple[Array, float]:
    """θ* − θ_t in coordinates, and the decrease of q."""
    if problem.form == MATVEC:
        shift = _conjugate_gradients(problem)
    elif problem.form == DUAL:
        shift = _dual(problem)
    else:
        shift = _primal(problem)
    return shift, _decrease(problem, shift)


@jit
def _dual(problem: Problem) -> Array:
    """(DKD + λ)y = right side, D = √(W/b): θ* = θ_t + XᵀDy, and with λ > 0 simply XᵀDy."""
    X, decay, b = problem.X, problem.decay, problem.X.rows
    root, system, right = np.empty(b), np.empty((b, b)), np.empty(b)
    for i in range(b):
        root[i] = np.sqrt(problem.metric[i] / b)
    for i in range(b):
        for j in range(b):
            system[i, j] = root[i] * problem.gram[i, j] * root[j]
        system[i, i] += decay
        wanted = -problem.slope[i]
        if decay > 0.0:
            wanted += problem.metric[i] * problem.targets[i]
        right[i] = wanted / (b * root[i])
    factor = pseudoinverse.factorise(system)
    y, shift = np.zeros(b), np.empty(b + 1)
    p, residual = np.empty(b), right.copy()
    for _ in range(1 + REFINEMENTS):  # residuals from X itself: the Gram matrix has fewer digits
        correction = pseudoinverse.apply(factor, residual)
        for i in range(b):
            y[i] += correction[i]
            shift[i] = root[i] * y[i]
        full = np.zeros(X.width)
        batch.add_rmatvec(X, shift[:-1], full)
        batch.matvec(X, full, p)
        count_products(problem)
        for i in range(b):
            residual[i] = right[i] - root[i] * p[i] - decay * y[i]
    shift[b] = -1.0 if decay > 0.0 else 0.0
    return shift


@jit
def _primal(problem: Problem) -> Array:
    """(XᵀWX/b + λ)d = −∇q; columns no row touches go to 0 when there is weight decay."""
    X, decay, b = problem.X, problem.decay, problem.X.rows
    system = problem.gram.copy()
    for j in range(X.width):
        system[j, j] += decay
    start = gradient(problem)
    factor = pseudoinverse.factorise(system)
    shift, p, residual = np.zeros(X.width + 1), np.empty(b), np.empty(X.width)
    for j in range(X.width):
        residual[j] = -start[j]
    for _ in range(1 + REFINEMENTS):
        correction = pseudoinverse.apply(factor, residual)
        for j in range(X.width):
            shift[j] += correction[j]
        batch.matvec(X, shift, p)
        for i in range(b):
            p[i] *= -problem.metric[i] / b
        for j in range(X.width):
            residual[j] = -start[j] - decay * shift[j]
        batch.add_rmatvec(X, p, residual)
        count_products(problem)
    shift[-1] = -1.0 if decay > 0.0 else 0.0
    return shift


@jit
def _conjugate_gradients(problem: Problem) -> Array:
    """Conjugate gradients from θ_t, which stay in range(Xᵀ); restarted until nothing is gained."""
    start = gradient(problem)
    size = start.size
    shift, p, image = np.zeros(size), np.empty(problem.X.rows), np.zeros(size)
    residual = np.empty(size)
    start[-1] = 0.0
    goal, best = CONVERGED * CONVERGED * dot(start, start), np.inf
    for restart in range(RESTARTS):
        if restart > 0:
            probe(problem, shift, p, image)
        for i in range(size):
            residual[i] = -start[i] - image[i]
        squared = dot(residual, residual)
        if squared <= goal or not squared < 0.25 * best:
            break
        best, d = squared, residual.copy()
        for _ in range(10 * min(problem.X.rows, problem.X.width) + 10):
            _, bend = probe(problem, d, p, image)
            if not bend > 0.0:
                break
            alpha = squared / bend
            for i in range(size):
                shift[i] += alpha * d[i]
                residual[i] -= alpha * image[i]
            before, squared = squared, dot(residual, residual)
            if squared <= goal:
                break
            for i in range(size):
                d[i] = residual[i] + squared / before * d[i]
    shift[-1] = -1.0 if problem.decay > 0.0 else 0.0
    return shift


@jit
def _decrease(problem: Problem, shift: Array) -> float:
    """q(θ_t) − q(θ_t + shift), from the change of the targets."""
    X, decay, b = problem.X, problem.decay, problem.X.rows
    d = moved(problem, shift)
    for j in range(d.size):
        d[j] -= problem.theta[j]
    p = np.empty(b)
    batch.matvec(X, d, p)
    problem.products[0] += 1
    change = 0.0
    for i in range(b):
        change += p[i] * (problem.slope[i] + 0.5 * problem.metric[i] * p[i])
    change /= b
    if decay > 0.0:
        r = shift[-1]
        change += decay * (dot(problem.theta, d) + 0.5 * dot(d, d))
        change += decay * problem.outside * (r + 0.5 * r * r)
    return -change
