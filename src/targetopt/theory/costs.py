"""What a run costs when the oracle costs τ: the paper's model (§4.2), corrected, and the best m."""

from __future__ import annotations

import math
from dataclasses import dataclass

from targetopt.theory.bounds import Version
from targetopt.theory.conditions import require


@dataclass(frozen=True)
class CostModel:
    """Orders of magnitude of §4.2 (constants 1), in inner gradient steps.

    Attributes:
        parametric_steps, target_steps: outer iterations of SGD and of SSO.
        inner_steps: inner iterations of each SSO step.
        parametric, target: total costs, τ·T_param and T_target·(τ + m).
    """

    parametric_steps: float
    target_steps: float
    inner_steps: float
    parametric: float
    target: float


def cost_model(
    tau: float,
    accuracy: float,
    *,
    kappa_theta: float,
    kappa_target: float = 1.0,
    kappa_inner: float | None = None,
    parameter_noise: float = 0.0,
    target_noise: float = 0.0,
    version: Version = "corrected",
) -> CostModel:
    """§4.2: cost of SGD and of SSO to reach ``accuracy``, with noise N = σ²/μ² in either space ::

        T_param  = max{κ_θ ln(1/ε), N_θ/ε}                      cost τ T_param
        T_target = max{κ ln(1/ε), N/ε}                          cost T_target (τ + κ_g ln(1/ε))

    The paper sets κ = 1 and κ_g = κ_θ ("the condition number w.r.t. the targets is equal to 1"). That is
    so for the full batch alone: for batches of b out of n examples κ = (n/b)(L/μ)
    (`TargetConstants.kappa`), and κ_g is the condition number of the worst batch's Gram matrix, which
    is infinite for fewer rows than parameters. ``version="printed"`` ignores both.

    Args:
        tau: cost of one oracle call over the cost of one surrogate gradient, on the same batch.
        accuracy: ε in (0, 1).
        kappa_theta: κ_θ. kappa_target: κ. kappa_inner: κ_g, by default κ_θ.
        parameter_noise, target_noise: σ_θ²/μ_θ², σ²/μ².

    Example:
        >>> model = cost_model(tau=1000, accuracy=1e-3, kappa_theta=1e4)
        >>> round(
        ...     model.parametric / model.target
        ... )  # full batch: the oracle is called 10⁴ times less
        143
    """
    kappa_g = kappa_theta if kappa_inner is None else kappa_inner
    require(
        "the cost model of §4.2",
        {
            f"τ ≥ 0 (got {tau})": tau >= 0,
            f"0 < ε < 1 (got {accuracy})": 0 < accuracy < 1,
            f"condition numbers ≥ 1 (got {kappa_theta}, {kappa_target}, {kappa_g})": min(
                kappa_theta, kappa_target, kappa_g
            )
            >= 1,
            f"finite κ_g: batches of full column rank (got {kappa_g})": math.isfinite(kappa_g)
            or version == "printed",
        },
    )
    if version == "printed":
        kappa_target, kappa_g = 1.0, kappa_theta
    digits = math.log(1 / accuracy)
    parametric = max(kappa_theta * digits, parameter_noise / accuracy)
    target = max(kappa_target * digits, target_noise / accuracy)
    inner = kappa_g * digits
    return CostModel(parametric, target, inner, tau * parametric, target * (tau + inner))


def best_inner_steps(tau: float, kappa: float) -> int:
    """The m that reaches a given accuracy at the least cost with the full batch.

    One outer step with m inner steps of size 1/L_g moves the slowest direction by the fraction
    1 − (1 − 1/κ)^m of what m = ∞ would, so the cost of an e-fold is proportional to ::

        (τ + m) / (1 − (1 − 1/κ)^m)

    whose minimiser is about √(2κτ) for τ ≪ κ and κ ln(τ/κ) for τ ≫ κ. At τ = 0 it is 1.

    Example:
        >>> best_inner_steps(0, 100), best_inner_steps(10, 1000), best_inner_steps(1e5, 100)
        (1, 138, 689)
    """
    require(
        "best_inner_steps",
        {f"τ ≥ 0 (got {tau})": tau >= 0, f"1 ≤ κ < ∞ (got {kappa})": 1 <= kappa < math.inf},
    )
    if kappa == 1:
        return 1
    rate = -math.log1p(-1 / kappa)

    def slope(m: float) -> float:  # sign of d/dm of the logarithm of the cost, increasing in m
        return math.expm1(rate * m) - rate * (tau + m)

    low, high = 0.0, 1.0
    while slope(high) < 0:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)

    def cost(m: int) -> float:
        return (tau + m) / -math.expm1(-rate * m)

    return min((max(1, math.floor(low)), max(1, math.ceil(high))), key=cost)
