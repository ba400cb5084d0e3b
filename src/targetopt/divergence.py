"""Bregman divergences D(z, z_t): how mirror descent measures distance in target space (App. B.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.surrogate import (
    BinaryEntropic,
    EntropicProximal,
    Quadratic,
    Surrogate,
    both_chances,
)
from targetopt.types import BadForward, MissingCapability, TargetPoint


class Divergence(ABC):
    """Asked once per outer step for the proximal surrogate of its geometry."""

    weighted: ClassVar[bool] = False
    """Whether its surrogate knows what weights of the rows mean."""

    scaled: ClassVar[bool] = False
    """Whether its surrogate gives each row its own step (``point.etas``)."""

    @abstractmethod
    def surrogate(self, point: TargetPoint, eta: float) -> Surrogate:
        """q(z) = ℓ(z_t) + ⟨g, z − z_t⟩ + (1/η) mean D(z_i, z_t,i)."""

    def check(self, z: Tensor) -> None:  # noqa: B027 (most have nothing to refuse)
        """Refuse targets that this geometry does not know, before the oracle is asked about them."""

    @abstractmethod
    def value(self, z: Tensor, reference: Tensor) -> Tensor:
        """D(z_i, reference_i) per example, shape ``(n,)``."""

    def gradient(self, z: Tensor, reference: Tensor) -> Tensor:
        """∂D(z_i, reference_i)/∂z_i, shaped like ``z``: for surrogates that are not linear beside it."""
        raise self._unknown("gradient")

    def curvature_product(self, z: Tensor, reference: Tensor, v: Tensor) -> Tensor:
        """∂²D(z_i, reference_i)/∂z_i² v_i, shaped like ``z``."""
        raise self._unknown("curvature")

    def _unknown(self, what: str) -> MissingCapability:
        return MissingCapability(
            f"{type(self).__name__} does not say its {what} by itself. Give it the method {what}"
            f"{'_product' if what == 'curvature' else ''}, or use SquaredEuclidean."
        )


@dataclass(frozen=True)
class SquaredEuclidean(Divergence):
    """D(z, z') = ½‖z − z'‖²; the half-step is z − ηg.

    Example:
        >>> SquaredEuclidean().value(torch.tensor([[1.0, 1.0]]), torch.zeros(1, 2))
        tensor([1.])
    """

    weighted: ClassVar[bool] = True
    scaled: ClassVar[bool] = True

    def surrogate(self, point: TargetPoint, eta: float) -> Quadratic:
        z, metric = point.targets, point.targets.new_tensor(1.0 / eta)
        if point.scales is not None:
            metric = metric / point.scales.reshape(-1, *[1] * (z.ndim - 1))
        if point.weights is not None or point.scales is not None:
            metric = point.weighted(metric.expand_as(z))
        return Quadratic(z, point.weighted(point.gradients), metric, point.loss)

    def value(self, z: Tensor, reference: Tensor) -> Tensor:
        return 0.5 * (z - reference).square().reshape(z.shape[0], -1).sum(dim=1)

    def gradient(self, z: Tensor, reference: Tensor) -> Tensor:
        return z - reference

    def curvature_product(self, z: Tensor, reference: Tensor, v: Tensor) -> Tensor:
        return v


@dataclass(frozen=True)
class NegativeEntropy(Divergence):
    """D(z, z') = Σ z log(z/z') on the simplex; the half-step is z·exp(−ηg), renormalised.

    For models whose targets are probabilities: a softmax at the end, shape ``(n, k)``, or a sigmoid, shape ``(n,)``,
    where z stands for (z, 1 − z). Computed in log space, so gradients of any size are safe.

    Args:
        tolerance: how far a row's sum may be from 1 before the targets are refused.

    Example:
        >>> half = torch.tensor([[0.5, 0.5]])
        >>> NegativeEntropy().value(torch.tensor([[1.0, 0.0]]), half)
        tensor([0.6931])
        >>> NegativeEntropy().value(torch.tensor([1.0]), torch.tensor([0.5]))
        tensor([0.6931])

    Reference: Bubeck, *Convex Optimization: Algorithms and Complexity*, 2015, ch. 4; paper, App. B.2.
    """

    tolerance: float = 1e-3

    def surrogate(self, point: TargetPoint, eta: float) -> EntropicProximal | BinaryEntropic:
        z, g = point.targets, point.gradients
        self.check(z)
        if z.ndim == 1:
            slopes = torch.stack([g, torch.zeros_like(g)], dim=1)
            return BinaryEntropic(self._proximal(both_chances(z), slopes, eta, point.loss))
        return self._proximal(z, g, eta, point.loss)

    def _proximal(self, z: Tensor, g: Tensor, eta: float, loss: Tensor) -> EntropicProximal:
        log_z = z.clamp_min(torch.finfo(z.dtype).tiny).log()
        moved = log_z - eta * g
        log_norm = torch.logsumexp(moved, dim=1, keepdim=True)
        half = moved - log_norm
        # KL(z_t ‖ h) = η g·z_t + log_norm on the simplex, so this constant makes q(z_t) = ℓ(z_t).
        at_anchor = present().mean(z * (log_z - half) - z + half.exp()) / eta
        return EntropicProximal(z, half, eta, loss - at_anchor)

    def value(self, z: Tensor, reference: Tensor) -> Tensor:
        if z.ndim == 1:
            z, reference = both_chances(z), both_chances(reference)
        log_reference = reference.clamp_min(torch.finfo(z.dtype).tiny).log()
        return (torch.xlogy(z, z) - z * log_reference - z + reference).sum(dim=1)

    def check(self, z: Tensor) -> None:
        remedy = (
            "Let the forward end in softmax (or in sigmoid, for one probability a row), or use "
            "MirrorDescent(SquaredEuclidean()) on the logits."
        )
        if z.ndim not in (1, 2):
            raise BadForward(
                "NegativeEntropy needs probabilities of shape (n, k), or (n,) for one a row; the forward gives "
                f"{tuple(z.shape)}. {remedy}"
            )
        if z.ndim == 1:
            outside = (z < 0) | (z > 1)
            if outside.any():
                row = int(outside.nonzero()[0, 0])
                raise BadForward(
                    "NegativeEntropy needs targets that are probabilities, between 0 and 1; row "
                    f"{row} is {z[row].item():.6g}. {remedy}"
                )
            return
        off = (z.sum(dim=1) - 1).abs()
        bad = (z < 0).any(dim=1) | (off > self.tolerance)
        if bad.any():
            row = int(bad.nonzero()[0, 0])
            raise BadForward(
                "NegativeEntropy needs targets that are probabilities, rows ≥ 0 with sum 1; row "
                f"{row} has smallest entry {z[row].min().item():.3g} and sum {z[row].sum().item():.6g}. {remedy}"
            )
