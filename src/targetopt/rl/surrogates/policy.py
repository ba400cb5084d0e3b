"""The whole surrogate of a policy step: what it promises, what holds it back, and the entropy that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.divergence import Divergence
from targetopt.rl.surrogates.base import Reading, Term, Visits
from targetopt.surrogate import Surrogate
from targetopt.types import MissingCapability


@dataclass(frozen=True)
class PolicySurrogate(Surrogate):
    """q(z) = mean_i w_i [ term_i(z_i) + (1/η) D(z_i, z_t,i) − β H(π_{z_i}) ].

    Attributes:
        visits: the rows.
        term: what the step promises.
        divergence: D; None where nothing but the term holds the step back.
        eta: η, one number, or one for each row, shape ``(n,)``.
        entropy: β, how much the entropy H is worth.
        rescale: whether advantages are brought to mean 0 and deviation 1 in every mini-batch.
    """

    visits: Visits
    term: Term
    divergence: Divergence | None
    eta: float | Tensor
    entropy: float = 0.0
    rescale: bool = False

    @property
    def anchor(self) -> Tensor:  # type: ignore[override]
        return self.visits.anchor

    @property
    def _across(self) -> float | Tensor:
        """η beside gradients, which have one more axis than values."""
        return self.eta.unsqueeze(1) if isinstance(self.eta, Tensor) else self.eta

    def _mean(self, entries: Tensor) -> Tensor:
        weights = self.visits.weights
        return present().mean(entries if weights is None else weights * entries)

    def entries(self, z: Tensor) -> Tensor:
        """q_i(z_i) row by row, without the weights."""
        found = self.term.entries(Reading(self.visits, z))
        if self.divergence is not None:
            found = found + self.divergence.value(z, self.anchor) / self.eta
        if self.entropy:
            found = found - self.entropy * self.visits.family.from_targets(z).entropy()
        return found

    def value(self, z: Tensor) -> Tensor:
        return self._mean(self.entries(z))

    def gradient(self, z: Tensor) -> Tensor:
        found = self.term.slopes(Reading(self.visits, z))
        if self.divergence is not None:
            found = found + self.divergence.gradient(z, self.anchor) / self._across
        if self.entropy:
            found = found - self.entropy * self.visits.family.entropy_gradient(z)
        weights = self.visits.weights
        return found if weights is None else weights.unsqueeze(1) * found

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        return self._mean(self.entries(after) - self.entries(before))

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        """That of the divergence alone, which is never negative at z_t; the term's may be."""
        if self.divergence is None:
            raise MissingCapability(
                f"{type(self.term).__name__} without a divergence has no curvature that a Gauss–Newton step could use. "
                'Pass divergence="forward-kl", or use inner=to.Torch(...), to.LBFGS() or to.Armijo().'
            )
        found = self.divergence.curvature_product(z, self.anchor, v) / self._across
        weights = self.visits.weights
        return found if weights is None else weights.unsqueeze(1) * found

    def minimiser(self) -> Tensor:
        """There is none in closed form: this is refused, with the way out."""
        raise MissingCapability(
            "the surrogate of a policy has no minimiser in closed form. Use an iterative inner solver such as "
            "to.LBFGS() instead of to.Exact()."
        )

    def beside(self, others: Sequence[Surrogate]) -> PolicySurrogate | None:
        every = [self, *(other for other in others if self._like(other))]
        if len(every) <= len(others):
            return None
        etas = [
            q.eta if isinstance(q.eta, Tensor) else q.anchor.new_full((len(q.anchor),), q.eta)
            for q in every
        ]
        same = not isinstance(self.eta, Tensor) and all(q.eta == self.eta for q in every)
        eta = self.eta if same else torch.cat(etas)
        return replace(self, visits=Visits.joined([q.visits for q in every]), eta=eta)

    def _like(self, other: Surrogate) -> TypeGuard[PolicySurrogate]:
        """Whether it is the same formula on other rows."""
        return (
            isinstance(other, PolicySurrogate)
            and (self.term, self.divergence, self.entropy, self.rescale, self.visits.family)
            == (other.term, other.divergence, other.entropy, other.rescale, other.visits.family)
            and (self.visits.weights is None) == (other.visits.weights is None)
        )

    def rows(self, index: Tensor | slice) -> PolicySurrogate:
        eta = self.eta[index] if isinstance(self.eta, Tensor) else self.eta
        return replace(self, visits=self.visits.rows(index), eta=eta)

    def minibatch(self, index: Tensor | slice, problems: int = 1) -> PolicySurrogate:
        part = self.rows(index)
        gains = part.visits.advantages
        if not self.rescale or len(gains) <= problems:
            return part
        each = gains.reshape(problems, -1)
        away = each - each.mean(dim=1, keepdim=True)
        plain = (away / (each.std(dim=1, keepdim=True) + 1e-8)).reshape(-1)
        return replace(part, visits=replace(part.visits, advantages=plain))
