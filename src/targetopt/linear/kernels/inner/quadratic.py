"""The inner problem of a linear model: a quadratic in coordinates.

With s the surrogate's gradient in the targets and W its metric, the inner objective and its
gradient are

    q(θ) = mean[s·(z − z_t) + ½ W (z − z_t)²] + ½λ‖θ‖²,      ∇q = Xᵀs/b + λθ,

and gradients never leave span{θ_t} + range(Xᵀ). A direction is held as coordinates, the last of
which belongs to θ_t: ``(v, r)`` is Xᵀv + rθ_t in the dual form; in the primal and matvec forms it is
v on the active columns and rθ_t on the others, where the loss is flat and only weight decay acts.
`probe` gives all that a step needs to know of a direction: its squared length, its curvature, and
its image under the Hessian. A step of size α then changes q by −α‖∇‖² + ½α²⟨∇, H∇⟩ exactly, so a
line-search trial costs O(1).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.coordinates.choice import DUAL, PRIMAL
from targetopt.linear.kernels.arguments import SolverSpec
from targetopt.linear.kernels.compiler.jit import jit, loop
from targetopt.linear.kernels.data import batch
from targetopt.linear.kernels.data.batch import Batch

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Below this fraction of its largest possible value, a quadratic form on a Gram matrix has lost too
# many digits to cancellation; the same number is then taken from X itself.
CANCELLED = 1e-6
# Rows of the largest matrix that fits into the first cache (48 kB) beside its vectors.
WHOLE_BELOW = 72


class Problem(NamedTuple):
    """One outer step's inner problem."""

    X: Batch
    form: int
    gram: Array  # dual: XXᵀ; primal: XᵀWX/b; matvec, or dual in a Krylov space alone: empty
    trace: float  # of gram
    metric: Array  # W, one entry per row
    targets: Array  # z_t
    slope: Array  # s at z_t
    theta: Array  # θ_t on the active columns
    outside: float  # ‖θ_t‖² on the other columns (read with weight decay only)
    length: float  # ‖θ_t‖² (read with weight decay only)
    decay: float  # λ
    scratch: Array  # room for one direction on the active columns
    products: Index  # products made with X and with Xᵀ


_none = np.empty(0)
EXAMPLE = Problem(
    Batch(
        np.empty(0, np.int64),
        np.empty(0, np.int32),
        _none,
        np.empty((0, 0)),
        np.empty(0, np.int32),
        True,
        0,
        0,
    ),
    0,
    np.empty((0, 0)),
    0.0,
    _none,
    _none,
    _none,
    _none,
    0.0,
    0.0,
    0.0,
    _none,
    np.empty(0, np.int64),
)
"""A problem of the types that all problems have."""


@loop
def dot(a: Array, b: Array) -> float:
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@jit
def scaled(a: Array, factor: float) -> Array:
    """factor · a."""
    out = np.empty(a.size)
    scale(a, factor, out)
    return out


@loop
def scale(a: Array, factor: float, out: Array) -> None:
    """out = factor · a (a loop: numba compiles array expressions slowly)."""
    for i in range(a.size):
        out[i] = factor * a[i]


@loop
def add(a: Array, factor: float, out: Array) -> None:
    """out += factor · a."""
    for i in range(a.size):
        out[i] += factor * a[i]


@jit
def gram_for(X: Batch, form: int, metric: Array) -> Array:
    """The Gram matrix that the form needs: XXᵀ, XᵀWX/b, or none."""
    if form == DUAL:
        return batch.gram_dual(X)
    if form == PRIMAL:
        return batch.gram_primal(X, scaled(metric, 1.0 / X.rows))
    return np.empty((0, 0))


