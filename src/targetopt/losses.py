"""Losses in target space, one number per example, with derivatives in closed form.

A loss is made with its labels; ``value``, ``gradient`` and ``curvature`` take the targets. All but
`Poisson` (see there) are stable for targets as large as ±1e4. ``smoothness`` is L, the largest
curvature of one example's loss (``None`` when there is none), so ``1/(2L)`` is the paper's theoretical
target step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from targetopt.types import BadArgument


class Loss(ABC):
    """ℓ_i(z_i) for each example i; subclasses hold the labels.

    A new loss needs ``value`` and ``gradient``; ``curvature`` lets the Newton rule use it and
    ``smoothness`` gives ``lr=None`` its meaning.
    """

    smoothness: float | None = None
    strong_convexity: float = 0.0

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """Losses, shape ``(n,)``."""

    @abstractmethod
    def gradient(self, z: Tensor) -> Tensor:
        """∂ℓ_i/∂z_i, shaped like ``z``."""

    def curvature(self, z: Tensor) -> Tensor:
        """∂²ℓ_i/∂z_i²: shaped like ``z`` if diagonal, else ``(n, k, k)``."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form curvature")

    @abstractmethod
    def rows(self, index: Tensor) -> Loss:
        """The same loss on some of the examples (a mini-batch)."""


def _checked_labels(name: str, y: Tensor) -> Tensor:
    y = torch.as_tensor(y).detach()
    if y.ndim == 0:
        raise BadArgument(f"{name}: labels must have one row per example; got a single number")
    if y.is_floating_point() and not torch.isfinite(y).all():
        bad = (~torch.isfinite(y)).reshape(y.shape[0], -1).any(dim=1).nonzero()[:5, 0].tolist()
        raise BadArgument(f"{name}: labels must be finite; rows {bad} are not. Clean the data.")
    return y


def _sum_outputs(per_entry: Tensor) -> Tensor:
    return per_entry.reshape(per_entry.shape[0], -1).sum(dim=1) if per_entry.ndim > 1 else per_entry


class _Labelled(Loss):
    """A loss whose labels have the shape of the targets."""

    def __init__(self, y: Tensor) -> None:
        self.y = _checked_labels(type(self).__name__, y)

    def _matched(self, z: Tensor) -> Tensor:
        if z.shape != self.y.shape:
            raise BadArgument(
                f"{type(self).__name__}: targets have shape {tuple(z.shape)}, labels "
                f"{tuple(self.y.shape)}; they must be equal (no broadcasting: it would silently sum "
                "over pairs). Squeeze the forward's output or reshape the labels."
            )
        return self.y.to(dtype=z.dtype, device=z.device)


class Squared(_Labelled):
    """ℓ_i(z) = ½‖z_i − y_i‖², summed over outputs; L = μ = 1.

    Example:
        >>> loss = Squared(torch.tensor([0.0, 2.0]))
        >>> loss.value(torch.tensor([1.0, 2.0]))
        tensor([0.5000, 0.0000])
    """

    smoothness = 1.0
    strong_convexity = 1.0

    def value(self, z: Tensor) -> Tensor:
        return _sum_outputs(0.5 * (z - self._matched(z)).square())

    def gradient(self, z: Tensor) -> Tensor:
        return z - self._matched(z)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def rows(self, index: Tensor) -> Squared:
        return Squared(self.y[index])


class Logistic(_Labelled):
    """ℓ_i(z) = log(1 + exp(−y_i z_i)), labels ±1; L = ¼.

    Example:
        >>> loss = Logistic(torch.tensor([1.0, -1.0]))
        >>> loss.gradient(torch.zeros(2))
        tensor([-0.5000,  0.5000])
    """

    smoothness = 0.25

    def __init__(self, y: Tensor) -> None:
        super().__init__(y)
        wrong = (self.y != 1) & (self.y != -1)
        if wrong.any():
            value = self.y[wrong][0].item()
            raise BadArgument(
                f"Logistic: labels must be +1 or −1; found {value!r}. Map them first, for 0/1 labels "
                "with 2*y − 1."
            )

    def value(self, z: Tensor) -> Tensor:
        return _sum_outputs(-F.logsigmoid(self._matched(z) * z))  # softplus is linear above 20

    def gradient(self, z: Tensor) -> Tensor:
        y = self._matched(z)
        return -y * torch.sigmoid(-y * z)

    def curvature(self, z: Tensor) -> Tensor:
        self._matched(z)
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def rows(self, index: Tensor) -> Logistic:
        return Logistic(self.y[index])


