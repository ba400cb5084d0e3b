"""Runs of the compiled driver as the theory wants them: every iterate, batches drawn independently.

`exact_problem.simulate` replays SSO from a table of matrices; here the method itself runs, inner solver
and all, and the distances and projection errors are read off its iterates.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike

from targetopt import linear, losses
from targetopt.inner import Inner
from targetopt.rules import GradientStep
from targetopt.theory.exact_problem import Array, ExactProblem, Rows, Runs, unbiased_steps
from targetopt.types import BadArgument


def drive(
    problem: ExactProblem,
    batch_size: int,
    inner: Inner,
    etas: ArrayLike,
    *,
    start: ArrayLike,
    seeds: int,
    first_seed: int = 0,
) -> Runs:
    """SSO by `targetopt.linear.Run` with ``sampling="independent"``, once per seed.

    ε_{t+1} = ‖z_{t+1} − z̄_{t+1}‖ is exact: z̄ is the minimiser of q̃, the surrogate with the batch's
    gradient and the regulariser on all data, from the same z_t.

    Args:
        problem: what is minimised; its loss must be one that `targetopt.linear` has kernels for.
        batch_size: b.
        inner: any inner solver of `targetopt.linear.fit`.
        etas: η_1 … η_T.
        start: θ_1.
        seeds: number of runs, with the seeds ``first_seed``, ``first_seed + 1``, ….

    Example:
        >>> import targetopt as to
        >>> X = np.array([[1.0], [2.0]])
        >>> problem = ExactProblem(X, losses.Squared(torch.tensor([1.0, -0.5]).double()))
        >>> runs = drive(problem, 2, to.Exact(), [0.5, 0.5], start=[1.0], seeds=1)
        >>> runs.theta.round(12), runs.projection_error.max() < 1e-12  # full batch: no error
        (array([[0.25]]), np.True_)
    """
    multipliers = np.atleast_1d(np.asarray(etas, dtype=np.float64))
    if seeds < 1:
        raise BadArgument(f"seeds={seeds} must be at least 1")
    total = len(multipliers)
    run = linear.Run(
        problem.X,
        _labels(problem.loss),
        loss=lambda _: problem.loss,
        rule=GradientStep(),
        inner=inner,
        lr=1.0,
        schedule=lambda t: float(multipliers[t - 1]),
        batch_size=batch_size,
        sampling="independent",
        start=start,
    )
    path = np.empty((seeds, total + 1, problem.d))
    path[:, 0] = run.theta
    rows = np.empty((seeds, total, batch_size), dtype=np.intp)
    for k in range(seeds):
        run.restart(first_seed + k)
        rows[k] = _drawn(run.batches, total)
        if not run.advance(total, path=path[k, 1:]):
            raise BadArgument(f"seed {first_seed + k} diverged at step {run.steps}: etas too large")
    return _measured(problem, path, rows, multipliers)


def _drawn(batches: linear.Batches, total: int) -> Rows:
    """The rows of the first steps, shape (total, b): independent batches all have b rows."""
    pieces, found = [], 0
    while found < total:
        order, ends = batches.stretch(found, total - found)
        pieces.append(order)
        found += len(ends)
    return np.concatenate(pieces).reshape(total, -1)


def _measured(problem: ExactProblem, path: Array, rows: Rows, etas: Array) -> Runs:
    X, per_mean = problem.X, 1 / math.sqrt(problem.n)
    z = path @ X.T
    answers = np.take_along_axis(problem.gradient(z[:, :-1]), rows, axis=2)
    batches = rows.reshape(-1, rows.shape[2])
    ideal = np.einsum("kdb,kb->kd", unbiased_steps(X, batches), answers.reshape(batches.shape))
    landing = z[:, :-1] - etas[:, None] * (ideal.reshape(path[:, 1:].shape) @ X.T)
    return Runs(
        distance=np.linalg.norm(z - problem.solution, axis=2).T * per_mean,
        projection_error=np.linalg.norm(z[:, 1:] - landing, axis=2).T * per_mean,
        theta=path[:, -1],
    )


def _labels(loss: losses.Loss) -> Array:
    labels = getattr(loss, "y", None)
    if not isinstance(labels, torch.Tensor):
        raise BadArgument(f"the loss must have labels y; {type(loss).__name__} has none")
    return np.asarray(labels.numpy(), dtype=np.float64)
