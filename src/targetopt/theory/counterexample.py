"""Prop. 4.4: two quadratics on which SSO with exact inner steps stays away from the minimiser.

    h_1(θ) = ½(θ − 1)²      h_2(θ) = ½(2θ + ½)²      h = ½(h_1 + h_2),  θ* = 0

SSO with m = ∞ and η_t = c α_t gives θ ← (1 − cα_t)θ + cα_t for h_1 and (1 − cα_t)θ − cα_t/4 for h_2, so
E θ_{T+1} = Π(1 − cα_t) θ_1 + ⅜ (1 − Π(1 − cα_t)): never below min(θ_1, ⅜), whatever the steps, provided
0 ≤ cα_t ≤ 1 (which the statement forgets and its proof uses).

Copies of the two examples give the same steps (duplicating data changes nothing), while κ = n grows:
that family refutes Thm 4.2 (b) as printed, in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from targetopt import losses
from targetopt.theory.bounds import Version, exponential_step_bound
from targetopt.theory.conditions import require
from targetopt.theory.constants import TargetConstants
from targetopt.theory.exact_problem import Array, ExactProblem
from targetopt.theory.exponential import ExponentialStep

Variant = Literal["sso", "analysis", "independent"]

_X = np.array([1.0, 2.0])
_Y = np.array([1.0, -0.5])


def two_quadratics(copies: int = 1) -> ExactProblem:
    """The problem, each example repeated ``copies`` times.

    Example:
        >>> two_quadratics().parameter_constants().L
        2.5
    """
    X = np.tile(_X, copies)[:, None]
    return ExactProblem(X, losses.Squared(torch.from_numpy(np.tile(_Y, copies))))


def schedule(name: str, steps: int) -> Array:
    """α_1 … α_T of Prop. 4.4's test: ``constant``, ``1/t``, ``1/sqrt(t)`` or ``exponential``."""
    t = np.arange(1, steps + 1)
    if name == "exponential":
        return ExponentialStep(steps).multipliers()
    powers = {"constant": 0.0, "1/t": -1.0, "1/sqrt(t)": -0.5}
    power = powers[name]
    return np.asarray(t**power)


def expected_bias(start: float, etas: ArrayLike) -> float:
    """E θ_{T+1} exactly, for steps 0 ≤ η_t ≤ 1 (= c α_t).

    Example:
        >>> expected_bias(1.0, [1.0])  # one full step forgets the start
        0.375
    """
    sizes = np.asarray(etas, dtype=np.float64)
    require(
        "Prop. 4.4",
        {
            f"0 ≤ cα_t ≤ 1 (got {sizes.min():.3g} to {sizes.max():.3g})": bool(
                (sizes >= 0).all() and (sizes <= 1).all()
            )
        },
    )
    left = float(np.prod(1 - sizes))
    return left * start + 0.375 * (1 - left)


@dataclass(frozen=True)
class Bias:
    """E(θ_{T+1} − θ*) over many runs.

    Attributes:
        mean: the sample mean.
        low, high: 99.9 % confidence interval (normal; Student's t at this n).
        rms: root mean square of θ_{T+1}.
        runs: how many.
    """

    mean: float
    low: float
    high: float
    rms: float
    runs: int


def simulate_bias(
    etas: ArrayLike,
    *,
    start: float,
    runs: int = 100_000,
    seed: int = 0,
    variant: Variant = "sso",
) -> Bias:
    """Run SSO (m = ∞) on the two quadratics ``runs`` times at once.

    Variants: ``"sso"``, the same example for gradient and regulariser; ``"analysis"``, q̃, the
    regulariser on all data (here also SGD with α = 2η/5); ``"independent"``, the regulariser on
    another, independently drawn example. Only the first is biased.

    Example:
        >>> found = simulate_bias(schedule("constant", 50) * 0.5, start=1.0, runs=1000)
        >>> found.low < 0.375 < found.high
        True
    """
    rng = np.random.default_rng(seed)
    theta = np.full(runs, float(start))
    whole = 2 / float(_X @ _X)
    for eta in np.asarray(etas, dtype=np.float64):
        drawn = rng.integers(2, size=runs)
        x = _X[drawn]
        pull = x * (x * theta - _Y[drawn])
        if variant == "sso":
            gain: Array | float = 1 / x**2
        elif variant == "independent":
            gain = 1 / _X[rng.integers(2, size=runs)] ** 2
        else:
            gain = whole
        theta -= eta * gain * pull
    error = float(theta.std(ddof=1)) / math.sqrt(runs)
    mean, reach = float(theta.mean()), float(stdtrit(runs - 1, 0.9995)) * error
    return Bias(mean, mean - reach, mean + reach, math.sqrt(float(np.mean(theta**2))), runs)


@dataclass(frozen=True)
class Refutation:
    """Thm 4.2 (b) on ``copies`` of the two quadratics, started at z* (Euclidean norm, as printed).

    Attributes:
        distance: ‖E z_{T+1} − z*‖ ≤ E‖z_{T+1} − z*‖, exact.
        printed, corrected, sharp: the three right-hand sides.
        error: ε, an upper bound of every ε_t on every path.
    """

    copies: int
    steps: int
    distance: float
    printed: float
    corrected: float
    sharp: float
    error: float


def refute_exponential(copies: int, steps: int, beta: float = 1.0) -> Refutation:
    """Left and right side of Thm 4.2 (b) in closed form.

    From θ_1 = 0 every path stays in [−¼, 1], where |g_1| ≤ 5/4 and |g_2| ≤ 5/2; the projection error is
    0.6 η_t |g_1| ‖X‖ or 0.3 η_t |g_2| ‖X‖, at most ¾ η_t ‖X‖ (η_t = α^t/(2n), b = 1).

    Example:
        >>> found = refute_exponential(copies=10, steps=100_000)
        >>> found.distance > found.printed, found.distance < found.sharp
        (True, True)
    """
    n = 2 * copies
    decay = ExponentialStep(steps, beta)
    constants = TargetConstants(L=1.0, mu=1.0, n=n, batch_size=1)
    L, mu, eta = constants.euclidean
    multipliers = decay.multipliers()
    norm = math.sqrt(2.5 * n)
    per_step = 0.75 * constants.step * norm  # ε_{t+1} ≤ per_step · α^t
    sigma = math.sqrt((1 - 1 / n) * 0.625)

    def bound(version: Version, error: float) -> float:
        return exponential_step_bound(
            0.0, decay, L=L, mu=mu, sigma=sigma, error=error, version=version
        ).total

    assert math.isclose(eta, 0.5 / L)  # Thm 4.2's η' = 1/(2L)
    return Refutation(
        copies=copies,
        steps=steps,
        distance=expected_bias(0.0, constants.step * multipliers) * norm,
        printed=bound("printed", per_step * float(multipliers[0])),
        corrected=bound("corrected", per_step * float(multipliers[0])),
        sharp=bound("sharp", per_step),
        error=per_step * float(multipliers[0]),
    )