class Huber(_Labelled):
    """ℓ_i(z) = ½r² where |r| ≤ δ, else δ(|r| − ½δ), r = z_i − y_i, summed over outputs; L = 1.

    Example:
        >>> Huber(torch.tensor([0.0]), delta=1.0).value(torch.tensor([3.0]))
        tensor([2.5000])
    """

    smoothness = 1.0

    def __init__(self, y: Tensor, delta: float = 1.0) -> None:
        super().__init__(y)
        if not 0 < delta < float("inf"):
            raise BadArgument(f"Huber: delta={delta!r} must be positive and finite")
        self.delta = float(delta)

    def value(self, z: Tensor) -> Tensor:
        r = (z - self._matched(z)).abs()
        inside = torch.clamp(r, max=self.delta)
        return _sum_outputs(inside * (r - 0.5 * inside))

    def gradient(self, z: Tensor) -> Tensor:
        return (z - self._matched(z)).clamp(-self.delta, self.delta)

    def curvature(self, z: Tensor) -> Tensor:
        return ((z - self._matched(z)).abs() <= self.delta).to(z.dtype)

    def rows(self, index: Tensor) -> Huber:
        return Huber(self.y[index], self.delta)


class Poisson(_Labelled):
    """ℓ_i(z) = exp(z_i) − y_i z_i: negative log-likelihood of counts up to a constant; no finite L.

    exp(z) has no finite value above z = 88 in float32 and 709 in float64; an answer from there is
    refused as not finite. Scale the features, or clamp what the forward gives.

    Example:
        >>> Poisson(torch.tensor([2.0])).gradient(torch.tensor([0.0]))
        tensor([-1.])
    """

    def __init__(self, y: Tensor) -> None:
        super().__init__(y)
        if (self.y < 0).any():
            raise BadArgument(
                f"Poisson: counts must not be negative; found {self.y.min().item()!r}"
            )

    def value(self, z: Tensor) -> Tensor:
        return _sum_outputs(z.exp() - self._matched(z) * z)

    def gradient(self, z: Tensor) -> Tensor:
        return z.exp() - self._matched(z)

    def curvature(self, z: Tensor) -> Tensor:
        self._matched(z)
        return z.exp()

    def rows(self, index: Tensor) -> Poisson:
        return Poisson(self.y[index])


