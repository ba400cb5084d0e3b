"""Surrogates q(z): what a rule proposes and an inner solver minimises.

All work in the mean convention of `targetopt.types`: ``value`` is the mean over examples and
``gradient`` has *per-example* scale, so that ∇_θ q(f(θ)) = (1/n) Jᵀ gradient(f(θ)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.types import MissingCapability


def _mean(per_entry: Tensor) -> Tensor:
    return present().mean(per_entry)


class Surrogate(ABC):
    """A function of the targets that needs no oracle.

    The inner loop calls ``gradient`` once per step and ``change`` once per trial; neither may build
    an autograd graph.
    """

    anchor: Tensor
    """Targets the surrogate was built at; inner forwards must have this shape."""

    from_slopes: ClassVar[bool] = False
    """Whether a change is the step times the mean of both gradients, as of every quadratic; `Objective` then takes
    it from gradients that it has, and ``change``, which may need a product with a large metric, is not called."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """q(z), a scalar."""

    @abstractmethod
    def gradient(self, z: Tensor) -> Tensor:
        """∂q_i/∂z_i at per-example scale, shaped like ``z``."""

    @abstractmethod
    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        """q(after) − q(before), accurate even where the values agree in most digits."""

    @abstractmethod
    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        """∂²q_i/∂z_i² v_i at ``z``: the metric Gauss–Newton and exact solves use."""

    @abstractmethod
    def minimiser(self) -> Tensor:
        """The unconstrained minimiser z_{t+½}, where a perfect model would land."""

    def beside(self, others: Sequence[Surrogate]) -> Surrogate | None:
        """One surrogate of these rows and those of others, one after another; None where that is not offered.

        Its gradients are those of each by itself, row by row, so that several problems can be solved at once. Its value
        is a mean over all rows and belongs to none of them.
        """
        return None

    def rows(self, index: Tensor | slice) -> Surrogate:
        """The surrogate of some rows, its mean taken over them: a mini-batch of the inner loop."""
        raise MissingCapability(
            f"a {type(self).__name__} cannot be taken by rows, which mini-batches inside the inner loop need. Leave "
            "batch_size= out, or use a rule with a quadratic surrogate (GradientStep, AdaGrad, Newton)."
        )

    def minibatch(self, index: Tensor | slice, problems: int = 1) -> Surrogate:
        """What one inner step on these rows is made of: `rows`, unless something is scaled in every mini-batch.

        Args:
            index: the rows of the mini-batch.
            problems: as many problems stand side by side (`beside`), and each has as many of these rows, in one piece.
        """
        return self.rows(index)

    def damped(self, eta: float) -> Surrogate:
        """This surrogate plus (1/2η)‖z − anchor‖²."""
        return Damped(self, eta)

    def regularised_on(self, everything: Tensor) -> Surrogate:
        """The paper's analysis surrogate q̃, with the regulariser on all data, where there is one."""
        raise MissingCapability(
            f"regularise_on= needs a quadratic surrogate; this rule's is {type(self).__name__}. Use "
            "GradientStep, LineSearch or AdaGradNorm."
        )


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """q(z) = constant + mean_i [ s_i·(z_i − a_i) + ½ (z_i − a_i)ᵀ W_i (z_i − a_i) ].

    Attributes:
        anchor: ``a``; z_t, except for FTRL, which stays at its first targets.
        linear: ``s``, the gradient at the anchor, per example.
        metric: ``W``: a 0-d tensor (the same everywhere), a tensor shaped like ``anchor`` (diagonal)
            or with one more axis (a matrix per example).
        constant: the value at the anchor, or one for each row, of which the mean over the rows of all ranks is taken.
    """

    anchor: Tensor
    linear: Tensor
    metric: Tensor
    constant: Tensor

    @property
    def uniform(self) -> bool:
        """Whether the metric is one number."""
        return self.metric.ndim == 0

    def _weighted(self, v: Tensor) -> Tensor:
        if self.metric.ndim == self.anchor.ndim + 1:
            return torch.einsum("nij,nj->ni", self.metric, v)
        return self.metric * v

    def value(self, z: Tensor) -> Tensor:
        d = z - self.anchor
        level = _mean(self.constant) if self.constant.ndim else self.constant
        return level + _mean(d * (self.linear + 0.5 * self._weighted(d)))

    def gradient(self, z: Tensor) -> Tensor:
        return self.linear + self._weighted(z - self.anchor)

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        d = after - before
        if self.uniform:  # one pass fewer, on the hot path
            return _mean(d * torch.add(gradient_before, d * self.metric, alpha=0.5))
        return _mean(d * (gradient_before + 0.5 * self._weighted(d)))

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self._weighted(v)

    def minimiser(self) -> Tensor:
        if self.metric.ndim == self.anchor.ndim + 1:
            step: Tensor = torch.linalg.solve(self.metric, self.linear)
            return self.anchor - step
        return self.anchor - self.linear / self.metric

    def beside(self, others: Sequence[Surrogate]) -> Quadratic | None:
        every = [self, *(other for other in others if isinstance(other, Quadratic))]
        if len(every) <= len(others) or len({q.metric.ndim for q in every}) > 1:
            return None
        metrics = [q.metric.expand_as(q.anchor) if q.uniform else q.metric for q in every]
        same = self.uniform and all(bool(q.metric == self.metric) for q in every)
        return Quadratic(
            anchor=torch.cat([q.anchor for q in every]),
            linear=torch.cat([q.linear for q in every]),
            metric=self.metric if same else torch.cat(metrics),
            constant=torch.zeros_like(self.constant),
        )

    def rows(self, index: Tensor | slice) -> Quadratic:
        metric = self.metric if self.uniform else self.metric[index]
        constant = self.constant[index] if self.constant.ndim else self.constant
        return Quadratic(self.anchor[index], self.linear[index], metric, constant)

    def damped(self, eta: float) -> Quadratic:
        """This surrogate plus (1/2η)‖z − anchor‖², which is a quadratic too."""
        more = torch.ones_like(self.metric)
        if self.metric.ndim == self.anchor.ndim + 1:
            more = torch.eye(self.metric.shape[-1]).to(self.metric)
        return replace(self, metric=self.metric + more / eta)

    def regularised_on(self, everything: Tensor) -> Quadratic:
        """The paper's analysis surrogate q̃ (§4.1.1): gradient on the batch, regulariser on all data.

        Returns a surrogate of the stacked targets (batch rows first, then all rows)::

            q̃ = constant + (1/b) Σ_batch g_i·(z_i − z_t,i) + (1/η)(1/n) Σ_all ½‖z_i − z_t,i‖²

        which is the paper's with η' = ηn.
        """
        if not self.uniform:
            raise MissingCapability(
                "regularise_on= needs a rule whose metric is one number, since only the batch's "
                "curvature or memory is known. This rule's metric varies by example. Use "
                "GradientStep, LineSearch or AdaGradNorm."
            )
        b, n = self.anchor.shape[0], everything.shape[0]
        rows, world = b + n, present()
        on_batch, on_all = world.rows(b), world.rows(n)
        per_row = self.metric * ((on_batch + on_all) / on_all)
        shape = (rows, *([1] * (self.anchor.ndim - 1)))
        on = torch.zeros(shape, dtype=self.anchor.dtype, device=self.anchor.device)
        on[b:] = per_row
        return Quadratic(
            anchor=torch.cat([self.anchor, everything]),
            linear=torch.cat(
                [self.linear * ((on_batch + on_all) / on_batch), torch.zeros_like(everything)]
            ),
            metric=on.expand(rows, *self.anchor.shape[1:]),
            constant=self.constant,
        )


