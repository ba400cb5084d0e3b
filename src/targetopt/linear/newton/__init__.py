"""The Newton rule on the full batch for linear models: no learning rate, no batch size.

``solver`` is the loop, ``objective`` what it minimises, ``subspace`` and ``search`` its step,
``metrics`` the Hessians and diagonals that turn gradients into directions, ``samples`` the rows they are of,
``choice`` which of them, ``intercepts`` the best intercept for given coefficients, ``estimates`` how far it has still
to go, ``quadratic`` the squared loss, which is one linear system, and ``tangents`` the way in which some fits begin.
"""

from targetopt.linear.newton.choice import cheapest_metric
from targetopt.linear.newton.metrics import Metric
from targetopt.linear.newton.objective import PenalisedLoss
from targetopt.linear.newton.solver import Solution, minimise

__all__ = ["Metric", "PenalisedLoss", "Solution", "cheapest_metric", "minimise"]
