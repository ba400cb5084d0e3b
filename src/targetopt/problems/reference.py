"""Reference optima of linear problems: inf h to about 1e-12 relative, computed once and cached.

Three ways, by what the problem is:

* squared loss: least squares by orthogonal factorisation, or (sparse) conjugate gradients;
* logistic and softmax loss on data that a linear model separates: inf h = 0, attained nowhere. The
  certificate is a θ whose every margin is positive by more than its rounding error;
* otherwise Newton's method. The gap to the infimum is bounded by ‖∇h‖²/(2 l2) where l2 > 0, and
  estimated by half the Newton decrement, ½ gᵀH⁻¹g, where l2 = 0.
"""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from targetopt.losses import Squared
from targetopt.problems.base import Reference
from targetopt.problems.data.files import FileLock, user_cache, write_atomically
from targetopt.problems.least_squares import least_squares
from targetopt.problems.objective import LinearObjective

if TYPE_CHECKING:
    from targetopt.problems.linear import LinearProblem

_FORMAT = 1  # raise when the meaning of an entry changes
_MAX_STEPS = 100
_RELATIVE_GAP = 1e-15  # below the 1e-12 that is promised, above what float64 can tell apart


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
        with entry.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            reference = Reference(
                value=float(stored["value"]),
                gap=float(stored["gap"]),
                attained=bool(stored["attained"]),
                certificate=str(stored["certificate"]),
                parameters=stored["parameters"],
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    theta = reference.parameters
    if theta is None or theta.shape != objective.start().shape:
        return None
    if not reference.attained:
        return reference if objective.separating_margin(theta) > 0 else None
    same = np.isclose(objective.value(theta), reference.value, rtol=1e-13, atol=1e-300)
    return reference if same else None


def compute_reference(objective: LinearObjective) -> Reference:
    """The reference, computed here and now."""
    if isinstance(objective.loss, Squared):
        theta, how = least_squares(objective.design, objective.labels, objective.l2)
        value = objective.value(theta)
        if how is None:
            return Reference(value, value, True, "not resolved: between 0 and this value", theta)
        return Reference(value, objective.gap(theta), True, how, theta)
    return _newton(objective)


def _newton(objective: LinearObjective) -> Reference:
    """Damped Newton from θ = 0, stopped by a separating θ or by a gap that float64 cannot resolve."""
    theta = objective.start()
    value = objective.value(theta)
    decrement = best = np.inf
    for _ in range(_MAX_STEPS):
        margin = objective.separating_margin(theta) if objective.l2 == 0 else -np.inf
        if margin > 0:
            why = f"separable: a θ with all margins above {margin:.3g}, so inf h = 0"
            return Reference(0.0, 0.0, False, why, theta)
        gradient = objective.gradient(theta)
        # rough solves suffice far away; ever better ones make the convergence superlinear
        tolerance = min(max(decrement / value, 1e-8), 0.1)
        step = -objective.newton_direction(theta, gradient, tolerance)
        decrement = -float(np.vdot(gradient, step))
        resolved = decrement <= _RELATIVE_GAP * value
        if resolved or (decrement < 1e-9 * value and decrement > 0.5 * best):
            break  # as near as float64 goes
        best = min(best, decrement)
        scale = 1.0
        # near the optimum differences of h drown in rounding, and full steps are right
        while decrement > 1e-9 * value:
            if objective.value(theta + scale * step) <= value - 1e-4 * scale * decrement:
                break
            scale *= 0.5
        theta = theta + scale * step
        value = objective.value(theta)
    gap = objective.gap(theta)
    bound = "‖∇h‖²/(2 l2)" if objective.l2 > 0 else "half the Newton decrement"
    return Reference(value, gap, True, f"Newton's method; gap by {bound}", theta)
