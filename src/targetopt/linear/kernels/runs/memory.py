"""Many steps with per-example memory in one call: the rule `Memory` on a linear model.

The surrogate is of all n examples, but a step reads the batch's rows only. What the others remember enters
through the sums (1/n) Σ g_i x_i and, for MISO, (1/n) Σ a_i x_i, which change by what the batch changes; and
the surrogate's Hessian XᵀX/(nη) + λ is the same at every step but for η, so its eigenvectors are computed
once. In each eigenvector's direction an exact solve divides by the Hessian's eigenvalue h, and m gradient
steps of size α multiply by (1 − (1 − αh)^m)/h.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from targetopt.inner import Exact, GradientDescent, Inner
from targetopt.linear.coordinates.choice import PRIMAL
from targetopt.linear.design import Design
from targetopt.linear.engine import PLACES, Setup, Steps, checked_part
from targetopt.linear.kernels import losses
from targetopt.linear.kernels.arguments import (
    BACKWARD_CALLS,
    FORM_STEPS,
    FORWARD_CALLS,
    INNER_STEPS,
    ORACLE_CALLS,
    Array,
    Criterion,
    Index,
    Stretch,
)
from targetopt.linear.kernels.compiler.jit import entry, loop
from targetopt.linear.kernels.data import rows
from targetopt.linear.kernels.data.batch import Matrix, matrix_of
from targetopt.linear.kernels.inner.quadratic import dot
from targetopt.rules import Memory, Rule
from targetopt.rules.tables import table_on_disk

MOST_COLUMNS = 2048
"""Up to so many columns XᵀX is decomposed (a few seconds, once, and 32 MB)."""

# Rows of the table with a column per example, and of the sums with one per parameter.
SLOPES, TARGETS = 0, 1


class MemorySpec(NamedTuple):
    """The rule's and the solver's numbers.

    Attributes:
        anchored: whether examples keep the targets they were last asked about (MISO).
        lr: η before the schedule; ``given`` is the user's, 1 if none.
        descent: the gradient steps' size; nan for an exact solve.
        max_steps: how many gradient steps.
        lone: whether it is one gradient step, which needs no eigenvectors.
        vectors: eigenvectors of XᵀX/n, one per row.
        values: their eigenvalues.
    """

    anchored: bool
    lr: float
    given: float
    descent: float
    max_steps: int
    lone: bool
    vectors: Array
    values: Array


class MemoryState(NamedTuple):
    """All that a run changes, in place: θ, a row of numbers per example, sums over all of them, counts."""

    theta: Array
    memory: Array
    sums: Array
    counts: Index


def runs_in_kernels(rule: Rule, inner: Inner, columns: int) -> bool:
    """Whether this rule and inner solver have a kernel here, on a matrix with so many columns."""
    if type(rule) is not Memory:
        return False
    if type(inner) is GradientDescent:
        stops = inner.stopping.gradient_tolerance > 0 or inner.stopping.relative_decrease > 0
        lone = inner.max_steps == 1 and rule.kind == "saga"
        return not stops and (lone or columns <= MOST_COLUMNS)
    return type(inner) is Exact and columns <= MOST_COLUMNS


class CompiledMemory:
    """A run of `Memory` in compiled loops."""

    def __init__(self, setup: Setup, objective: Criterion) -> None:
        rule, inner, X = setup.rule, setup.inner, setup.design
        assert isinstance(rule, Memory)
        self.setup, self.objective = setup, objective
        self.theta = setup.start.copy()
        self.counts = np.zeros(PLACES, np.int64)
        anchored = rule.kind == "miso"
        descent = inner.step_size if isinstance(inner, GradientDescent) else math.nan
        max_steps = inner.max_steps if isinstance(inner, GradientDescent) else 1
        lone = not math.isnan(descent) and max_steps == 1 and not anchored
        vectors, values = (
            (np.empty((0, 0)), np.empty(0)) if lone else _basis(X, setup.weight_decay > 0)
        )
        self._spec = MemorySpec(
            anchored,
            float(rule.resolved(setup.lr, setup.loss.smoothness)),
            1.0 if setup.lr is None else float(setup.lr),
            float(descent),
            int(max_steps),
            lone,
            vectors,
            values,
        )
        n, d = X.shape
        self._memory = np.zeros((2 if anchored else 1, n))
        self._sums = np.zeros((2 if anchored else 1, d))
        if anchored:
            self._memory[TARGETS] = X.matvec(self.theta)
            self._sums[TARGETS] = X.rmatvec(self._memory[TARGETS]) / n
        if rule.directory is not None:
            import torch

            self._memory = table_on_disk(torch.from_numpy(self._memory), rule.directory).numpy()

    @property
    def _arrays(self) -> MemoryState:
        return MemoryState(self.theta, self._memory, self._sums, self.counts)

    def advance(self, steps: Steps, path: Array) -> int:
        stretch = Stretch(steps.order, steps.ends, steps.first, steps.multipliers)
        X = matrix_of(self.setup.design)
        return int(run(X, self.objective, self._spec, stretch, self._arrays, path))

    def state(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self._arrays._asdict().items()}

    def load(self, state: dict[str, Any]) -> None:
        theta = checked_part(state, "theta", self.theta)
        memory = checked_part(state, "memory", self._memory)
        sums = checked_part(state, "sums", self._sums)
        counts = checked_part(state, "counts", self.counts)
        self._memory[:] = memory  # it may be a file
        self.theta, self._sums, self.counts = theta, sums, counts


def _basis(X: Design, complete: bool) -> tuple[Array, Array]:
    """Eigenvectors of XᵀX/n (as rows) and eigenvalues; those of 0 only if the basis is to be complete."""
    n, d = X.shape
    values, vectors = np.linalg.eigh(X.gram_primal() / n)
    rounding = values[-1] * max(n, d) * np.finfo(np.float64).eps
    kept = np.ones(d, np.bool_) if complete else values > rounding
    return np.ascontiguousarray(vectors.T[kept]), np.maximum(values[kept], 0.0)


@entry
def run(
    X: Matrix,
    objective: Criterion,
    spec: MemorySpec,
    stretch: Stretch,
    state: MemoryState,
    path: Array,
) -> int:
    """Steps made: all of the stretch, or fewer if something left the finite numbers.

    Everything is then as before the step that did it. ``path`` takes θ after each step, unless it has no rows.
    """
    order, ends, first, multipliers = stretch
    theta, memory, sums, counts = state
    d, n, decay = theta.size, memory.shape[1], objective.decay
    change, moved, v, goal = np.empty(d), np.empty(d), np.empty(d), np.empty(d)
    begin = ends[first - 1] if first > 0 else 0
    for t in range(multipliers.size):
        batch = order[begin : ends[first + t]]
        begin = ends[first + t]
        b = batch.size
        z, slope, shares = np.empty(b), np.empty(b), np.empty(b)
        rows.matvec(X, batch, theta, z)
        if not np.isfinite(_slopes(objective, batch, z, slope)):
            return t
        if spec.given * multipliers[t] != 0.0:
            eta = spec.lr * multipliers[t]
            _difference(slope, memory[SLOPES], batch, 1.0 / n, shares)
            _set(change, 0.0)
            rows.add_rmatvec(X, batch, shares, change)
            if spec.anchored:
                _difference(z, memory[TARGETS], batch, 1.0 / n, shares)
                _set(moved, 0.0)
                rows.add_rmatvec(X, batch, shares, moved)
                for j in range(d):
                    pull = (sums[TARGETS, j] + moved[j]) / eta
                    v[j] = sums[SLOPES, j] + change[j] - pull + decay * theta[j]
            else:
                for j in range(d):
                    v[j] = sums[SLOPES, j] + n / b * change[j] + decay * theta[j]
            _solve(spec, eta, decay, v, theta, goal)
            if not np.isfinite(dot(goal, goal)):
                return t
            for j in range(d):
                theta[j] = goal[j]
                sums[SLOPES, j] += change[j]
            if spec.anchored:
                for j in range(d):
                    sums[TARGETS, j] += moved[j]
                for i in range(b):
                    memory[TARGETS, batch[i]] = z[i]
            for i in range(b):
                memory[SLOPES, batch[i]] = slope[i]
            counts[INNER_STEPS] += spec.max_steps
            counts[BACKWARD_CALLS] += 1
            counts[FORM_STEPS + PRIMAL] += 1
        counts[ORACLE_CALLS] += 1
        counts[FORWARD_CALLS] += 1
        if path.shape[0] > 0:
            path[t] = theta
    return int(multipliers.size)


@loop
def _slopes(objective: Criterion, batch: Index, z: Array, slope: Array) -> float:
    """Fill in ∂ℓ_i/∂z_i; the sum of their squares."""
    squared = 0.0
    for i in range(batch.size):
        slope[i] = losses.slope(objective.loss, z[i], objective.y[batch[i]])
        squared += slope[i] * slope[i]
    return squared


@loop
def _set(a: Array, value: float) -> None:
    for j in range(a.size):
        a[j] = value


@loop
def _difference(now: Array, kept: Array, batch: Index, share: float, out: Array) -> None:
    for i in range(batch.size):
        out[i] = share * (now[i] - kept[batch[i]])


@loop
def _solve(spec: MemorySpec, eta: float, decay: float, v: Array, theta: Array, goal: Array) -> None:
    """θ where the inner solver ends, from the gradient at θ_t (without XᵀXθ_t/(nη) if anchored)."""
    for j in range(theta.size):
        goal[j] = theta[j]
    if spec.lone:
        for j in range(theta.size):
            goal[j] -= spec.descent * v[j]
        return
    for k in range(spec.values.size):
        vector, curved = spec.vectors[k], spec.values[k] / eta
        along, here = 0.0, 0.0
        for j in range(theta.size):
            along += vector[j] * v[j]
            here += vector[j] * theta[j]
        if spec.anchored:
            along += curved * here
        h, gain = curved + decay, 0.0
        if np.isnan(spec.descent):
            gain = 1.0 / h
        else:
            for _ in range(spec.max_steps):
                gain += spec.descent * (1.0 - h * gain)
        along *= gain
        for j in range(theta.size):
            goal[j] -= along * vector[j]
