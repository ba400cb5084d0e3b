"""The compliance as an oracle that reveals more than its gradient: an upper bound of itself, everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.lab.problems.physics.oracle import Answer
from targetopt.lab.problems.physics.sparse import Array
from targetopt.lab.problems.physics.structures import PENALTY, SOFTEST, Structure, young
from targetopt.surrogate import Surrogate
from targetopt.types import MissingCapability


@dataclass(frozen=True)
class ComplianceBound(Surrogate):
    """q(x) = Σ_e a_e / E(x_e), with a_e = E(x_t,e)² u_eᵀK₀u_e: at least the compliance for every x in [0, 1].

    Keep the stresses of the solution at x_t. They balance the forces in the structure x too, and by the
    principle of least complementary energy no stresses in balance have less energy than the true ones, so
    c(x) ≤ q(x) for all x, with equality and the same gradient at x_t. One solve gives it, and it needs no
    step size.

    Attributes:
        anchor: x_t.
        weights: a_e.

    Reference: Bendsøe, Sigmund, *Topology Optimization*, 2004, §5.2; Christensen, Klarbring, *An Introduction to
    Structural Optimization*, 2009, ch. 5 (minimum of complementary energy).
    """

    anchor: Tensor
    weights: Tensor

    @staticmethod
    def _young(x: Tensor) -> Tensor:
        return SOFTEST + x.clamp_min(0.0) ** PENALTY * (1.0 - SOFTEST)

    def value(self, z: Tensor) -> Tensor:
        return (self.weights / self._young(z)).sum()

    def gradient(self, z: Tensor) -> Tensor:
        x = z.clamp_min(0.0)
        slope = PENALTY * x ** (PENALTY - 1.0) * (1.0 - SOFTEST)
        return -z.shape[0] * self.weights * slope / self._young(x).square()

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        a, b = before.clamp_min(0.0), after.clamp_min(0.0)
        # 1/E(b) − 1/E(a), with a³ − b³ as a product
        rise = (b - a) * (a * a + a * b + b * b) * (1.0 - SOFTEST)
        return -(self.weights * rise / (self._young(a) * self._young(b))).sum()

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        x = z.clamp_min(0.0)
        stiffness = self._young(x)
        slope = PENALTY * x ** (PENALTY - 1.0) * (1.0 - SOFTEST)
        bend = PENALTY * (PENALTY - 1.0) * x ** (PENALTY - 2.0) * (1.0 - SOFTEST)
        # below x ≈ 10⁻³ 1/E is not convex; there the curvature counts as none
        curve = (2.0 * slope.square() / stiffness - bend).clamp_min(0.0) / stiffness.square()
        return z.shape[0] * self.weights * curve * v

    def minimiser(self) -> Tensor:
        """There is none: more material is always stiffer. This is refused, with the way out."""
        raise MissingCapability(
            "the bound of a compliance has no minimiser without a constraint on the volume. Use an iterative "
            "inner solver such as to.LBFGS() instead of to.Exact()."
        )


def compliance(structure: Structure, densities: Array) -> Answer:
    """The compliance of physical densities, its gradient and its `ComplianceBound`: one solve.

    Example:
        >>> import numpy as np
        >>> beam, x = Structure(12, 4), np.full(48, 0.5)
        >>> answer = compliance(beam, x)
        >>> z = torch.from_numpy(x)
        >>> bool(np.isclose(float(answer.majoriser(z).value(z)), answer.value))
        True
    """
    solution = structure.solve(densities)
    weights = torch.from_numpy(young(densities.clip(0.0)) ** 2 * solution.strains)

    def bound(z: Tensor) -> ComplianceBound:
        return ComplianceBound(z.clone(), weights.to(z))

    return Answer(solution.compliance, solution.gradient, bound)
