"""One picture for many problems: how often a method is nearly the cheapest (performance profiles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from targetopt.lab.report.lines import Array, Line, Panel, Results, level, spent_until
from targetopt.lab.statistics import aggregates as statistics


@dataclass(frozen=True)
class Profile:
    """Share of the runs of each method that cost at most a factor of the cheapest method.

    Attributes:
        factors: where shares change, ascending; the first is 1.
        shares: for each method, its share at each factor.
        panels: how many panels the shares are averaged over.
    """

    factors: Array
    shares: dict[int, Array]
    panels: int


def profile(results: Results, members: Sequence[int], metric: str, tau: float) -> Profile | None:
    """Performance profiles of the modelled cost of reaching a panel's level.

        ρ_m(φ) = mean over panels p and seeds s of 1[c_pms ≤ φ · min_k median_s c_pks]

    where c = (oracle calls + ½ values) · τ + inner steps until
    :func:`~targetopt.lab.report.lines.level` is reached for the
    first time, no less than one oracle call, and infinite if it never is. ρ_m(1) says how often m is the
    cheapest, ρ_m(∞) how often it gets there at all.

    Only panels on which every member has ended with every seed count: shares over different panels cannot be
    compared. With fewer than two there is nothing to sum up, and the answer is ``None``.

    Reference: Dolan and Moré, Benchmarking optimization software with performance profiles, 2002.
    """
    costs = [
        cost
        for panel in results.panels
        if (cost := _costs(panel, members, metric, tau)) is not None
    ]
    seeds = max((cost.shape[1] for cost in costs), default=0)
    whole = [cost for cost in costs if cost.shape[1] == seeds]
    if len(whole) < 2:
        return None
    factors, shares = shares_of(whole)
    return Profile(factors, dict(zip(members, shares, strict=True)), len(whole))


def shares_of(costs: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Factors, and the shares of each method at them, from its costs on every panel, (methods, seeds) each.

    Example:
        >>> cheap, dear = [10.0, 10.0, 10.0], [10.0, 30.0, np.inf]
        >>> factors, shares = shares_of([np.array([cheap, dear]), np.array([dear, cheap])])
        >>> factors
        array([1., 3.])
        >>> shares[0]
        array([0.66666667, 0.83333333])
    """
    with np.errstate(invalid="ignore"):  # inf / inf: nobody got there, and nan counts as that
        ratios = np.stack([cost / statistics.quantile(cost, 0.5).min() for cost in costs], axis=-1)
    beyond = ratios[np.isfinite(ratios) & (ratios > 1)]
    factors = np.unique(np.concatenate([[1.0], beyond]))
    return factors, [
        statistics.performance_profile(method, factors, resamples=1).value for method in ratios
    ]


def _costs(panel: Panel, members: Sequence[int], metric: str, tau: float) -> Array | None:
    """Costs of reaching the panel's level, (members, seeds); ``None`` if they lack a member or a seed."""
    goal = level(panel, metric)
    lines: dict[int, Line] = {line.method: line for line in panel.lines}
    if goal is None or not set(members) <= set(lines):
        return None
    runs = [spent_until(lines[member], metric, goal) for member in members]
    if len({len(each) for each in runs}) != 1 or not len(runs[0]):
        return None
    spent = np.stack(runs)
    costs: Array = np.maximum(tau * spent[..., 0] + spent[..., 1], tau)
    return costs
