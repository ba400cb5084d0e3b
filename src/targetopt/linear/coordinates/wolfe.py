"""L-BFGS's line-search where the objective along the line is a known parabola.

One definition for numpy and for kernels, which compile it as it stands.
"""

from __future__ import annotations

import math

from targetopt.inner import LBFGS

SUFFICIENT, CURVATURE = LBFGS.SUFFICIENT, LBFGS.CURVATURE


def wolfe(slope: float, bend: float, alpha: float, trials: int) -> float:
    """The step `targetopt.LBFGS` finds on a line where q is ``α·slope + ½α²·bend``; 0 if none."""
    low, high, best = 0.0, math.inf, 0.0
    for _ in range(trials):
        change = alpha * slope + 0.5 * alpha * alpha * bend
        if change <= SUFFICIENT * alpha * slope:
            best = alpha
            new_slope = slope + alpha * bend
            if new_slope >= CURVATURE * slope:
                return best
            low = alpha
            if high == math.inf:
                grown = low * slope / (slope - new_slope) if new_slope != slope else 2 * low
                alpha = min(max(grown, 1.5 * low), 10 * low)
            else:
                alpha = 0.5 * (low + high)
        else:
            high = alpha
            fitted = -0.5 * slope * alpha * alpha / (change - slope * alpha)
            if low == 0.0 and 0.1 * high <= fitted <= 0.5 * high:
                alpha = fitted
            elif low > 0.0:
                alpha = low + 0.5 * (high - low)
            else:
                alpha = 0.2 * high
    return best