@dataclass(frozen=True)
class EntropicProximal(Surrogate):
    """q(z) = constant + (1/η) mean_i KL(z_i ‖ h_i), h the exponentiated-gradient half-step.

    For z and z_t on the simplex this equals ℓ(z_t) + ⟨g, z − z_t⟩ + (1/η) mean KL(z ‖ z_t), as
    log h = log z_t − ηg − log Σ z_t exp(−ηg). The generalised KL, Σ z log(z/h) − z + h, makes h the
    minimiser over all positive z too. Everything is held as log h.
    """

    anchor: Tensor
    log_half_step: Tensor
    eta: float
    constant: Tensor

    def _log(self, z: Tensor) -> Tensor:
        return z.clamp_min(torch.finfo(z.dtype).tiny).log()

    def _entries(self, z: Tensor) -> Tensor:
        inside = torch.xlogy(z, z) - z * self.log_half_step - z + self.log_half_step.exp()
        return torch.where(z < 0, torch.inf, inside) / self.eta

    def value(self, z: Tensor) -> Tensor:
        return self.constant + _mean(self._entries(z))

    def gradient(self, z: Tensor) -> Tensor:
        return (self._log(z) - self.log_half_step) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        # Bregman form: the linear part exactly, the remainder as KL(after ‖ before).
        d = after - before
        ratio = d / before.clamp_min(torch.finfo(before.dtype).tiny)
        # Near −1 the ratio has lost how small ``after`` is, and its logarithms do not cancel.
        logarithm = torch.where(
            ratio > -0.5,
            torch.log1p(ratio.clamp_min(-0.5)),
            self._log(after) - self._log(before),
        )
        remainder = torch.where(after == 0, before, after * logarithm - d)
        entries = d * gradient_before + remainder / self.eta
        return _mean(torch.where(after < 0, torch.inf, entries))

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return v / (self.eta * z.clamp_min(torch.finfo(z.dtype).tiny))

    def minimiser(self) -> Tensor:
        return self.log_half_step.exp()


