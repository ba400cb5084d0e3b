"""Gaussians with a diagonal covariance: continuous actions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from targetopt.distributions.base import Distribution, Family
from targetopt.types import BadArgument, positive_int

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class GaussianRows(Distribution):
    """N(m_i, diag σ_i²) for each row i.

    Args:
        mean: m, shape ``(n, k)``.
        log_std: log σ, of the same shape, or ``(k,)`` for all rows.

    Example:
        >>> unit = GaussianRows(torch.zeros(1, 2), torch.zeros(2))
        >>> wide = GaussianRows(torch.ones(1, 2), torch.full((2,), math.log(2.0)))
        >>> unit.kl(wide), unit.mode()
        (tensor([0.8863]), tensor([[0., 0.]]))
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        if mean.ndim != 2 or log_std.shape not in {mean.shape, mean.shape[1:]}:
            raise BadArgument(
                f"GaussianRows: mean must have shape (n, k) and log_std that or (k,); got {tuple(mean.shape)} and "
                f"{tuple(log_std.shape)}"
            )
        self.mean = mean
        self.log_std = log_std.to(mean).expand_as(mean)

    def __len__(self) -> int:
        return self.mean.shape[0]

    @property
    def std(self) -> Tensor:
        return self.log_std.exp()

    def log_prob(self, actions: Tensor) -> Tensor:
        scaled = (actions.to(self.mean) - self.mean) / self.std
        return -(0.5 * scaled.square() + self.log_std + HALF_LOG_2PI).sum(dim=1)

    def entropy(self) -> Tensor:
        return (self.log_std + (HALF_LOG_2PI + 0.5)).sum(dim=1)

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return self.mean + self.std * noise

    def mode(self) -> Tensor:
        return self.mean.detach()

    def kl(self, other: GaussianRows) -> Tensor:
        """Σ log σ'/σ + (σ² + (m − m')²)/2σ'² − ½, over the actions."""
        ratio = self.log_std - other.log_std
        away = (self.mean - other.mean) / other.std
        # expm1 keeps what is left where both spreads are nearly the same
        return (0.5 * (torch.expm1(2.0 * ratio) + away.square()) - ratio).sum(dim=1)

    def natural(self) -> Tensor:
        """(m/σ², −1/2σ²) for T(a) = (a, a²)."""
        precision = (-2.0 * self.log_std).exp()
        return torch.cat([self.mean * precision, -0.5 * precision], dim=1)

    def mean_parameters(self) -> Tensor:
        """(m, m² + σ²)."""
        return torch.cat([self.mean, self.mean.square() + self.std.square()], dim=1)

    @classmethod
    def from_natural(cls, natural: Tensor) -> GaussianRows:
        """The inverse of `natural`."""
        scaled, minus_half_precision = natural.chunk(2, dim=1)
        variance = -0.5 / minus_half_precision
        return cls(scaled * variance, 0.5 * variance.log())

    @classmethod
    def from_mean_parameters(cls, means: Tensor) -> GaussianRows:
        """The inverse of `mean_parameters`."""
        first, second = means.chunk(2, dim=1)
        return cls(first, 0.5 * (second - first.square()).log())

    def rows(self, index: Tensor) -> GaussianRows:
        return GaussianRows(self.mean[index], self.log_std[index])

    def to(self, like: Tensor) -> GaussianRows:
        return GaussianRows(self.mean.to(like), self.log_std.to(like))


