"""How a fit without intercept begins where the penalty is strong: tangents, renewed row by row.

Each loss is replaced by the line of slope g_i that touches it from below. The surrogate

    q(θ) = Σ_i ω_i (g_i z_i − ℓ*_i(g_i)) + ½λ‖θ‖²,        ℓ*_i(g) = sup_z gz − ℓ_i(z),

lies below F, so its minimum, at θ = −Σ_i ω_i g_i x_i/λ, is a lower bound of min F. A visit to row i asks
for the slope of its loss at this θ and moves g_i towards it,

    g_i ← g_i + (∂ℓ_i(x_i·θ) − g_i) / (1 + h_i ω_i‖x_i‖²/λ),

with h_i the largest curvature of ℓ_i between the two slopes: never so far that the bound would fall. θ
follows. This is dual coordinate ascent. An epoch reads X once for z and once for θ, like a Newton step,
but each row sees what the rows before it changed; where the denominators are near one, an epoch is
worth two or three such steps. An intercept has no λ. Giving it one for these epochs was tried: it made some fits
faster and others slower by as much, so it is left alone.

Reference:
    Shalev-Shwartz, Zhang: "Stochastic Dual Coordinate Ascent Methods for Regularized Loss
    Minimization", JMLR 14, 2013.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.linear import backend
from targetopt.linear.newton.objective import Array, PenalisedLoss, is_sparse
from targetopt.losses import Logistic

MOST_DAMPING = 1.0  # mean of L ω_i‖x_i‖²/λ up to which a visit renews half of a slope, or more
LEAST_CONDITION = (
    10.0  # L‖x‖²/λ on average, below which a few steps end the fit, and an epoch costs two of them
)
SLOW = 0.3  # an epoch that leaves more than this part of the distance is worth no more than a step
RUN = 8  # neighbouring rows visited together, so that memory is read ahead
LEAST_ENTRIES = 100_000  # below, any fit takes milliseconds, and loading numba takes more


class Start(NamedTuple):
    """θ, a lower bound of min F, and the epochs they took."""

    theta: Array
    bound: float
    epochs: int


def approach(
    objective: PenalisedLoss, theta: Array, *, tol: float, max_epochs: int
) -> Start | None:
    """Renew tangents until θ is within about ``tol``·F of the minimum, or epochs become slow.

    ``None`` if the problem is not of the kind this is for.
    """
    X, loss, weights = objective.X, objective.loss.loss, objective.weights
    if type(loss) is not Logistic or not _suits(objective, theta, loss.smoothness):
        return None  # a subclass may be another loss
    from targetopt.linear.kernels.tangents import renew_slopes

    penalty = float(objective.ridge[0])
    labels = loss.y.numpy()
    theta, slopes = np.zeros_like(theta), np.zeros_like(labels)
    random = np.random.default_rng(0)
    bound, rise, rate = 0.0, np.inf, 0.5  # lines of slope zero: ℓ* = 0, θ = 0
    epochs = 0
    while epochs < max_epochs:
        epochs += 1
        order = _order(slopes.size, random)
        renew_slopes(X.indptr, X.indices, X.data, labels, weights / penalty, order, slopes, theta)
        conjugates = loss.conjugate(torch.from_numpy(slopes)).numpy()
        now = -float(weights @ conjugates) - 0.5 * penalty * float(theta @ theta)
        before, rise, bound = rise, now - bound, now
        if not 0 < rise <= SLOW * before:
            break
        # What is still to come is a geometric series, as in the Newton loop; and F is farther from
        # the minimum than the bound, up to twice as far.
        rate = max(rise / before, rate * rate)
        if 3.0 * rise * rate / (1.0 - rate) <= tol * bound:
            break
    return Start(theta, bound, epochs)


def _suits(objective: PenalisedLoss, theta: Array, smoothness: float) -> bool:
    """A cold start on large sparse data, one strong penalty on everything, and numba to run it."""
    X, ridge = objective.X, objective.ridge
    if not is_sparse(X) or X.nnz < LEAST_ENTRIES or X.indices.dtype != np.int32:
        return False
    if objective.intercept or theta.any() or np.any(objective.center) or (ridge != ridge[0]).any():
        return False
    square = float(X.data @ X.data) / X.shape[0]
    weight = float(objective.weights @ objective.weights)  # the mean, rows counted by weight
    curvature = smoothness * square
    suited = (
        weight * curvature < MOST_DAMPING * ridge[0] < MOST_DAMPING * curvature / LEAST_CONDITION
    )
    return bool(suited) and backend.name() == "numba"


def _order(rows: int, random: np.random.Generator) -> NDArray[np.int64]:
    """All rows in runs of neighbours, the runs in random order: in a fixed one epochs gain little."""
    starts = RUN * random.permutation(-(-rows // RUN))
    order = (starts[:, None] + np.arange(RUN)).ravel()
    return order[order < rows]