class CrossEntropy(Loss):
    """Softmax cross-entropy, ℓ_i(z) = log Σ_c exp(z_ic) − Σ_c y_ic z_ic; L = ½.

    ``labels`` are integers ``(n,)`` or probabilities ``(n, k)``, of a teacher in half precision too:
    rows that sum to 1 as nearly as their type can are made to do so in float32 or float64. The
    curvature of one example is the matrix diag(p) − ppᵀ, whose norm never exceeds ½.

    Example:
        >>> loss = CrossEntropy(torch.tensor([0, 1]))
        >>> loss.gradient(torch.zeros(2, 2))
        tensor([[-0.5000,  0.5000],
                [ 0.5000, -0.5000]])
    """

    smoothness = 0.5
    _TOLERANCE: ClassVar[float] = 1e-4

    def __init__(self, labels: Tensor) -> None:
        self.labels = _checked_labels("CrossEntropy", labels)
        if self.labels.is_floating_point():
            self.labels = self._normalised(self.labels)
        elif self.labels.ndim != 1 or (self.labels < 0).any():
            raise BadArgument(
                "CrossEntropy: integer labels must have shape (n,) and count classes from 0; got shape "
                f"{tuple(self.labels.shape)}, smallest {self.labels.min().item()}"
            )

    def _normalised(self, labels: Tensor) -> Tensor:
        """Rows with sum 1 up to rounding: the gradient p − y is that of the value only for these."""
        wanted = (
            "CrossEntropy: floating-point labels must be probabilities, shape (n, k), each row "
            "non-negative with sum 1"
        )
        if labels.ndim != 2 or labels.shape[1] == 0:
            raise BadArgument(
                f"{wanted}; got shape {tuple(labels.shape)}. For class numbers pass integers."
            )
        tolerance = max(self._TOLERANCE, 4 * torch.finfo(labels.dtype).eps)
        labels = labels.to(torch.promote_types(labels.dtype, torch.float32))
        sums, least = labels.sum(dim=1), labels.amin(dim=1)
        off = (sums - 1).abs()
        bad = (off > tolerance) | (least < 0)
        if bad.any():
            row = int(torch.where(bad, torch.maximum(off, -least), -1.0).argmax())
            raise BadArgument(
                f"{wanted}; row {row} has the sum {float(sums[row]):.6g} and the smallest entry "
                f"{float(least[row]):.6g}. Apply softmax to logits; for class numbers pass integers."
            )
        rounding = 8 * torch.finfo(labels.dtype).eps
        exact = (off <= rounding).unsqueeze(1)  # left alone, so that rows() changes nothing
        return torch.where(exact, labels, labels / sums.unsqueeze(1))

    def _probabilities(self, z: Tensor) -> Tensor:
        n = self.labels.shape[0]
        if z.ndim != 2 or z.shape[0] != n:
            raise BadArgument(
                f"CrossEntropy: targets must have shape ({n}, classes); got {tuple(z.shape)}"
            )
        if self.labels.is_floating_point():
            if z.shape != self.labels.shape:
                raise BadArgument(
                    f"CrossEntropy: targets have shape {tuple(z.shape)}, labels {tuple(self.labels.shape)}"
                )
            return self.labels.to(dtype=z.dtype, device=z.device)
        largest = int(self.labels.max()) if n else 0
        if largest >= z.shape[1]:
            raise BadArgument(
                f"CrossEntropy: label {largest} needs {largest + 1} outputs; the forward gives {z.shape[1]}"
            )
        return F.one_hot(self.labels.to(z.device).long(), z.shape[1]).to(z.dtype)

    def value(self, z: Tensor) -> Tensor:
        return -(self._probabilities(z) * torch.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=1) - self._probabilities(z)

    def curvature(self, z: Tensor) -> Tensor:
        self._probabilities(z)
        p = torch.softmax(z, dim=1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def rows(self, index: Tensor) -> CrossEntropy:
        return CrossEntropy(self.labels[index])


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

    def __init__(self, mean: Tensor, covariance: Tensor | float = 1.0) -> None:
        self.mean = _checked_labels("GaussianKL", mean)
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
        return _sum_outputs(0.5 * self._difference(z) * self.gradient(z))

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

    def rows(self, index: Tensor) -> GaussianKL:
        return GaussianKL(self.mean[index], self.covariance)


class Ridged(Loss):
    """ℓ_i(z) + ½μ‖z_i‖²: any loss made μ-strongly convex in the targets.

    Thm 4.2 of the paper asks for a strongly convex ℓ, which the logistic loss is not; this is the
    loss to check the theorem on, and it works wherever a loss does.

    Example:
        >>> loss = Ridged(Logistic(torch.tensor([1.0])), 0.05)
        >>> loss.smoothness, loss.strong_convexity
        (0.3, 0.05)
    """

    def __init__(self, loss: Loss, mu: float) -> None:
        if not 0 < mu < math.inf:
            raise BadArgument(f"Ridged: mu={mu!r} must be positive and finite")
        self.loss = loss
        self.mu = float(mu)
        self.smoothness = None if loss.smoothness is None else loss.smoothness + self.mu
        self.strong_convexity = loss.strong_convexity + self.mu

    @property
    def y(self) -> Tensor:
        """The labels of the bare loss."""
        labels: Tensor = self.loss.y  # type: ignore[attr-defined]
        return labels

    def value(self, z: Tensor) -> Tensor:
        return self.loss.value(z) + 0.5 * self.mu * _sum_outputs(z.square())

    def gradient(self, z: Tensor) -> Tensor:
        return self.loss.gradient(z) + self.mu * z

    def curvature(self, z: Tensor) -> Tensor:
        inner = self.loss.curvature(z)
        if inner.ndim == z.ndim:
            return inner + self.mu
        return inner + self.mu * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)

    def rows(self, index: Tensor) -> Ridged:
        return Ridged(self.loss.rows(index), self.mu)
