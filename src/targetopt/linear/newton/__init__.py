"""The Newton rule on the full batch for linear models: no learning rate, no batch size.

``solver`` is the loop, ``objective`` what it minimises, ``subspace`` and ``search`` its step,
``metrics`` the Hessians and diagonals that turn gradients into directions, and ``tangents`` the way in
which some fits begin.
"""

from targetopt.linear.newton.objective import PenalisedLoss
from targetopt.linear.newton.solver import Solution, minimise

__all__ = ["PenalisedLoss", "Solution", "minimise"]
