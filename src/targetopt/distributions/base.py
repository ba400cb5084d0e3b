"""What every family of distributions offers to policies, and to the losses between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from targetopt.types import BadArgument


class Distribution(ABC):
    """n distributions over actions, one a row: what the families' ``from_targets`` gives.

    Everything is per row and can be differentiated by autograd, but for `sample` and `mode`.
    """

    @abstractmethod
    def __len__(self) -> int:
        """How many distributions there are."""

    @abstractmethod
    def log_prob(self, actions: Tensor) -> Tensor:
        """log π_i(a_i), shape ``(n,)``: a density for continuous actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """−E log π_i, shape ``(n,)``."""

    @abstractmethod
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One action for each row."""

    @abstractmethod
    def mode(self) -> Tensor:
        """The likeliest action of each row: the mean of a Gaussian."""

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """KL(π_i ‖ other_i) = E_π [log π_i − log other_i], shape ``(n,)``."""

    @abstractmethod
    def natural(self) -> Tensor:
        """The natural parameters η of π(a) ∝ h(a) exp(η · T(a)), one row each."""

    @abstractmethod
    def mean_parameters(self) -> Tensor:
        """E T(a), one row each: the gradient of the log-partition function at the natural parameters."""

    @abstractmethod
    def rows(self, index: Tensor) -> Self:
        """Some of the distributions (a mini-batch)."""

    @abstractmethod
    def to(self, like: Tensor) -> Self:
        """The same distributions in the number type and on the device of ``like``."""


class Family(ABC):
    """How rows of targets are read as distributions, and how the losses between them depend on the targets.

    A *cross-entropy* is H(p, π_z) = −E_p log π_z, where p is a distribution of the same kind, or one action for
    certain (see `moments`); a *divergence* is KL(π_z ‖ p). Both come with their gradient and curvature in z, shaped as
    `targetopt.losses.Loss` has them, and with a bound on the curvature where there is one.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Numbers in a row of targets."""

    @property
    @abstractmethod
    def noun(self) -> str:
        """What a row of targets holds, for messages: "mean and log std of 3 actions"."""

    @abstractmethod
    def from_targets(self, z: Tensor) -> Distribution:
        """The distributions that the rows of ``z``, shape ``(n, size)``, stand for."""

    @abstractmethod
    def targets(self, distribution: Any) -> Tensor:
        """The rows of targets that stand for a distribution: the inverse of `from_targets`."""

    @abstractmethod
    def moments(self, known: Any) -> Tensor:
        """What a cross-entropy needs to know of p: a distribution's moments, or those of actions for certain."""

    @abstractmethod
    def cross_entropy(self, z: Tensor, moments: Tensor) -> Tensor:
        """H(p_i, π_{z_i}), shape ``(n,)``."""

    @abstractmethod
    def cross_entropy_gradient(self, z: Tensor, moments: Tensor) -> Tensor: ...

    @abstractmethod
    def cross_entropy_curvature(self, z: Tensor, moments: Tensor) -> Tensor: ...

    @abstractmethod
    def cross_entropy_smoothness(self, moments: Tensor) -> float | None:
        """L of the cross-entropy in z, over all z; None where its curvature has no bound."""

    @abstractmethod
    def divergence_gradient(self, z: Tensor, other: Any) -> Tensor:
        """∂KL(π_z ‖ other)/∂z."""

    @abstractmethod
    def divergence_curvature(self, z: Tensor, other: Any) -> Tensor: ...

    @abstractmethod
    def divergence_smoothness(self, other: Any) -> float | None:
        """L of KL(π_z ‖ other) in z, over all z; None where its curvature has no bound."""

    @abstractmethod
    def entropy_gradient(self, z: Tensor) -> Tensor:
        """∂H(π_z)/∂z, shaped like ``z``."""

    def checked(self, z: Tensor) -> Tensor:
        """``z``, refused unless it has one row of `size` numbers for each distribution."""
        if z.ndim != 2 or z.shape[1] != self.size or not z.is_floating_point():
            raise BadArgument(
                f"{type(self).__name__}: targets must have shape (n, {self.size}), the {self.noun}; got "
                f"{tuple(z.shape)}, {z.dtype}"
            )
        return z


def same_length(name: str, z: Tensor, count: int) -> None:
    """Refuse targets that are not as many as the labels."""
    if z.shape[0] != count:
        raise BadArgument(f"{name}: there are {z.shape[0]} rows of targets and {count} of labels")


def whole_numbers(name: str, actions: Tensor, sizes: Tensor) -> Tensor:
    """Actions as integers, refused unless each lies in its set 0 … size − 1."""
    whole = actions.long()
    if not torch.equal(whole.to(actions.dtype), actions):
        bad = actions[whole.to(actions.dtype) != actions].flatten()[0]
        raise BadArgument(f"{name}: actions must be whole numbers; found {float(bad)!r}")
    outside = (whole < 0) | (whole >= sizes.to(whole.device))
    if outside.any():
        row = int(outside.reshape(len(whole), -1).any(dim=1).nonzero()[0, 0])
        raise BadArgument(
            f"{name}: action {whole[row].tolist()} of row {row} is outside of its set; choices count from 0, and there "
            f"are {sizes.tolist()} of them"
        )
    return whole
