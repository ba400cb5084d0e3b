"""Softmax cross-entropy."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from targetopt.losses.base import Evaluation, Loss, checked_labels
from targetopt.losses.logistic import RAREST
from targetopt.types import BadArgument


class CrossEntropy(Loss):
    """Softmax cross-entropy, ℓ_i(z) = log Σ_c exp(z_ic) − Σ_c y_ic z_ic; L = ½.

    ``labels`` are integers ``(n,)`` or probabilities ``(n, k)``, of a teacher in half precision too:
    rows that sum to 1 as nearly as their type can are made to do so in float32 or float64. The
    curvature of one example is the matrix diag(p) − ppᵀ, whose norm never exceeds ½. ``classes`` says
    how many there are where integer labels may lack the last ones.

    Example:
        >>> loss = CrossEntropy(torch.tensor([0, 1]))
        >>> loss.gradient(torch.zeros(2, 2))
        tensor([[-0.5000,  0.5000],
                [ 0.5000, -0.5000]])
    """

    smoothness = 0.5
    by_rows: ClassVar[tuple[str, ...]] = ("labels",)
    _TOLERANCE: ClassVar[float] = 1e-4

    def __init__(self, labels: Tensor, classes: int | None = None) -> None:
        self.labels = checked_labels("CrossEntropy", labels)
        self.classes = classes
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

    def _checked(self, z: Tensor) -> None:
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
            return
        largest = int(self.labels.max()) if n else 0
        if largest >= z.shape[1]:
            raise BadArgument(
                f"CrossEntropy: label {largest} needs {largest + 1} outputs; the forward gives {z.shape[1]}"
            )

    def _probabilities(self, z: Tensor) -> Tensor:
        self._checked(z)
        if self.labels.is_floating_point():
            return self.labels.to(dtype=z.dtype, device=z.device)
        return F.one_hot(self.labels.to(z.device).long(), z.shape[1]).to(z.dtype)

    def value(self, z: Tensor) -> Tensor:
        return -(self._probabilities(z) * torch.log_softmax(z, dim=1)).sum(dim=1)

    def gradient(self, z: Tensor) -> Tensor:
        return torch.softmax(z, dim=1) - self._probabilities(z)

    def curvature(self, z: Tensor) -> Tensor:
        self._checked(z)
        p = torch.softmax(z, dim=1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def evaluate(self, z: Tensor) -> Evaluation:
        """All three from one exponential of each target; the metric diag(p) − ppᵀ is kept as p."""
        self._checked(z)
        shifted = torch.sub(z, z.amax(dim=1, keepdim=True), out=self.room(z))
        p = torch.exp(shifted, out=self.room(z))
        whole = _row_sums(p)
        values = torch.log(whole)
        p.div_(whole.unsqueeze(1))
        if self.labels.is_floating_point():
            y = self.labels.to(dtype=z.dtype, device=z.device)
            values = -(y * shifted.sub_(values.unsqueeze(1))).sum(dim=1)
            return Evaluation(values, torch.sub(p, y, out=self.room(z)), p)
        own = self.labels.to(z.device).long().unsqueeze(1)
        values -= shifted.gather(1, own).squeeze(1)
        gradient = shifted.copy_(p)
        gradient.scatter_add_(1, own, p.new_full((), -1.0).expand(own.shape))
        return Evaluation(values, gradient, p)

    def curve(self, metric: Tensor, u: Tensor) -> Tensor:
        weighted = torch.mul(metric, u, out=self.room(u))
        return weighted.addcmul_(metric, _row_sums(weighted).unsqueeze(-1), value=-1)

    def diagonal(self, metric: Tensor) -> Tensor:
        return metric * (1.0 - metric)

    def lower_bound(self) -> Tensor:
        """The entropy of the labels: 0 for class numbers."""
        if not self.labels.is_floating_point():
            return super().lower_bound()
        return -torch.xlogy(self.labels, self.labels).double().sum(dim=1)

    def best_constant(self, weights: Tensor) -> Tensor:
        """The logarithms of the classes' shares, centred."""
        if self.labels.is_floating_point():
            shares = weights @ self.labels.to(weights)
        else:
            shares = torch.bincount(self.labels.long(), weights, minlength=self.classes or 0)
        logits = shares.clamp(min=RAREST).log()
        return logits - logits.mean()

    def rows(self, index: Tensor) -> Self:
        return self.with_tables({"labels": self.labels[index]})


def _row_sums(p: Tensor) -> Tensor:
    """Sums over the last axis. Where it has few entries, a product with ones takes a tenth of the time."""
    return p @ p.new_ones(p.shape[-1])