@jit
def setup(
    X: Batch,
    form: int,
    gram: Array,
    metric: Array,
    targets: Array,
    slope: Array,
    theta: Array,
    outside: float,
    decay: float,
    products: Index,
) -> Problem:
    """The inner problem; ``gram`` is as `gram_for` has it."""
    trace = 0.0
    for i in range(gram.shape[0]):
        trace += gram[i, i]
    length = outside + dot(theta, theta) if decay > 0.0 else 0.0
    scratch = np.empty(X.width)
    return Problem(
        X,
        form,
        gram,
        trace,
        metric,
        targets,
        slope,
        theta,
        outside,
        length,
        decay,
        scratch,
        products,
    )


@loop
def symmetric_product(gram: Array, v: Array, out: Array) -> None:
    """out = gram · v over the entries of ``gram``, four rows at a time.

    A small matrix sits in the first cache and is read whole; of a larger one only the lower
    triangle is read, each entry serving twice.
    """
    n = gram.shape[0]
    for i in range(n):
        out[i] = 0.0
    done = n - n % 4
    for i in range(0, done, 4):
        row0, row1, row2, row3 = gram[i], gram[i + 1], gram[i + 2], gram[i + 3]
        v0, v1, v2, v3 = v[i], v[i + 1], v[i + 2], v[i + 3]
        if n < WHOLE_BELOW:
            for j in range(n):
                out[j] += row0[j] * v0 + row1[j] * v1 + row2[j] * v2 + row3[j] * v3
        else:
            sum0, sum1, sum2, sum3 = 0.0, 0.0, 0.0, 0.0
            for j in range(i):
                k0, k1, k2, k3, vj = row0[j], row1[j], row2[j], row3[j], v[j]
                out[j] += k0 * v0 + k1 * v1 + k2 * v2 + k3 * v3
                sum0 += k0 * vj
                sum1 += k1 * vj
                sum2 += k2 * vj
                sum3 += k3 * vj
            for j in range(i, i + 4):
                vj = v[j]
                sum0 += row0[j] * vj
                sum1 += row1[j] * vj
                sum2 += row2[j] * vj
                sum3 += row3[j] * vj
            out[i] += sum0
            out[i + 1] += sum1
            out[i + 2] += sum2
            out[i + 3] += sum3
    for i in range(done, n):
        row, vi = gram[i], v[i]
        if n < WHOLE_BELOW:
            for j in range(n):
                out[j] += row[j] * vi
        else:
            total = row[i] * vi
            for j in range(i):
                out[j] += row[j] * vi
                total += row[j] * v[j]
            out[i] += total


@loop
def count_products(problem: Problem) -> None:
    """One product with X and one with Xᵀ."""
    problem.products[0] += 1
    problem.products[1] += 1


@loop
def _through_targets(problem: Problem, full: Array, r: float, p: Array) -> tuple[float, float]:
    """‖d‖² and ⟨d, Hd⟩ for d with active columns ``full``; p becomes d's targets Xd."""
    batch.matvec(problem.X, full, p)
    problem.products[0] += 1
    squared = dot(full, full) + r * r * problem.outside
    bend = 0.0
    for i in range(p.size):
        bend += problem.metric[i] * p[i] * p[i]
    return squared, bend / p.size + problem.decay * squared