@dataclass(frozen=True)
class Gaussian(Family):
    """N(m, diag σ²) over k actions; the targets are m where σ is fixed, else (m, log σ).

    With ``std=None`` the deviation is part of the targets. Whether a network gives it for each state, or one learned
    parameter for all of them, is the network's affair: a learned parameter is repeated in every row.

    Args:
        actions: k.
        std: the fixed σ, one number or one for each action; None where it is part of the targets.

    Example:
        >>> family = Gaussian(2, std=0.5)
        >>> policy = family.from_targets(torch.zeros(3, 2))
        >>> policy.log_prob(torch.zeros(3, 2))
        tensor([-0.4516, -0.4516, -0.4516])
        >>> Gaussian(2).size  # means, then logarithms of deviations
        4
    """

    actions: int
    std: float | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        positive_int("actions", self.actions)
        if self.std is None:
            return
        std = np.asarray(self.std, dtype=np.float64)
        fits = std.shape in {(), (self.actions,)} and np.isfinite(std).all() and (std > 0).all()
        if not fits:
            raise BadArgument(
                f"Gaussian: std={self.std!r} must be positive and finite, one number or one for each of the "
                f"{self.actions} actions; None makes it part of the targets"
            )
        plain = float(std) if std.ndim == 0 else tuple(std.tolist())
        object.__setattr__(self, "std", plain)

    @property
    def size(self) -> int:
        return self.actions if self.std is not None else 2 * self.actions

    @property
    def noun(self) -> str:
        held = "mean" if self.std is not None else "mean and log std"
        return f"{held} of {self.actions} actions"

    def from_targets(self, z: Tensor) -> GaussianRows:
        return GaussianRows(*self._parts(self.checked(z)))

    def targets(self, distribution: GaussianRows) -> Tensor:
        """The mean, with log σ unless that is fixed (then it is left out, whatever it is)."""
        parts = (
            [distribution.mean]
            if self.std is not None
            else [distribution.mean, distribution.log_std]
        )
        return torch.cat(parts, dim=1)

    def _parts(self, z: Tensor) -> tuple[Tensor, Tensor]:
        if self.std is None:
            mean, log_std = z.chunk(2, dim=1)
            return mean, log_std
        return z, self._fixed(z).log().expand_as(z)

    def _fixed(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.std, dtype=like.dtype, device=like.device)

    # -- H(p, π_z), from the mean and the variance of p --------------------------------------------------------

    def moments(self, known: GaussianRows | Tensor) -> Tensor:
        """(E a, Var a): those of a distribution, or (a, 0) of actions for certain."""
        if isinstance(known, Tensor):
            return torch.cat([known, torch.zeros_like(known)], dim=1)
        return torch.cat([known.mean, (2.0 * known.log_std).exp()], dim=1)

    def cross_entropy(self, z: Tensor, moments: Tensor) -> Tensor:
        mean, log_std = self._parts(z)
        _, precision, second = _second_moment(mean, log_std, moments)
        return (0.5 * second * precision + log_std + HALF_LOG_2PI).sum(dim=1)

    def cross_entropy_gradient(self, z: Tensor, moments: Tensor) -> Tensor:
        mean, log_std = self._parts(z)
        away, precision, second = _second_moment(mean, log_std, moments)
        in_mean = away * precision
        if self.std is not None:
            return in_mean
        return torch.cat([in_mean, 1.0 - second * precision], dim=1)

    def cross_entropy_curvature(self, z: Tensor, moments: Tensor) -> Tensor:
        """1/σ² where σ is fixed; else (1/σ², −2(m − m_p)/σ²; …, 2E(a − m)²/σ²), which may be indefinite."""
        mean, log_std = self._parts(z)
        away, precision, second = _second_moment(mean, log_std, moments)
        if self.std is not None:
            return precision.expand_as(z).contiguous()
        k, full = self.actions, z.new_zeros(len(z), self.size, self.size)
        own = torch.arange(k)
        full[:, own, own] = precision
        full[:, own + k, own + k] = 2.0 * second * precision
        full[:, own, own + k] = full[:, own + k, own] = -2.0 * away * precision
        return full

    def cross_entropy_smoothness(self, moments: Tensor) -> float | None:
        return None if self.std is None else float(1.0 / np.min(self.std) ** 2)

    def entropy_gradient(self, z: Tensor) -> Tensor:
        """1 in every log σ; nothing where σ is fixed."""
        found = torch.zeros_like(z)
        if self.std is None:
            found[:, self.actions :] = 1.0
        return found

    # -- KL(π_z ‖ other) ------------------------------------------------------------------------------------

    def divergence_gradient(self, z: Tensor, other: GaussianRows) -> Tensor:
        mean, log_std = self._parts(z)
        in_mean = (mean - other.mean) / other.std.square()
        if self.std is not None:
            return in_mean
        return torch.cat([in_mean, torch.expm1(2.0 * (log_std - other.log_std))], dim=1)

    def divergence_curvature(self, z: Tensor, other: GaussianRows) -> Tensor:
        _, log_std = self._parts(z)
        in_mean = (-2.0 * other.log_std).exp()
        if self.std is not None:
            return in_mean.contiguous()
        return torch.cat([in_mean, 2.0 * (2.0 * (log_std - other.log_std)).exp()], dim=1)

    def divergence_smoothness(self, other: GaussianRows) -> float | None:
        if self.std is None or len(other) == 0:
            return None
        return float((-2.0 * other.log_std.min()).exp())


def _second_moment(mean: Tensor, log_std: Tensor, moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """m − m_p, 1/σ², and E_p (a − m)²."""
    center, variance = moments.to(mean).chunk(2, dim=1)
    away = mean - center
    return away, (-2.0 * log_std).exp(), variance + away.square()
