"""One choice of several, where the targets are the probabilities themselves: the simplex."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.distributions.categorical import Categorical, CategoricalRows, weighted


@dataclass(frozen=True)
class Probabilities(Categorical):
    """One of c choices; the targets are its probabilities, what a network that ends in a softmax gives.

    These are the mean parameters of the distribution, in which both divergences are convex; their curvature has no
    bound near the edge of the simplex. ``MirrorDescent(NegativeEntropy())`` and ``KLProximity`` are made for them.

    Example:
        >>> from targetopt.distributions import ReverseKL
        >>> expert = CategoricalRows.from_probabilities(torch.tensor([[0.5, 0.5]]))
        >>> ReverseKL(Probabilities(2), expert).gradient(torch.tensor([[0.5, 0.5]]))  # 1 + log z/p
        tensor([[1., 1.]])
    """

    @property
    def noun(self) -> str:
        return f"probabilities of {self.choices} choices"

    def from_targets(self, z: Tensor) -> CategoricalRows:
        return CategoricalRows.as_they_are(_log(self.checked(z)))

    def targets(self, distribution: CategoricalRows) -> Tensor:
        return distribution.probabilities

    def cross_entropy(self, z: Tensor, moments: Tensor) -> Tensor:
        return -weighted(moments.to(z), _log(z))

    def cross_entropy_gradient(self, z: Tensor, moments: Tensor) -> Tensor:
        return -moments.to(z) / _positive(z)

    def cross_entropy_curvature(self, z: Tensor, moments: Tensor) -> Tensor:
        return moments.to(z) / _positive(z).square()

    def cross_entropy_smoothness(self, moments: Tensor) -> float | None:
        return None

    def entropy_gradient(self, z: Tensor) -> Tensor:
        return -1.0 - _log(z)

    def divergence_gradient(self, z: Tensor, other: CategoricalRows) -> Tensor:
        return 1.0 + _log(z) - other.log_probabilities

    def divergence_curvature(self, z: Tensor, other: CategoricalRows) -> Tensor:
        return 1.0 / _positive(z)

    def divergence_smoothness(self, other: CategoricalRows) -> float | None:
        return None


def _positive(z: Tensor) -> Tensor:
    return z.clamp_min(torch.finfo(z.dtype).tiny)


def _log(z: Tensor) -> Tensor:
    return _positive(z).log()
