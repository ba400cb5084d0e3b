"""Reference optima of linear problems: inf h to about 1e-12 relative, computed once and cached.

Three ways, by what the problem is:

* squared loss: least squares by orthogonal factorisation, or (sparse) conjugate gradients;
* logistic and softmax loss on data that a linear model separates: inf h = 0, attained nowhere. The
  certificate is a θ whose every margin is positive by more than its rounding error;
* otherwise the full-batch Newton solver of :mod:`targetopt.linear.newton`. The gap to the infimum is
  bounded by ‖∇h‖²/(2λ) where weight_decay > 0, and elsewhere it is the one that the solver estimates.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from targetopt.arrays import DamagedFile, read_arrays
from targetopt.files import write_atomically
from targetopt.lab.data.files import FileLock, user_cache
from targetopt.lab.problems.base import Array
from targetopt.lab.problems.optima.least_squares import least_squares
from targetopt.lab.problems.optima.objective import LinearObjective
from targetopt.linear.newton import minimise
from targetopt.losses import Squared
from targetopt.reference import Reference

if TYPE_CHECKING:
    from targetopt.lab.problems.linear import LinearProblem

_FORMAT = 1  # raise when the meaning of an entry changes
_RELATIVE_GAP = 1e-15  # below the 1e-12 that is promised, above what float64 can tell apart
_STEPS = (6, 12, 24, 100, 20_000)  # of the solver; between them data may turn out to be separable


def cached_reference(problem: LinearProblem) -> Reference:
    """The reference of a problem, from the user cache where this machine has computed it before.

    Entries are named after the problem's fingerprint. An entry is believed only if its θ still has
    the value (or the margins) that it claims; any number of processes may ask at once: one
    computes, the others wait.
    """
    entry = user_cache() / "references" / f"{problem.fingerprint}-v{_FORMAT}.npz"
    objective = LinearObjective(problem)
    stored = _read(entry, objective)
    if stored is not None:
        return stored
    lock = FileLock(entry.with_suffix(".lock"))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:  # a cache that cannot be written only costs time
        return compute_reference(objective)
    try:
        reference = _read(entry, objective)  # another process may have been first
        if reference is None:
            reference = compute_reference(objective)
            _write(entry, reference)
        return reference
    finally:
        lock.release()


def _write(entry: Path, reference: Reference) -> None:
    def write(file: BinaryIO) -> None:
        np.savez(
            file,
            value=reference.value,
            gap=reference.gap,
            attained=reference.attained,
            certificate=reference.certificate,
            parameters=np.asarray(reference.parameters),
        )

    with contextlib.suppress(OSError):
        write_atomically(entry, write)


def _read(entry: Path, objective: LinearObjective) -> Reference | None:
    try:
        stored = read_arrays(entry, ["value", "gap", "attained", "certificate", "parameters"])
        reference = Reference(
            value=float(stored["value"]),
            gap=float(stored["gap"]),
            attained=bool(stored["attained"]),
            certificate=str(stored["certificate"]),
            parameters=stored["parameters"],
        )
    except (OSError, DamagedFile, ValueError, TypeError):
        return None
    theta, start = stored["parameters"], objective.start()
    if (theta.shape, theta.dtype) != (start.shape, start.dtype) or not np.isfinite(theta).all():
        return None
    if not reference.attained:
        return reference if objective.separating_margin(theta) > 0 else None
    same = np.isclose(objective.value(theta), reference.value, rtol=1e-13, atol=1e-300)
    return reference if same else None


def compute_reference(objective: LinearObjective) -> Reference:
    """The reference, computed here and now."""
    if isinstance(objective.loss, Squared):
        theta, how = least_squares(objective.design, objective.labels, objective.weight_decay)
        value = objective.value(theta)
        if how is None:
            return Reference(value, value, True, "not resolved: between 0 and this value", theta)
        return Reference(value, _least_squares_gap(objective, theta), True, how, theta)
    return _newton(objective)


def _least_squares_gap(objective: LinearObjective, theta: Array) -> float:
    """How far h(θ) is above its minimum: a bound, or what least squares on the residuals still gain."""
    if objective.weight_decay > 0:
        return objective.proven_gap(theta)
    X = objective.design
    correction, _ = least_squares(X, objective.labels - X @ theta, 0.0)
    return float(np.sum((X @ correction) ** 2)) / (2 * objective.n)


def _newton(objective: LinearObjective) -> Reference:
    """The full-batch Newton solver from θ = 0, to rounding, unless a separating θ is found before."""
    problem, theta = objective.newton_objective(), objective.start()
    for steps in _STEPS:
        found = minimise(problem, theta, tol=_RELATIVE_GAP, max_iter=steps)
        theta = found.theta
        margin = objective.separating_margin(theta) if objective.weight_decay == 0 else -np.inf
        if margin > 0:
            why = f"separable: a θ with all margins above {margin:.3g}, so inf h = 0"
            return Reference(0.0, 0.0, False, why, theta)
        if found.converged or found.n_iter < steps:
            break
    gap = objective.proven_gap(theta)
    bound = "‖∇h‖²/(2λ)"
    if not np.isfinite(gap):
        gap, bound = found.gap, "the decreases or the Newton decrement at the end"
    return Reference(objective.value(theta), gap, True, f"Newton's method; gap by {bound}", theta)
