"""Which metric a fit ends with, and whether it begins without a factor.

How many steps a fit takes without a factor depends on the spectrum and cannot be known before. So where a factor costs
more than some of a step, a fit begins without one, and as soon as the steps still to be made at the rate seen would
cost more than a fit with the factor, it goes on with that.
"""

from __future__ import annotations

import math

import numpy as np

from targetopt.linear.newton.gram import dense_cost, inverse
from targetopt.linear.newton.metrics import (
    Diagonal,
    Dual,
    Flat,
    Joint,
    Metric,
    Primal,
    step_cost,
)
from targetopt.linear.newton.objective import PenalisedLoss, Point

WORTH_FACTORING = 100  # an exact metric may cost this many steps
WORTH_TRYING = 0.3  # a factor that costs so many steps is not made before some were tried without
ENTANGLED = 0.5  # deviation of the eigenvalues up to which steps without a factor are quick
RENEWALS, STEPS_WITH_FACTOR = 3, 5  # of a fit with a factor; fewer renewals go with more steps
LARGEST_FACTOR = 4096  # order of the largest matrix factored, 128 MB


def cheapest_metric(objective: PenalisedLoss) -> Metric:
    """The first exact Hessian whose factor costs no more than some steps, else a diagonal."""
    if objective.ridge.ndim == 2 and _worth_factoring(Joint, objective, objective.ridge.size):
        return Joint(objective)
    side = Dual if Dual.possible(objective) else Primal
    if _worth_factoring(side, objective, min(objective.weights.size, objective.ridge.shape[0])):
        return side(objective)
    return Diagonal(objective)


def without_factor(objective: PenalisedLoss) -> Metric:
    """A metric without a factor: the penalty alone where rows are far fewer than columns, else a diagonal."""
    rows, columns = objective.weights.size, objective.ridge.shape[0]
    flat = objective.ridge.ndim == 1 and 2 * rows <= columns and Dual.possible(objective)
    return Flat(objective) if flat else Diagonal(objective)


def worth_trying_without(metric: Metric, start: Point) -> bool:
    """Whether the factor costs so much that a few steps without it, which may be enough, cost little beside it.

    Where a fit with the factor begins with samples, which cost little, they are not tried if columns are entangled.
    """
    objective, little = metric.objective, WORTH_TRYING * metric.step
    if isinstance(metric, Diagonal) or metric.price <= little:
        return False
    rows, columns = _looked_at(objective), objective.X.shape[1]
    if metric.samples and metric.far_price + dense_cost(objective, rows, columns) <= little:
        return entanglement(objective, start) < ENTANGLED
    return True


def cost_with(metric: Metric) -> float:
    """What a fit with the factor costs, about."""
    again = metric.far_price if metric.samples else metric.price_again
    return metric.price + (RENEWALS - 1) * again + STEPS_WITH_FACTOR * metric.step


def _worth_factoring(kind: type[Metric], objective: PenalisedLoss, order: int) -> bool:
    worth = kind.cost(objective) <= WORTH_FACTORING * step_cost(objective)
    return order <= LARGEST_FACTOR and worth


def entanglement(objective: PenalisedLoss, start: Point) -> float:
    """How far the eigenvalues of a Hessian whose diagonal is scaled to one are from 1: their deviation.

    From some of the rows, with the losses' mean curvature at ``start``; the noise of so few rows is taken away.
    """
    columns = objective.X.shape[1]
    some = slice(None, None, max(1, objective.weights.size // _looked_at(objective)))
    X = objective.X[some].toarray() if objective.sparse else objective.X[some]
    weights = objective.weights[some]
    total = float(weights.sum())
    if not total > 0:
        return 0.0
    curvature = float(objective.loss.diagonal(start.at.metric).mean())
    ridge = objective.ridge.reshape(len(objective.ridge), -1)[:columns, 0]
    H = curvature / total * (X.T * weights) @ X + np.diag(ridge)
    scale = np.sqrt(inverse(H.diagonal()))
    away = np.tril(H * scale * scale[:, None], -1)
    square = 2.0 * float(np.vdot(away, away)) / columns - columns / weights.size
    return math.sqrt(max(square, 0.0))


def _looked_at(objective: PenalisedLoss) -> int:
    return max(1024, 4 * int(objective.X.shape[1]))
