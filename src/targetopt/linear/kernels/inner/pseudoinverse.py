"""The pseudo-inverse of a positive semi-definite matrix, applied to one vector after another.

Cholesky's factorisation with pivots PᵀAP = LLᵀ stops at the rank r, which in batches of real data is
often below n (indicator columns add up to one, rows repeat). With L of shape n × r,

    A⁺ = P L (LᵀL)⁻¹ (LᵀL)⁻¹ Lᵀ Pᵀ,

for a fraction of what eigenvalues cost; they are asked only where pivots do not tell the rank.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from targetopt.linear.kernels.compiler.jit import jit, loop

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Shares of the largest diagonal entry: a pivot above the first counts, one below the second is rounding.
PIVOT, ROUNDING = 1e-10, 1e-13


class Factor(NamedTuple):
    """What `apply` needs: L and the Cholesky factor of LᵀL, or eigenvectors and inverse eigenvalues."""

    order: Index  # row i of L belongs to the unknown order[i]
    lower: Array  # L, n × r
    inner: Array  # of LᵀL; empty if r = n
    vectors: Array  # eigenvectors; empty if pivots told the rank
    inverse: Array


@jit
def factorise(system: Array) -> Factor:
    """The factor of a symmetric positive semi-definite matrix; of nan, if it is not finite."""
    n = system.shape[0]
    order, lower, left = np.arange(n), np.zeros((n, n)), np.empty(n)
    none = np.empty((0, 0))
    finite, largest = True, 0.0
    for i in range(n):
        left[i] = system[i, i]
        largest = max(largest, left[i])
        for j in range(n):
            finite &= np.isfinite(system[i, j])
    if not finite:  # the run has diverged, and its θ shall say so
        return Factor(order, lower, none, np.full((n, n), np.nan), np.full(n, np.nan))
    rank = _eliminate(system, order, lower, left, PIVOT * largest)
    if rank == n:
        return Factor(order, lower, none, none, np.empty(0))
    clear = left[rank:].max() <= ROUNDING * largest
    if clear:
        lower = np.ascontiguousarray(lower[:, :rank])
        inner = np.dot(lower.T, lower)
        if _cholesky(inner):
            return Factor(order, lower, inner, none, np.empty(0))
    values, vectors = np.linalg.eigh(system)
    inverse = np.zeros(n)
    for k in range(n):
        if values[k] > values[-1] * n * 2.2e-16:
            inverse[k] = 1.0 / values[k]
    return Factor(order, lower, none, np.ascontiguousarray(vectors), inverse)


@jit
def apply(factor: Factor, right: Array) -> Array:
    """A⁺ · right."""
    if factor.inverse.size > 0:
        vectors = factor.vectors
        found: Array = np.dot(vectors, factor.inverse * np.dot(vectors.T, right))
        return found
    order, lower, out = factor.order, factor.lower, np.empty(right.size)
    x = right[order]
    if lower.shape[0] == lower.shape[1]:
        _solve(lower, x)
    else:
        inside = np.zeros(lower.shape[1])
        for i in range(x.size):
            for k in range(inside.size):
                inside[k] += lower[i, k] * x[i]
        _solve(factor.inner, inside)
        _solve(factor.inner, inside)
        for i in range(x.size):
            total = 0.0
            for k in range(inside.size):
                total += lower[i, k] * inside[k]
            x[i] = total
    for i in range(x.size):
        out[order[i]] = x[i]
    return out


@loop
def _eliminate(system: Array, order: Index, lower: Array, left: Array, least: float) -> int:
    """Fill L column by column while a pivot exceeds ``least``; the rank."""
    n, rank = left.size, 0
    while rank < n:
        pivot = rank
        for i in range(rank + 1, n):
            pivot = i if left[i] > left[pivot] else pivot
        if not left[pivot] > least:
            break
        _swap(order, left, lower, rank, pivot)
        root, top, entries = np.sqrt(left[rank]), lower[rank, :rank], system[order[rank]]
        lower[rank, rank] = root
        for i in range(rank + 1, n):
            row, total = lower[i], entries[order[i]]
            for k in range(top.size):
                total -= row[k] * top[k]
            total /= root
            row[rank] = total
            left[i] -= total * total
        rank += 1
    return rank


@loop
def _swap(order: Index, left: Array, lower: Array, i: int, j: int) -> None:
    order[i], order[j] = order[j], order[i]
    left[i], left[j] = left[j], left[i]
    for k in range(i):
        lower[i, k], lower[j, k] = lower[j, k], lower[i, k]


@loop
def _cholesky(matrix: Array) -> bool:
    """Turn a matrix into its Cholesky factor (the lower triangle); False if it is not definite."""
    for i in range(matrix.shape[0]):
        for j in range(i + 1):
            left, right, total = matrix[i], matrix[j], matrix[i, j]
            for k in range(j):
                total -= left[k] * right[k]
            if i > j:
                left[j] = total / right[j]
            elif total > 0.0:
                left[i] = np.sqrt(total)
            else:
                return False
    return True


@loop
def _solve(lower: Array, x: Array) -> None:
    """x ← (LLᵀ)⁻¹ x."""
    for i in range(x.size):
        row, total = lower[i], x[i]
        for j in range(i):
            total -= row[j] * x[j]
        x[i] = total / row[i]
    for i in range(x.size - 1, -1, -1):
        row = lower[i]
        x[i] /= row[i]
        for j in range(i):
            x[j] -= row[j] * x[i]
