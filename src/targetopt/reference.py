"""The smallest value an objective can take, and how well that is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """The smallest value of an objective, and how well it is known.

    Attributes:
        value: inf h.
        gap: bound or estimate of how far ``value`` is above inf h (0 where it is exact).
        attained: whether some θ has that value. Separable data have inf h = 0, attained nowhere.
        certificate: why to believe it, in words.
        parameters: θ with h(θ) = ``value``; where none attains it, the separating θ.
    """

    value: float
    gap: float
    attained: bool
    certificate: str
    parameters: Array | None = None

    @property
    def resolved(self) -> bool:
        """Whether the infimum is known well enough to subtract: to 1e-12 relative, or exactly."""
        return self.gap <= 1e-12 * self.value
