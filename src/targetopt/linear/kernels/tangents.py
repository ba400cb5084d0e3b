"""One epoch of :mod:`targetopt.linear.newton.tangents`, for the logistic loss and CSR."""

from __future__ import annotations

import numpy as np

from targetopt.linear.kernels.compiler.jit import entry
from targetopt.linear.kernels.data.csr import Array, Columns, Index


@entry
def renew_slopes(
    indptr: Columns,
    indices: Columns,
    data: Array,
    y: Array,
    shares: Array,
    order: Index,
    slopes: Array,
    theta: Array,
) -> None:
    """Visit the rows in this ``order``; ``shares`` are ω_i/λ. Changes ``slopes`` and ``theta``."""
    for i in order:
        values, columns = data[indptr[i] : indptr[i + 1]], indices[indptr[i] : indptr[i + 1]]
        z, square = 0.0, 0.0
        for j in range(values.size):
            z += values[j] * theta[np.uint32(columns[j])]
            square += values[j] * values[j]
        # |slope| is the probability p of the other label; the curvature p(1 − p) is largest at ½.
        old, new = abs(slopes[i]), 1.0 / (1.0 + np.exp(y[i] * z))
        curvature = 0.25
        if (old - 0.5) * (new - 0.5) > 0.0:
            curvature = max(old * (1.0 - old), new * (1.0 - new))
        change = -y[i] * (new - old) / (1.0 + curvature * shares[i] * square)
        slopes[i] += change
        push = -shares[i] * change
        for j in range(values.size):
            theta[np.uint32(columns[j])] += push * values[j]
