"""Curves of several seeds on one grid, so that statistics can be taken at every point of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from targetopt.lab.statistics.aggregates import (
    Array,
    Better,
    Curve,
    Statistic,
    bootstrap,
    iqm,
    worst,
)
from targetopt.types import BadArgument


def align(
    xs: Sequence[ArrayLike],
    ys: Sequence[ArrayLike],
    grid: ArrayLike | None = None,
    *,
    diverged: Sequence[bool] | None = None,
    better: Better = "lower",
) -> tuple[Array, Array]:
    """Curves of several runs on one grid: at each grid point, the last value recorded up to there.

    Nothing is interpolated: a value is known only when it is recorded. A run that has ended keeps
    its last value, unless it diverged: then it is worst possible (±inf) after its last record.

    Args:
        xs: for each run the recorded positions (oracle calls, seconds, …), never decreasing.
        ys: for each run the recorded values; nan counts as diverged at that record.
        grid: increasing positions; by default every recorded position from where all runs have
            begun. A grid that begins before some run's first record is refused.
        diverged: which runs ended by diverging; by default none (besides those with nan).
        better: whether lower or higher is better.

    Returns:
        ``(grid, values)`` with values of shape ``(points, runs)``.

    Example:
        >>> grid, values = align([[0, 2], [0, 1, 2]], [[9.0, 5.0], [8.0, 7.0, 6.0]])
        >>> grid, values.T
        (array([0., 1., 2.]), array([[9., 9., 5.],
               [8., 7., 6.]]))
    """
    if not len(xs) or len(xs) != len(ys):
        raise BadArgument(
            f"xs and ys must hold the same runs, one or more; got {len(xs)}, {len(ys)}"
        )
    ended = [False] * len(xs) if diverged is None else list(diverged)
    if len(ended) != len(xs):
        raise BadArgument(
            f"diverged needs one yes or no for each of {len(xs)} runs; got {len(ended)}"
        )
    positions = [_checked_positions(i, x, y) for i, (x, y) in enumerate(zip(xs, ys, strict=True))]
    begin = max(p[0] for p in positions)
    if grid is None:
        points = np.unique(np.concatenate(positions))
        points = points[points >= begin]
    else:
        points = np.asarray(grid, dtype=np.float64)
        if points.ndim != 1 or not points.size or not (np.diff(points) > 0).all():
            raise BadArgument("grid must be a non-empty list of increasing positions")
        if not points[0] >= begin:
            late = int(np.argmax([p[0] for p in positions]))
            raise BadArgument(
                f"grid begins at {points[0]:g}, before run {late} recorded anything (its first "
                f"record is at {begin:g}). Begin the grid there, or record every run's start."
            )
    columns = np.empty((points.size, len(xs)))
    lost = worst(better)
    for run, (p, y) in enumerate(zip(positions, ys, strict=True)):
        columns[:, run] = np.asarray(y, dtype=np.float64)[np.searchsorted(p, points, "right") - 1]
        if ended[run]:
            columns[points > p[-1], run] = lost
    return points, np.where(np.isnan(columns), lost, columns)


def aggregate_curves(
    xs: Sequence[ArrayLike],
    ys: Sequence[ArrayLike],
    grid: ArrayLike | None = None,
    statistic: Statistic = iqm,
    *,
    diverged: Sequence[bool] | None = None,
    better: Better = "lower",
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int | np.random.Generator = 0,
) -> Curve:
    """One curve with a band from several seeds' curves: :func:`align`, then :func:`bootstrap`.

    Example:
        >>> from targetopt.lab.statistics.aggregates import mean
        >>> curve = aggregate_curves([[0, 1], [0, 1]], [[4.0, 2.0], [6.0, 2.0]], statistic=mean)
        >>> curve.grid, curve.value
        (array([0., 1.]), array([5., 2.]))
    """
    points, values = align(xs, ys, grid, diverged=diverged, better=better)
    found = bootstrap(
        values[..., None],
        statistic,
        better=better,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    return Curve(found.value, found.low, found.high, confidence, found.runs, points)


def _checked_positions(run: int, x: ArrayLike, y: ArrayLike) -> Array:
    positions, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if positions.ndim != 1 or not positions.size or positions.shape != values.shape:
        raise BadArgument(
            f"run {run}: positions and values must be equally long lists, not empty; got shapes "
            f"{positions.shape} and {values.shape}"
        )
    if not np.isfinite(positions).all() or (np.diff(positions) < 0).any():
        raise BadArgument(f"run {run}: positions must be finite and never decrease")
    return positions
