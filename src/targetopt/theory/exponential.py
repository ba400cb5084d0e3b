"""The three sums of the exponential step size η_t = η α^t, α = (β/T)^{1/T}, and what bounds them.

With the stochastic condition number κ = L/μ, the proof of Thm 4.2 (b) needs ::

    A   = Σ_{t≤T} α^t                                        how far the steps reach
    B_T = Σ_{t≤T} α^{2t} exp(−(1/2κ) Σ_{i=t+1}^T α^i)         how much noise is remembered
    C_T = Σ_{t≤T} exp(−(1/4κ) Σ_{i=t+1}^T α^i)               how much projection error is remembered

The printed bound of the last (Lemma D.8, label ``lemma:C-bound``) is false; docs/errata.md proves the
bounds given here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import hyperu

from targetopt.theory.conditions import require


@dataclass(frozen=True)
class ExponentialStep:
    """α^t for t = 1 … T, with the sums of Thm 4.2 (b) and their bounds.

    Args:
        total_steps: T.
        beta: β; the last multiplier is β/T. The lemmas need β < T (so that α < 1).

    Example:
        >>> step = ExponentialStep(100)
        >>> round(step.forgetting_sum(40.0), 1), round(step.forgetting_bound(40.0), 1)
        (90.6, 90.8)
        >>> round(step.forgetting_printed(40.0), 2)  # Lemma D.8 as printed
        1.05
    """

    total_steps: int
    beta: float = 1.0

    def __post_init__(self) -> None:
        T, beta = self.total_steps, self.beta
        require(
            "the exponential step size",
            {
                f"T ≥ 1 (got {T})": T >= 1,
                f"0 < β < T, so that α < 1 (got β={beta}, T={T})": 0 < beta < T,
            },
        )

    @property
    def rate(self) -> float:
        """ln(1/α) = ln(T/β)/T."""
        return math.log(self.total_steps / self.beta) / self.total_steps

    @property
    def alpha(self) -> float:
        """α = (β/T)^{1/T}."""
        return math.exp(-self.rate)

    @property
    def log_ratio(self) -> float:
        """ln(T/β)."""
        return math.log(self.total_steps / self.beta)

    def multipliers(self) -> NDArray[np.float64]:
        """α^1, …, α^T."""
        return np.asarray(np.exp(-self.rate * np.arange(1, self.total_steps + 1)))

    def remaining(self) -> NDArray[np.float64]:
        """Σ_{i=t+1}^T α^i for t = 1 … T."""
        return tails(self.multipliers())

    def reach(self) -> float:
        """A = Σ_{t≤T} α^t."""
        return float(self.multipliers().sum())

    def reach_printed(self) -> float:
        """Lemma D.6 (``lemma:A-bound``): A ≥ (αT − 2β)/ln(T/β)."""
        return (self.alpha * self.total_steps - 2 * self.beta) / self.log_ratio

    def reach_bound(self) -> float:
        """A ≥ (αT − β)/ln(T/β): Lemma D.4 holds with 1 in place of 2, as ln x ≤ x − 1."""
        return (self.alpha * self.total_steps - self.beta) / self.log_ratio

    def noise_sum(self, kappa: float) -> float:
        """B_T = Σ α^{2t} exp(−(1/2κ) Σ_{i>t} α^i)."""
        weights = np.exp(-self.remaining() / (2 * kappa))
        return float((self.multipliers() ** 2 * weights).sum())

    def noise_inflation(self, kappa: float) -> float:
        """c_1² = exp(β/(κ ln(T/β))), also called c_2 in Lemma D.7."""
        return _exp(self.beta / (kappa * self.log_ratio))

    def noise_printed(self, kappa: float) -> float:
        """Lemma D.7 (``lemma:B-bound``): B_T ≤ 16κ² c ln²(T/β)/(e²α²T), c = exp(β/(κ ln(T/β)))."""
        c = self.noise_inflation(kappa)
        scale = (math.e * self.alpha) ** 2 * self.total_steps
        return 16 * kappa**2 * c * self.log_ratio**2 / scale

    def noise_bound(self, kappa: float) -> float:
        """B_T ≤ (1/x_0²) [(1 + x_T) T/ln(T/β) + 4 exp(x_T − 2)], x_t = α^{t+1}/(2κ(1−α)).

        (The last term is e^{x_T} max_{u ≥ x_T} u²e^{−u}, so x_T² where x_T > 2.) Smaller than the
        printed one by a factor of order ln(T/β): the noise part of the guarantee is σ √(ln T / T), not σ ln T / √T.
        """
        x0, _, xT = self._exponents(2 * kappa)
        peak = xT**2 if xT > 2 else 4 * math.exp(xT - 2)
        return ((1 + xT) / self.rate + peak) / x0**2

    def forgetting_sum(self, zeta: float) -> float:
        """C_T = Σ_{t≤T} exp(−(1/ζ) Σ_{i=t+1}^T α^i), ζ = 4κ in the theorem."""
        return float(np.exp(-self.remaining() / zeta).sum())

    def forgetting_printed(self, zeta: float) -> float:
        """Lemma D.8 as printed, exp(2β ln T / (ζ ln(T/β))). **False**: see docs/errata.md."""
        return _exp(2 * self.beta * math.log(self.total_steps) / (zeta * self.log_ratio))

    def forgetting_bound(self, zeta: float) -> float:
        """C_T ≤ min(T, 1 + (T/ln(T/β)) [e^{x_T} (E₁(x_T) − E₁(x_1))]), within 1 of C_T itself.

        Here x_t = α^{t+1}/(ζ(1−α)) and E₁ is the exponential integral.
        """
        _, x1, xT = self._exponents(zeta)
        integral = hyperu(1, 1, xT) - math.exp(xT - x1) * hyperu(1, 1, x1)  # U(1,1,x) = eˣE₁(x)
        return min(float(self.total_steps), 1 + float(integral) / self.rate)

    def forgetting_closed(self, zeta: float) -> float:
        """C_T ≤ min(T, 1 + T ln(1 + ζ ln(T/β)/(αβ)) / ln(T/β)): of order T ln(κ ln T)/ln T."""
        logarithm = math.log1p(zeta * self.log_ratio / (self.alpha * self.beta))
        T = float(self.total_steps)
        return min(T, 1 + T * logarithm / self.log_ratio)

    def proportional_sum(self, zeta: float) -> float:
        """Σ_{t≤T} α^t exp(−(1/ζ) Σ_{i=t+1}^T α^i): errors that shrink with the step."""
        return float((self.multipliers() * np.exp(-self.remaining() / zeta)).sum())

    @staticmethod
    def proportional_bound(zeta: float) -> float:
        """ζ + 1, whatever T: the sum telescopes."""
        return zeta + 1

    def _exponents(self, zeta: float) -> tuple[float, float, float]:
        """x_0, x_1 and x_T, where x_t = α^{t+1}/(ζ(1−α))."""
        x0 = self.alpha / (zeta * -math.expm1(-self.rate))
        return x0, x0 * self.alpha, x0 * self.beta / self.total_steps


def _exp(x: float) -> float:
    """eˣ, infinite beyond float64: a bound may say nothing."""
    return math.exp(x) if x < 700 else math.inf


def tails(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_{i>t} values_i for each t.

    Example:
        >>> tails(np.array([1.0, 2.0, 4.0]))
        array([6., 4., 0.])
    """
    return np.append(np.cumsum(values[::-1])[::-1][1:], 0.0)
