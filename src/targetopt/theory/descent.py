"""How fast full batches converge if every inner loop ends by the relative-error test.

Let η ≤ 1/L, so that q_t is an upper bound of the loss ℓ that touches it at z_t. Its smallest value over free
targets is ℓ(z_t) − (η/2)‖g_t‖². An inner loop that ends within the share α of that (reason
``"relative-error"``) has

    ℓ(z_{t+1}) ≤ q_t(z_{t+1}) ≤ ℓ(z_t) − (1 − α)(η/2)‖g_t‖²,

and if the loss is μ-strongly convex in its targets, ‖g_t‖² ≥ 2μ(ℓ(z_t) − ℓ*). Nothing is assumed of the model
but that its inner loop got there.
"""

from __future__ import annotations

from targetopt.theory.conditions import require


def relative_error_rate(share: float, *, L: float, mu: float, step: float | None = None) -> float:
    """ℓ(z_{t+1}) − ℓ* ≤ factor · (ℓ(z_t) − ℓ*), factor = 1 − (1 − α)ημ: full batches, no weight decay.

    Args:
        share: α, the ``relative_error`` of `Stopping`.
        L: smoothness of the loss in its targets.
        mu: its strong convexity (or the constant of its Polyak–Łojasiewicz inequality).
        step: η; 1/L if it is None.

    Example:
        >>> relative_error_rate(0.5, L=1.0, mu=1.0)
        0.5

    Reference: D'Orazio et al., *Solving Hidden Monotone Variational Inequalities with Surrogate Losses*,
    ICLR 2025 (the test); the rate is proved above.
    """
    eta = 1.0 / L if step is None else step
    require(
        "the rate under the relative-error test",
        {
            f"0 ≤ α < 1 (got {share})": 0 <= share < 1,
            f"L ≥ μ ≥ 0 and L > 0 (got L = {L}, μ = {mu})": L >= mu >= 0 and L > 0,
            f"0 < η ≤ 1/L = {1 / L:.3g} (got {eta})": 0 < eta <= (1 + 1e-12) / L,
        },
    )
    return 1.0 - (1.0 - share) * eta * mu