@loop
def probe(problem: Problem, x: Array, p: Array, image: Array) -> tuple[float, float]:
    """‖d‖² and ⟨d, Hd⟩ for the direction with coordinates x; ``image`` becomes those of Hd.

    ``p`` is scratch with one entry per row.
    """
    X, decay, b = problem.X, problem.decay, problem.X.rows
    share = 1.0 / b
    v, r = x[:-1], x[-1]
    image[-1] = decay * r
    if problem.form == DUAL:
        symmetric_product(problem.gram, v, p)
        along = 0.0
        if decay > 0.0:
            along = dot(v, problem.targets)
            add(problem.targets, r, p)
        squared, bend, size = 0.0, 0.0, 0.0
        for i in range(b):
            squared += v[i] * p[i]
            size += v[i] * v[i]
            bend += problem.metric[i] * p[i] * p[i]
        squared += r * (along + r * problem.length)
        if squared < CANCELLED * (problem.trace * size + r * r * problem.length):
            full = problem.scratch
            scale(problem.theta, r, full)
            batch.add_rmatvec(X, v, full)
            problem.products[1] += 1
            squared, bend = _through_targets(problem, full, r, p)
        else:
            bend = bend * share + decay * squared
        for i in range(b):
            image[i] = problem.metric[i] * p[i] * share + decay * v[i]
        return squared, bend
    if problem.form == PRIMAL:
        symmetric_product(problem.gram, v, image)
        size = dot(v, v)
        bend = dot(v, image[:-1])
        for j in range(v.size):
            image[j] += decay * v[j]
        if bend < CANCELLED * problem.trace * size:
            return _through_targets(problem, v, r, p)
        squared = size + r * r * problem.outside
        return squared, bend + decay * squared
    squared, bend = _through_targets(problem, v, r, p)
    for i in range(b):
        p[i] *= problem.metric[i] * share
    for j in range(v.size):
        image[j] = decay * v[j]
    batch.add_rmatvec(X, p, image)
    problem.products[1] += 1
    return squared, bend


@loop
def accepted(solver: SolverSpec, alpha: float, squared: float, bend: float) -> float:
    """Armijo's step along −∇q, from α on; 0 if no trial is accepted."""
    for _ in range(solver.max_backtracks + 1):
        if 0.5 * alpha * alpha * bend - alpha * squared <= -solver.c * alpha * squared:
            return alpha
        alpha *= solver.shrink
    return 0.0


@jit
def gradient(problem: Problem) -> Array:
    """Coordinates of ∇q at θ_t."""
    rows = problem.X.rows
    x = np.zeros(rows + 1 if problem.form == DUAL else problem.X.width + 1)
    _fill_gradient(problem, np.empty(rows), x)
    return x


@loop
def _fill_gradient(problem: Problem, shares: Array, x: Array) -> None:
    if problem.form == DUAL:
        for i in range(problem.X.rows):
            x[i] = problem.slope[i] / problem.X.rows
    else:
        scale(problem.slope, 1.0 / problem.X.rows, shares)
        if problem.decay > 0.0:
            for j in range(problem.X.width):
                x[j] = problem.decay * problem.theta[j]
        batch.add_rmatvec(problem.X, shares, x)
        problem.products[1] += 1
    x[-1] = problem.decay


@jit
def moved(problem: Problem, shift: Array) -> Array:
    """θ on the active columns at θ_t + shift (coordinates)."""
    theta = np.empty(problem.X.width)
    _move(problem, shift, theta)
    return theta


@loop
def _move(problem: Problem, shift: Array, theta: Array) -> None:
    if problem.form == DUAL:
        scale(problem.theta, 1.0 + shift[-1], theta)
        batch.add_rmatvec(problem.X, shift[:-1], theta)
        problem.products[1] += 1
    else:
        for j in range(theta.size):
            theta[j] = problem.theta[j] + shift[j]


@loop
def covector(problem: Problem, x: Array, out: Array) -> None:
    """The coordinates' linear functional y ↦ ⟨x, y⟩ (inner product of parameters)."""
    if problem.form != DUAL:
        for j in range(x.size):
            out[j] = x[j]
        out[-1] *= problem.outside
        return
    r = x[-1]
    v, image = x[:-1], out[:-1]
    symmetric_product(problem.gram, v, image)
    add(problem.targets, r, image)
    squared, size = dot(v, image), dot(v, v)
    out[-1] = dot(v, problem.targets) + r * problem.length
    squared += r * out[-1]
    if squared < CANCELLED * (problem.trace * size + r * r * problem.length):
        full = problem.scratch
        scale(problem.theta, r, full)
        batch.add_rmatvec(problem.X, v, full)
        batch.matvec(problem.X, full, image)
        count_products(problem)
        out[-1] = dot(full, problem.theta) + r * problem.outside
