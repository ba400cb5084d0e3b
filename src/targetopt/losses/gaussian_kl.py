"""The divergence of Gaussian policies."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from targetopt.losses.base import Loss, checked_labels, sum_outputs
from targetopt.types import BadArgument


class GaussianKL(Loss):
    """KL(N(μ_i, Σ) ‖ N(z_i, Σ)) = ½ (z_i − μ_i)ᵀ Σ⁻¹ (z_i − μ_i): imitate an expert's mean action.

    Args:
        mean: the expert's means μ, shape ``(n, k)`` or ``(n,)``.
        covariance: fixed Σ: a number (σ², the same for every output), the ``(k,)`` diagonal, or a
            ``(k, k)`` matrix. At 1 this is the paper's policy loss ½‖μ − μ_e‖² with L = 1.

    Example:
        >>> loss = GaussianKL(torch.zeros(1, 2), covariance=0.25)
        >>> loss.value(torch.ones(1, 2)), loss.smoothness
        (tensor([4.]), 4.0)
    """

    by_rows: ClassVar[tuple[str, ...]] = ("mean",)

    def __init__(self, mean: Tensor, covariance: Tensor | float = 1.0) -> None:
        self.mean = checked_labels("GaussianKL", mean)
        self.covariance = torch.as_tensor(covariance, dtype=torch.float64).detach().cpu()
        k = self.mean.shape[-1] if self.mean.ndim > 1 else 1
        full = self._full_covariance(k)
        eigenvalues = torch.linalg.eigvalsh(full)
        if not torch.isfinite(full).all() or not torch.equal(full, full.T) or eigenvalues[0] <= 0:
            raise BadArgument(
                "GaussianKL: covariance must be symmetric and positive definite; smallest eigenvalue "
                f"{float(eigenvalues[0])!r}"
            )
        self.precision: Tensor = torch.linalg.inv(full)
        self.smoothness = float(1.0 / eigenvalues[0])
        self.strong_convexity = float(1.0 / eigenvalues[-1])

    def _full_covariance(self, k: int) -> Tensor:
        if self.covariance.shape not in {(), (k,), (k, k)}:
            raise BadArgument(
                f"GaussianKL: covariance must be a number, shape ({k},) or ({k}, {k}) for means of shape "
                f"{tuple(self.mean.shape)}; got {tuple(self.covariance.shape)}"
            )
        if self.covariance.ndim == 2:
            return self.covariance
        return torch.diag(self.covariance.expand(k))

    def _difference(self, z: Tensor) -> Tensor:
        if z.shape != self.mean.shape:
            raise BadArgument(
                f"GaussianKL: targets have shape {tuple(z.shape)}, expert means {tuple(self.mean.shape)}; "
                "they must be equal"
            )
        return z - self.mean.to(dtype=z.dtype, device=z.device)

    def value(self, z: Tensor) -> Tensor:
        return sum_outputs(0.5 * self._difference(z) * self.gradient(z))

    def gradient(self, z: Tensor) -> Tensor:
        difference = self._difference(z)
        precision = self.precision.to(dtype=z.dtype, device=z.device)
        return difference * precision[0, 0] if z.ndim == 1 else difference @ precision

    def curvature(self, z: Tensor) -> Tensor:
        self._difference(z)
        precision = self.precision.to(dtype=z.dtype, device=z.device)
        if z.ndim == 1:
            return precision[0, 0].expand(z.shape)
        return precision.expand(z.shape[0], *precision.shape)

    def best_constant(self, weights: Tensor) -> Tensor:
        """The weighted mean of the expert's means."""
        return weights @ self.mean.to(weights)

    def rows(self, index: Tensor) -> Self:
        return self.with_tables({"mean": self.mean[index]})
