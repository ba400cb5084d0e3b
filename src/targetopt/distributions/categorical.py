"""One choice of several: discrete actions, from logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from targetopt.distributions.base import Distribution, Family, whole_numbers
from targetopt.types import BadArgument, positive_int


class CategoricalRows(Distribution):
    """π_i(a) = softmax(logits_i)_a for each row i.

    A logit of −inf is a choice that is never made.

    Args:
        logits: shape ``(n, c)``; any constant may be added to a row.

    Example:
        >>> policy = CategoricalRows(torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]]))
        >>> policy.probabilities, policy.mode()
        (tensor([[0.5000, 0.5000],
                [0.2500, 0.7500]]), tensor([0, 1]))
    """

    def __init__(self, logits: Tensor) -> None:
        if logits.ndim != 2 or not logits.is_floating_point():
            raise BadArgument(
                "CategoricalRows: logits must be floating-point numbers, shape (n, c); got shape "
                f"{tuple(logits.shape)}, {logits.dtype}"
            )
        self.log_probabilities = torch.log_softmax(logits, dim=1)

    @classmethod
    def from_probabilities(cls, probabilities: Tensor) -> CategoricalRows:
        """The same from probabilities; rows are normalised."""
        return cls(probabilities.log())

    @classmethod
    def as_they_are(cls, log_probabilities: Tensor) -> CategoricalRows:
        """From logarithms of probabilities that nobody normalises: derivatives are then in each of them alone."""
        made = cls.__new__(cls)
        made.log_probabilities = log_probabilities
        return made

    def __len__(self) -> int:
        return self.log_probabilities.shape[0]

    @property
    def probabilities(self) -> Tensor:
        return self.log_probabilities.exp()

    def log_prob(self, actions: Tensor) -> Tensor:
        choices = torch.tensor(self.log_probabilities.shape[1])
        chosen = whole_numbers("Categorical", actions, choices).reshape(-1, 1)
        return self.log_probabilities.gather(1, chosen).squeeze(1)

    def entropy(self) -> Tensor:
        return -weighted(self.probabilities, self.log_probabilities)

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(self.probabilities, 1, generator=generator).squeeze(1)

    def mode(self) -> Tensor:
        return self.log_probabilities.argmax(dim=1)

    def kl(self, other: CategoricalRows) -> Tensor:
        return weighted(self.probabilities, self.log_probabilities - other.log_probabilities)

    def natural(self) -> Tensor:
        """The logits less that of the last choice, which is then left out: a minimal representation."""
        return self.log_probabilities[:, :-1] - self.log_probabilities[:, -1:]

    def mean_parameters(self) -> Tensor:
        """The probabilities of all choices but the last."""
        return self.probabilities[:, :-1]

    @classmethod
    def from_natural(cls, natural: Tensor) -> CategoricalRows:
        """The inverse of `natural`."""
        return cls(torch.cat([natural, natural.new_zeros(len(natural), 1)], dim=1))

    @classmethod
    def from_mean_parameters(cls, means: Tensor) -> CategoricalRows:
        """The inverse of `mean_parameters`."""
        last = 1.0 - means.sum(dim=1, keepdim=True)
        return cls.from_probabilities(torch.cat([means, last], dim=1))

    def rows(self, index: Tensor) -> CategoricalRows:
        return CategoricalRows.as_they_are(self.log_probabilities[index])

    def to(self, like: Tensor) -> CategoricalRows:
        return CategoricalRows.as_they_are(self.log_probabilities.to(like))


@dataclass(frozen=True)
class Categorical(Family):
    """One of c choices; the targets are its logits.

    The cross-entropy has the gradient π_z − p and L = ½, whatever the labels. KL(π_z ‖ p) is not convex in the
    logits; its curvature in the direction v is E_π[(1 + a)(v − Ev)²] with a = log π/p − KL, so that
    L = max((1 + M)/2, 2 log c + (M − 1)/2), M the largest −log p.

    Args:
        choices: c.

    Example:
        >>> family = Categorical(3)
        >>> family.from_targets(torch.zeros(1, 3)).entropy()  # log 3
        tensor([1.0986])
    """

    choices: int

    def __post_init__(self) -> None:
        if positive_int("choices", self.choices) < 2:
            raise BadArgument(f"Categorical: choices={self.choices} must be at least 2")

    @property
    def size(self) -> int:
        return self.choices

    @property
    def noun(self) -> str:
        return f"logits of {self.choices} choices"

    def from_targets(self, z: Tensor) -> CategoricalRows:
        return CategoricalRows(self.checked(z))

    def targets(self, distribution: CategoricalRows) -> Tensor:
        return distribution.log_probabilities

    def moments(self, known: CategoricalRows | Tensor) -> Tensor:
        """The probabilities; those of actions for certain are 0 and 1."""
        if isinstance(known, CategoricalRows):
            return known.probabilities
        chosen = whole_numbers("Categorical", known, torch.tensor(self.choices)).reshape(-1)
        return torch.nn.functional.one_hot(chosen, self.choices).double()

    def cross_entropy(self, z: Tensor, moments: Tensor) -> Tensor:
        return -weighted(moments.to(z), torch.log_softmax(z, dim=1))

    def cross_entropy_gradient(self, z: Tensor, moments: Tensor) -> Tensor:
        return torch.softmax(z, dim=1) - moments.to(z)

    def cross_entropy_curvature(self, z: Tensor, moments: Tensor) -> Tensor:
        p = torch.softmax(z, dim=1)
        return torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)

    def cross_entropy_smoothness(self, moments: Tensor) -> float | None:
        return 0.5

    def entropy_gradient(self, z: Tensor) -> Tensor:
        log_p = torch.log_softmax(z, dim=1)
        p = log_p.exp()
        return -p * (log_p - weighted(p, log_p).unsqueeze(1))

    def divergence_gradient(self, z: Tensor, other: CategoricalRows) -> Tensor:
        p, excess = _excess(z, other)
        return p * excess

    def divergence_curvature(self, z: Tensor, other: CategoricalRows) -> Tensor:
        p, excess = _excess(z, other)
        pulled = p * excess
        cross = pulled.unsqueeze(2) * p.unsqueeze(1)
        outer = p.unsqueeze(2) * p.unsqueeze(1)
        return torch.diag_embed(p + pulled) - outer - cross - cross.mT

    def divergence_smoothness(self, other: CategoricalRows) -> float | None:
        if len(other) == 0:
            return None
        rarest = -float(other.log_probabilities.min())
        if not math.isfinite(rarest):
            return None
        return max(0.5 * (1.0 + rarest), 2.0 * math.log(self.choices) + 0.5 * (rarest - 1.0))


def weighted(p: Tensor, values: Tensor) -> Tensor:
    """Σ p·values by rows, where p = 0 makes the entry 0 whatever its value."""
    return torch.where(p > 0, p * values, torch.zeros_like(p)).sum(dim=1)


def _excess(z: Tensor, other: CategoricalRows) -> tuple[Tensor, Tensor]:
    """π_z, and log π_z/other less its mean, which is the divergence."""
    log_p = torch.log_softmax(z, dim=1)
    p, ratio = log_p.exp(), log_p - other.log_probabilities
    return p, ratio - (p * ratio).sum(dim=1, keepdim=True)