@dataclass(frozen=True)
class BinaryEntropic(Surrogate):
    """q(z) = q'(z, 1 − z) for targets that are one probability a row, q' being entropic for rows of two."""

    inside: EntropicProximal

    @property
    def anchor(self) -> Tensor:  # type: ignore[override]
        return self.inside.anchor[:, 0]

    def value(self, z: Tensor) -> Tensor:
        return self.inside.value(both_chances(z))

    def gradient(self, z: Tensor) -> Tensor:
        own, other = self.inside.gradient(both_chances(z)).unbind(1)
        return own - other

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        slopes = torch.stack([gradient_before, torch.zeros_like(before)], dim=1)
        return self.inside.change(both_chances(before), both_chances(after), slopes)

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        along = torch.stack([v, -v], dim=1)
        own, other = self.inside.curvature_product(both_chances(z), along).unbind(1)
        return own - other

    def minimiser(self) -> Tensor:
        return self.inside.minimiser()[:, 0]


def both_chances(z: Tensor) -> Tensor:
    """(z_i, 1 − z_i) as rows."""
    return torch.stack([z, 1 - z], dim=1)


@dataclass(frozen=True)
class Damped(Surrogate):
    """q(z) + (1/2η)‖z − anchor‖²: a surrogate, held back."""

    inside: Surrogate
    eta: float

    @property
    def anchor(self) -> Tensor:  # type: ignore[override]
        return self.inside.anchor

    def rows(self, index: Tensor | slice) -> Damped:
        return replace(self, inside=self.inside.rows(index))

    def value(self, z: Tensor) -> Tensor:
        pull = present().mean((z - self.anchor).square())
        return self.inside.value(z) + pull / (2.0 * self.eta)

    def gradient(self, z: Tensor) -> Tensor:
        return self.inside.gradient(z) + (z - self.anchor) / self.eta

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        d = after - before
        away = (before - self.anchor) / self.eta
        pull = present().mean(d * (0.5 * d / self.eta + away))
        return self.inside.change(before, after, gradient_before - away) + pull

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        return self.inside.curvature_product(z, v) + v / self.eta

    def minimiser(self) -> Tensor:
        """There is none in closed form: this is refused, with the way out."""
        raise MissingCapability(
            f"a {type(self.inside).__name__} with a proximal term has no minimiser in closed form. Use an iterative "
            "inner solver such as to.LBFGS() instead of to.Exact(), or leave lr= out."
        )
