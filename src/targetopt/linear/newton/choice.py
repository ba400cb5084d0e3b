"""Which metric a fit ends with, and whether it begins without a factor.

How many steps a fit takes without a factor depends on the spectrum and cannot be known before. So where a factor costs
more than some of a step, a fit begins without one, and as soon as the steps still to be made at the rate seen would
cost more than a fit with the factor, it goes on with that.
"""

from __future__ import annotations

from targetopt.linear.newton.metrics import (
    Diagonal,
    Dual,
    Flat,
    Joint,
    Metric,
    Primal,
    step_cost,
)
from targetopt.linear.newton.objective import PenalisedLoss

WORTH_FACTORING = 100  # an exact metric may cost this many steps
WORTH_TRYING = 0.3  # a factor that costs so many steps is not made before some were tried without
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
    """A metric without a factor: the penalty alone where there are fewer rows than columns, else a diagonal."""
    flat = objective.ridge.ndim == 1 and Dual.possible(objective)
    return Flat(objective) if flat else Diagonal(objective)


def worth_trying_without(metric: Metric) -> bool:
    """Whether the factor costs so much that a few steps without it, which may be enough, cost little beside it."""
    return not isinstance(metric, Diagonal) and metric.price > WORTH_TRYING * metric.step


def cost_with(metric: Metric) -> float:
    """What a fit with the factor costs, about."""
    return metric.price + (RENEWALS - 1) * metric.price_again + STEPS_WITH_FACTOR * metric.step


def _worth_factoring(kind: type[Metric], objective: PenalisedLoss, order: int) -> bool:
    worth = kind.cost(objective) <= WORTH_FACTORING * step_cost(objective)
    return order <= LARGEST_FACTOR and worth
