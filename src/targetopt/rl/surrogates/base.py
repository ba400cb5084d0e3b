"""What surrogates of policies share: the rows that were visited, and how targets are read beside them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from targetopt.distributions import Family


@dataclass(frozen=True)
class Visits:
    """The visited states with what was done there, one a row.

    Attributes:
        family: how targets are read as distributions over actions.
        anchor: z_t, the targets of the policy that acted.
        known: what the family needs to know of the actions that were taken (`Family.moments`).
        log_probs: log π_t(a), shape ``(n,)``.
        advantages: A, shape ``(n,)``.
        scores: ∇_z log π_z(a) at z_t, shaped like ``anchor``.
        weights: how much each row counts, shape ``(n,)``; None if all count alike.
    """

    family: Family
    anchor: Tensor
    known: Tensor
    log_probs: Tensor
    advantages: Tensor
    scores: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        family: Family,
        anchor: Tensor,
        actions: Tensor,
        advantages: Tensor,
        weights: Tensor | None = None,
    ) -> Visits:
        """From the actions that were taken in the rows of ``anchor``."""
        known = family.moments(actions).to(anchor)
        return cls(
            family=family,
            anchor=anchor,
            known=known,
            log_probs=-family.cross_entropy(anchor, known),
            advantages=advantages.to(anchor),
            scores=-family.cross_entropy_gradient(anchor, known),
            weights=None if weights is None else weights.to(anchor),
        )

    @classmethod
    def joined(cls, several: Sequence[Visits]) -> Visits:
        """Those of several batches, one after another; all have weights, or none has."""

        def put(name: str) -> Tensor:
            return torch.cat([getattr(each, name) for each in several])

        return cls(
            several[0].family,
            put("anchor"),
            put("known"),
            put("log_probs"),
            put("advantages"),
            put("scores"),
            None if several[0].weights is None else put("weights"),
        )

    def rows(self, index: Tensor | slice) -> Visits:
        """Some of them: a mini-batch."""
        return Visits(
            self.family,
            self.anchor[index],
            self.known[index],
            self.log_probs[index],
            self.advantages[index],
            self.scores[index],
            None if self.weights is None else self.weights[index],
        )


class Reading:
    """Targets z, read as policies beside those that acted; what is asked for is computed once."""

    def __init__(self, visits: Visits, z: Tensor) -> None:
        self.visits, self.z = visits, z

    @cached_property
    def log_ratio(self) -> Tensor:
        """log π_z(a) − log π_t(a), shape ``(n,)``."""
        seen = self.visits
        return -seen.family.cross_entropy(self.z, seen.known) - seen.log_probs

    @cached_property
    def ratio(self) -> Tensor:
        """ρ = π_z(a)/π_t(a), shape ``(n,)``."""
        return self.log_ratio.exp()

    @cached_property
    def score(self) -> Tensor:
        """∇_z log π_z(a), shaped like z."""
        return -self.visits.family.cross_entropy_gradient(self.z, self.visits.known)


class Term(ABC):
    """A model of what π_z loses against π_t, row by row, with the gradient −A ∇ log π_t(a) at z_t and the value 0.

    It is asked by `PolicySurrogate` at every inner step, without autograd.
    """

    in_logits: ClassVar[bool] = False
    """Whether its mean over the actions of a state is −⟨π_t A, z − z_t⟩ for logits z, the gradient's own promise."""

    @abstractmethod
    def entries(self, at: Reading) -> Tensor:
        """Its values, shape ``(n,)``."""

    @abstractmethod
    def slopes(self, at: Reading) -> Tensor:
        """Its gradients in the targets, shaped like them."""
