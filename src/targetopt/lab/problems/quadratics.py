"""Least-squares problems of known structure: any conditioning, interpolation, the counter-example."""

from __future__ import annotations

import numpy as np

from targetopt.lab.problems.base import Array, checked_seed, non_negative
from targetopt.lab.problems.linear import LinearProblem, binary_loss
from targetopt.lab.problems.registry import register
from targetopt.losses import Squared
from targetopt.types import BadArgument, positive_int


@register(
    "quadratic", "least squares with condition number kappa, 1000 × 20; noise sets its minimum"
)
def quadratic(
    kappa: float = 100.0,
    n: int = 1000,
    dimension: int = 20,
    noise: float = 0.0,
    weight_decay: float = 0.0,
    seed: int = 0,
) -> LinearProblem:
    """(1/2n)‖Xθ − y‖² whose Hessian XᵀX/n has eigenvalues from 1 down to 1/kappa.

    The eigenvalues are spaced evenly on a logarithmic scale, their directions are random.
    y = Xθ° + noise·e with Gaussian θ°, e; noise = 0 interpolates (minimum 0).

    Example:
        >>> import numpy as np
        >>> from targetopt.lab import problems
        >>> X = problems.get("quadratic", kappa=1e4).linear.X
        >>> eigenvalues = np.linalg.eigvalsh(X.T @ X / len(X))
        >>> float(np.round(eigenvalues[-1] / eigenvalues[0], 3))
        10000.0
    """
    if not 1 <= kappa < np.inf:
        raise BadArgument(f"kappa={kappa!r} must be at least 1 and finite: λ_max/λ_min of XᵀX/n")
    positive_int("dimension", dimension)
    if positive_int("n", n) < dimension:
        raise BadArgument(f"n={n} must be at least dimension={dimension}, or kappa is infinite")
    if dimension == 1 and kappa != 1:
        raise BadArgument(f"kappa={kappa!r} with dimension=1: one eigenvalue has no ratio but 1")
    rng = np.random.default_rng(checked_seed(seed))
    left = np.linalg.qr(rng.standard_normal((n, dimension)))[0]
    right = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    eigenvalues = np.logspace(0, -np.log10(kappa), dimension)
    X = np.sqrt(n) * (left * np.sqrt(eigenvalues)) @ right.T
    y = X @ rng.standard_normal(dimension)
    y += non_negative("noise", noise) * rng.standard_normal(n)
    extras = "".join(
        f", {name}={value:g}"
        for name, value in (("noise", noise), ("weight_decay", weight_decay))
        if value
    )
    return LinearProblem(
        f"quadratic (κ={kappa:g}{extras})",
        X,
        y,
        Squared,
        bias=False,
        weight_decay=weight_decay,
        classification=False,
    )


@register("two-quadratics", "the counter-example of Prop. 4.4: ½(θ − 1)² and ½(2θ + ½)²")
def two_quadratics() -> LinearProblem:
    """h = (h₁ + h₂)/2 with h₁ = ½(θ − 1)², h₂ = ½(2θ + ½)²: minimised at θ* = 0, h* = 5/16.

    With batches of one example and an exact inner solve, SSO stays away from θ*: from θ₁ > 0,
    E(θ_T − θ*) ≥ min(θ₁, 3/8) for every step-size sequence in (0, 1].

    Example:
        >>> from targetopt.lab import problems
        >>> problems.get("two-quadratics").reference().value
        0.3125

    Reference:
        Paper, Prop. 4.4.
    """
    X, y = np.array([[1.0], [2.0]]), np.array([1.0, -0.5])
    return LinearProblem(
        "two quadratics", X, y, Squared, bias=False, weight_decay=0.0, classification=False
    )


@register("interpolation", "over-parametrised linear model, 200 × 1000: fits every label exactly")
def interpolation(
    loss: str = "squared", n: int = 200, dimension: int = 1000, seed: int = 0
) -> LinearProblem:
    """Gaussian data with more columns than rows and random labels ±1: some θ has zero loss.

    For ``loss="logistic"`` the data are separable: the infimum 0 is approached, never reached.

    Example:
        >>> from targetopt.lab import problems
        >>> problems.get("interpolation").reference().value < 1e-25
        True
    """
    if positive_int("n", n) >= positive_int("dimension", dimension):
        raise BadArgument(f"dimension={dimension} must exceed n={n} for interpolation")
    rng = np.random.default_rng(checked_seed(seed))
    X: Array = rng.standard_normal((n, dimension)) / np.sqrt(dimension)
    y = rng.choice([-1.0, 1.0], size=n)
    return LinearProblem(
        f"interpolation ({loss}, {n} × {dimension})",
        X,
        y,
        binary_loss(loss),
        bias=False,
        weight_decay=0.0,
        classification=True,
    )
