"""How fast the rule `Memory` converges on linear models: linear rates, with their potentials.

Both statements are for z = Xθ with each loss convex, L-smooth and μ-strongly convex in its target, for
batches of b of the n examples, each drawn uniformly and independently of the last, for the exact inner
solve, and for any weight decay λ ≥ 0. Norms are the mean ones of the targets, ‖z‖² = (1/n) Σ z_i².

**MISO.** Let s_i = a_i − ηg_i be what example i asks for, and P the exact inner solve, z_t = P(s), which
does not expand. The map z ↦ z − ηg(z) contracts each target by 1 − ημ if η ≤ 1/L, and the batch's s_i are
replaced by its values at z_t. So S = ‖s − s*‖² satisfies E S⁺ ≤ (1 − b/n) S + (b/n)(1 − ημ)² S.

**SAGA.** In coordinates in which XᵀX/n is the identity, the step is w − ηv, followed by a proximal step for
λ, with E v = ∇f(w), and example i is L·h_i-smooth with the leverage h_i = x_iᵀ(XᵀX/n)⁻¹x_i. With
σ = (n − b)/(b(n − 1)), D = (1/n) Σ h_i (g_i − g_i*)² and the Bregman distance Δ of f,

    E‖v − ∇f*‖² ≤ 4(L + σLh)Δ + 2σD         E D⁺ ≤ (1 − b/n) D + (b/n) 2LhΔ,       h = max h_i,

so for η ≤ 1/(2L + 6σLh) the potential Ψ = ‖z − z*‖² + (4η²σn/b) D contracts by 1 − min(ημ, b/(2n)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from targetopt.theory.conditions import require
from targetopt.types import BadArgument

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MemoryRate:
    """A linear rate of `Memory`, and the potential that it is about.

    Attributes:
        factor: the potential's expectation is at most so many times its value before the step.
        step: η.
        weight: of the table's error D in SAGA's potential; 0 for MISO, whose potential is S.
    """

    factor: float
    step: float
    weight: float = 0.0


def leverages(X: ArrayLike) -> Array:
    """h_i = x_iᵀ(XᵀX/n)⁺x_i: how much one example can move its own target. Their mean is the rank of X.

    Args:
        X: the examples, dense, shape ``(n, d)``.

    Example:
        >>> leverages([[1.0], [1.0], [2.0]])
        array([0.5, 0.5, 2. ])
    """
    A = np.asarray(X, dtype=np.float64)
    if A.ndim != 2:
        raise BadArgument(f"X must have two axes (examples, features); got shape {A.shape}")
    u, s, _ = np.linalg.svd(A, full_matrices=False)
    kept = s > s[0] * max(A.shape) * np.finfo(np.float64).eps
    h: Array = A.shape[0] * np.square(u[:, kept]).sum(axis=1)
    return h


def saga_rate(
    n: int, batch_size: int, leverage: float, *, L: float, mu: float, step: float | None = None
) -> MemoryRate:
    """E Ψ_{t+1} ≤ factor · E Ψ_t for ``Memory("saga")`` with η = ``step``, 1/(2L + 6σLh) if it is None.

    Args:
        n: examples there are.
        batch_size: b.
        leverage: h, the largest of `leverages`.
        L: smoothness of one loss in its target.
        mu: strong convexity of each loss in its target.
        step: η.

    Example:
        >>> saga_rate(
        ...     1000, 1000, leverage=20.0, L=1.0, mu=1.0
        ... ).factor  # the full batch at η = 1/(2L)
        0.5
        >>> round(1 - saga_rate(1000, 100, leverage=20.0, L=1.0, mu=1.0).factor, 6)  # b/(2n)
        0.05
    """
    sigma = (n - batch_size) / (batch_size * max(1, n - 1))
    largest = 1.0 / (2.0 * L + 6.0 * sigma * L * leverage)
    eta = largest if step is None else step
    require(
        "the rate of SAGA",
        {
            f"1 ≤ b ≤ n (got b = {batch_size}, n = {n})": 1 <= batch_size <= n,
            f"L ≥ μ ≥ 0 and L > 0 (got L = {L}, μ = {mu})": L >= mu >= 0 and L > 0,
            f"h > 0 (got {leverage})": leverage > 0,
            f"0 < η ≤ 1/(2L + 6σLh) = {largest:.3g} (got {eta})": 0 < eta <= largest * (1 + 1e-12),
        },
    )
    share = batch_size / n
    table = 0.5 * share if sigma > 0 else 1.0
    return MemoryRate(1.0 - min(eta * mu, table), eta, 4.0 * eta * eta * sigma / share)


def miso_rate(
    n: int, batch_size: int, *, L: float, mu: float, step: float | None = None
) -> MemoryRate:
    """E S_{t+1} ≤ factor · E S_t for ``Memory("miso")`` with η = ``step``, 1/L if it is None.

    Args:
        n: examples there are.
        batch_size: b.
        L: smoothness of one loss in its target.
        mu: strong convexity of each loss in its target.
        step: η.

    Example:
        >>> miso_rate(1000, 100, L=1.0, mu=1.0).factor  # one epoch of them leaves (1 − b/n)^(n/b)
        0.9
    """
    eta = 1.0 / L if step is None else step
    require(
        "the rate of MISO",
        {
            f"1 ≤ b ≤ n (got b = {batch_size}, n = {n})": 1 <= batch_size <= n,
            f"L ≥ μ ≥ 0 and L > 0 (got L = {L}, μ = {mu})": L >= mu >= 0 and L > 0,
            f"0 < η ≤ 1/L = {1 / L:.3g} (got {eta})": 0 < eta <= (1 + 1e-12) / L,
        },
    )
    return MemoryRate(1.0 - batch_size / n * (1.0 - (1.0 - eta * mu) ** 2), eta)
