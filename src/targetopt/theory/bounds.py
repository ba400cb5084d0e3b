"""Right-hand sides of the paper's guarantees, as printed, as corrected, and sharper.

Norms. Every function here holds in any inner product of the target space, provided that all its
numbers are of the same one. The library's is the *mean* one, ‖z‖² = (1/n) Σ‖z_i‖²; the paper's is the
Euclidean one. `TargetConstants` gives L, μ and the step in both; a distance in the mean norm is the
Euclidean one over √n, σ in the mean norm is √n times the Euclidean one, and the paper's η' = ηn.

Versions. ``"printed"`` is the formula of the paper, right or wrong; ``"corrected"`` is the smallest
correction of it; ``"sharp"`` is what we prove instead (docs/errata.md): the factor 2 before the projection
errors is not needed, and their root mean squares (which Prop. 4.3 bounds) are enough, for the root
mean square of the distance (which is larger than the mean that is printed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from targetopt.theory.conditions import require
from targetopt.theory.exponential import ExponentialStep
from targetopt.types import BadArgument

Version = Literal["printed", "corrected", "sharp"]


@dataclass(frozen=True)
class Bound:
    """A right-hand side and its three parts, whose sum it is.

    Attributes:
        total: the bound on the distance to z*.
        contraction: what is left of the first distance.
        noise: what the gradients' noise contributes.
        projection: what the projection errors contribute.
    """

    total: float
    contraction: float
    noise: float
    projection: float


@dataclass(frozen=True)
class BoundCurve:
    """A right-hand side after T = 1, 2, … steps, and its parts; total = √(contraction² + noise²) + projection."""

    total: NDArray[np.float64]
    contraction: NDArray[np.float64]
    noise: NDArray[np.float64]
    projection: NDArray[np.float64]


def stationarity(beta: float, initial_gap: float, steps: int) -> float:
    """Lemma C.1: min_{t<T} ‖∇h(θ_t)‖² ≤ 2β [h(θ_0) − h*]/T, for any m ≥ 1, η ≤ 1/L and α = 1/β.

    Args:
        beta: smoothness of the surrogate in θ. For linear targets, λ_max(XᵀX/n)/η.
        initial_gap: h(θ_0) − h*.
        steps: T.

    The norm is the Euclidean one of the parameters. (The paper prints h(θ_{t+1}) ≥ h(θ_t) for the
    descent; it is ≤. The rate is right.)

    Example:
        >>> stationarity(beta=2.0, initial_gap=1.0, steps=4)
        1.0
    """
    require(
        "Lemma C.1",
        {
            f"β > 0 (got {beta})": beta > 0,
            f"h(θ_0) ≥ h* (got a gap of {initial_gap})": initial_gap >= 0,
            f"T ≥ 1 (got {steps})": steps >= 1,
        },
    )
    return 2 * beta * initial_gap / steps


def distance_bound(
    initial: float,
    etas: ArrayLike,
    *,
    L: float,
    mu: float,
    sigma: float,
    errors: ArrayLike,
    version: Version = "sharp",
) -> BoundCurve:
    """Thm 4.2, general form: a bound of E‖z_{T+1} − z*‖ after each T = 1, 2, ….

    With ρ_t = 1 − μη_t ::

        (Π ρ_i ‖z_1 − z*‖² + 2σ² Σ_t η_t² Π_{i>t} ρ_i)^{½}  +  projection

        printed     2ε Σ_t Π_{i>t} ρ_i              (the proof gives square roots)
        corrected   2ε Σ_t (Π_{i>t} ρ_i)^{½}
        sharp       Σ_t (Π_{i>t} ρ_i)^{½} e_{t+1}     e_t = (E ε_t²)^{½}

    Args:
        initial: ‖z_1 − z*‖.
        etas: η_1 … η_T, the steps of target-space SGD in the norm used (the paper's η').
        L: smoothness of the *stochastic* losses ℓ_{i_t}, convex, in that norm.
        mu: strong convexity of ℓ.
        sigma: σ, root of E‖∇ℓ(z*) − ∇ℓ_{i_t}(z*)‖².
        errors: one ε with ε_t ≤ ε for all t, or (sharp) one per step.
        version: see the module.

    Example:
        >>> curve = distance_bound(
        ...     1.0, [0.5, 0.5], L=1.0, mu=1.0, sigma=0.0, errors=0.1, version="corrected"
        ... )
        >>> curve.total.round(3)  # 0.5^½ + 0.2, then 0.5 + 0.2(1 + 0.5^½)
        array([0.907, 0.841])
    """
    _check_version(version)
    steps = np.atleast_1d(np.asarray(etas, dtype=np.float64))
    largest = float(steps.max())
    _require_class("Thm 4.2", L, mu, sigma, initial)
    require(
        "Thm 4.2",
        {
            f"every η_t in (0, 1/(2L)] = (0, {0.5 / L:.6g}] (got {steps.min():.6g} to {largest:.6g}; "
            "the paper leaves this out of the theorem)": bool(steps.min() > 0)
            and largest <= 0.5 / L * (1 + 1e-12)
        },
    )
    projection_errors = _per_step(errors, len(steps), version)
    rho = 1 - mu * steps
    powers = rho if version == "printed" else np.sqrt(rho)
    factor = 1.0 if version == "sharp" else 2.0
    noise = _recursion(rho, 2 * (sigma * steps) ** 2)
    projection = _recursion(powers, factor * projection_errors)
    contraction = initial**2 * np.cumprod(rho)
    return BoundCurve(
        np.sqrt(contraction + noise) + projection,
        np.sqrt(contraction),
        np.sqrt(noise),
        projection,
    )


def _recursion(factors: NDArray[np.float64], added: NDArray[np.float64]) -> NDArray[np.float64]:
    """x_t = factors_t · x_{t−1} + added_t from x_0 = 0."""
    x, found = 0.0, []
    for factor, more in zip(factors.tolist(), added.tolist(), strict=True):
        x = factor * x + more
        found.append(x)
    return np.array(found)


def constant_step_bound(
    initial: float,
    steps: int,
    *,
    L: float,
    mu: float,
    sigma: float,
    error: float,
    version: Version = "sharp",
) -> Bound:
    """Thm 4.2 (a), η = 1/(2L) in the norm used: E‖z_{T+1} − z*‖ is at most ::

        ‖z_1 − z*‖ (1 − 1/(2κ))^{T/2} + σ/√(μL) + 2ε/(1 − √(1 − 1/(2κ)))

    with κ = L/μ, L being that of the stochastic losses: κ ≥ n/b for batches of b out of n examples
    (docs/errata.md; the paper takes it for 1 on least squares). Printed and corrected agree; sharp has ε in
    place of 2ε.

    Example:
        >>> constant_step_bound(1.0, 10, L=1.0, mu=1.0, sigma=0.0, error=0.0).total == 0.5**5
        True
    """
    _check_version(version)
    _require_class("Thm 4.2 (a)", L, mu, sigma, initial)
    require("Thm 4.2 (a)", {f"ε ≥ 0 (got {error})": error >= 0, f"T ≥ 0 (got {steps})": steps >= 0})
    rho = 1 - mu / (2 * L)
    contraction = initial * rho ** (steps / 2)
    noise = sigma / math.sqrt(mu * L)
    projection = (1 if version == "sharp" else 2) * error / (1 - math.sqrt(rho))
    return Bound(contraction + noise + projection, contraction, noise, projection)


def exponential_step_bound(
    initial: float,
    schedule: ExponentialStep,
    *,
    L: float,
    mu: float,
    sigma: float,
    error: float,
    version: Version = "sharp",
) -> Bound:
    """Thm 4.2 (b), η_t = α^t/(2L): E‖z_{T+1} − z*‖ is at most ::

        printed     c_1 e^{−αT/(4κ ln(T/β))} ‖z_1 − z*‖ + 4κ c_1 ln(T/β) σ/(L e α √T) + 2ε c_2
                    c_1 = exp(β/(2κ ln(T/β)))    c_2 = exp(β ln T/(2κ ln(T/β)))      **false**
        corrected   the same with c_2 replaced by the bound of C_T (`forgetting_bound`), of order
                    T ln(κ ln T)/ln T: errors of constant size pile up almost linearly in T
        sharp       e^{−A/(4κ)} ‖z_1 − z*‖ + σ/(√2 L) √B + (4κ + 1) max_t (ε_{t+1}/α^t)
                    with A and B as bounded by `reach_bound` and `noise_bound`

    Args:
        error: ε with ε_{t+1} ≤ ε (printed, corrected); for ``sharp``, the largest ε_{t+1}/α^t: SSO's
            errors shrink with the step (both minimisers move by O(η_t)), and only then is there
            a neighbourhood that does not grow with T.

    Example:
        >>> schedule = ExponentialStep(100_000)
        >>> numbers = dict(L=1.0, mu=0.1, sigma=0.0, error=0.01)
        >>> bounds = [
        ...     exponential_step_bound(0.0, schedule, **numbers, version=v)
        ...     for v in ("printed", "corrected", "sharp")
        ... ]
        >>> [round(b.total, 2) for b in bounds]
        [0.02, 967.53, 0.41]
    """
    _check_version(version)
    _require_class("Thm 4.2 (b)", L, mu, sigma, initial)
    require("Thm 4.2 (b)", {f"ε ≥ 0 (got {error})": error >= 0})
    kappa, T = L / mu, schedule.total_steps
    if version == "sharp":
        contraction = initial * math.exp(-max(schedule.reach_bound(), 0.0) / (4 * kappa))
        noise = sigma / (math.sqrt(2) * L) * math.sqrt(schedule.noise_bound(kappa))
        projection = error * schedule.proportional_bound(4 * kappa)
    else:
        c1 = math.sqrt(schedule.noise_inflation(kappa))
        decay = math.exp(-T * schedule.alpha / (4 * kappa * schedule.log_ratio))
        contraction = c1 * decay * initial
        scale = L * math.e * schedule.alpha * math.sqrt(T)
        noise = 4 * kappa * c1 * schedule.log_ratio / scale * sigma
        forgetting = (
            schedule.forgetting_printed if version == "printed" else schedule.forgetting_bound
        )
        projection = 2 * error * forgetting(4 * kappa)
    return Bound(contraction + noise + projection, contraction, noise, projection)


def projection_error_bound(
    *,
    lipschitz: float,
    zeta_squared: float,
    inner_steps: float,
    mu_g: float,
    L_g: float,
    gap: float,
    sigma_z_squared: float,
    eta: float,
    L: float,
) -> float:
    """Prop. 4.3: E[ε_{t+1}²] ≤ L_f² ζ_t² + (4L_f²/μ_g) e^{−m/κ_g} [ℓ(z_t) − ℓ(z*) + σ_z²].

    Args:
        lipschitz: L_f, of f from the parameters (Euclidean) to the targets, in the norm in which
            ε is wanted: ‖X‖ for the Euclidean, ‖X‖/√n for the mean norm.
        zeta_squared: ζ_t² (`targetopt.theory.zeta_squared`).
        inner_steps: m (``math.inf`` for exact minimisation).
        mu_g, L_g: strong convexity and smoothness of every batch surrogate g̃ in θ. On a linear model
            they exist only if every batch has full column rank, so at least d rows.
        gap: ℓ(z_t) − ℓ(z*).
        sigma_z_squared: σ_z².
        eta, L: the target step and one example's smoothness: the proof uses g̃ ≥ h, so η ≤ 1/L
            (left out of the proposition).

    Example:
        >>> numbers = dict(lipschitz=1.0, mu_g=1.0, L_g=2.0, gap=1.0, sigma_z_squared=0.0)
        >>> projection_error_bound(
        ...     **numbers, zeta_squared=0.0, inner_steps=math.inf, eta=0.5, L=1.0
        ... )
        0.0
    """
    require(
        "Prop. 4.3",
        {
            f"μ_g > 0: every batch surrogate strongly convex in θ (got {mu_g:.6g}; a linear model "
            "needs batches of full column rank, at least d rows)": mu_g > 0,
            f"L_g ≥ μ_g (got {L_g:.6g} and {mu_g:.6g})": L_g >= mu_g,
            f"0 < η ≤ 1/L (got η={eta:.6g}, L={L:.6g})": 0 < eta <= (1 + 1e-12) / L,
            f"m ≥ 1 (got {inner_steps})": inner_steps >= 1,
            f"ζ², σ_z² and the gap ≥ 0 (got {zeta_squared:.3g}, {sigma_z_squared:.3g}, {gap:.3g})": min(
                zeta_squared, sigma_z_squared, gap
            )
            >= -1e-12,
        },
    )
    inexact = 4 * lipschitz**2 / mu_g * math.exp(-inner_steps * mu_g / L_g)
    return lipschitz**2 * zeta_squared + inexact * (gap + sigma_z_squared)


def _require_class(statement: str, L: float, mu: float, sigma: float, initial: float) -> None:
    require(
        statement,
        {
            f"μ > 0: ℓ strongly convex in the targets (got {mu:.6g}; the logistic loss is so only on "
            "a bounded set, see loss_constants(radius=))": mu > 0,
            f"L ≥ μ (got L={L:.6g}, μ={mu:.6g})": mu <= L < math.inf,
            f"σ ≥ 0 and ‖z_1 − z*‖ ≥ 0 (got {sigma:.3g}, {initial:.3g})": sigma >= 0
            and initial >= 0,
        },
    )


def _per_step(errors: ArrayLike, steps: int, version: Version) -> NDArray[np.float64]:
    values = np.asarray(errors, dtype=np.float64)
    if values.ndim and version != "sharp":
        raise BadArgument(
            f"errors has one value per step, shape {values.shape}; the {version} bound takes one ε "
            "with ε_t ≤ ε for all t. Pass their largest, or version='sharp'."
        )
    if values.ndim and values.shape != (steps,):
        raise BadArgument(f"errors must have one value per step, ({steps},); got {values.shape}")
    require("Thm 4.2", {f"ε_t ≥ 0 (got {values.min():.3g})": bool(values.min() >= 0)})
    return np.broadcast_to(values, (steps,))


def _check_version(version: str) -> None:
    if version not in get_args(Version):
        raise BadArgument(f"version={version!r} must be one of {', '.join(get_args(Version))}")
