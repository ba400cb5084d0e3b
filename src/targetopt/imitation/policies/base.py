"""What every policy offers: a network whose targets are read as distributions over actions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from targetopt.distributions import Family
from targetopt.imitation.policies import weights
from targetopt.imitation.policies.learner import Learner
from targetopt.imitation.policies.network import Array
from targetopt.losses import Loss
from targetopt.types import BadArgument, Diverged

LossName = Literal["kl", "reverse-kl", "cross-entropy", "mean-squared"]

Behaviour = Callable[[Array, np.random.Generator], Array]
"""``(states, rng) -> actions``: one row of action per row of state; the gatherer clips them."""


class Policy(Learner):
    """A learner whose targets are parameters of a distribution over actions.

    Attributes:
        family: how its targets are read.
        objective: the name of the loss it is trained by: ``"kl"``, KL(π_e ‖ π), unless `train` was told otherwise.
    """

    family: Family
    kind: ClassVar[str]
    """What it acts in, as `ActionSpace.kind` says it."""
    objective: LossName = "kl"
    objectives: ClassVar[tuple[LossName, ...]] = ("kl", "reverse-kl", "cross-entropy")

    @property
    @abstractmethod
    def action_size(self) -> int:
        """Numbers in an action."""

    @abstractmethod
    def acts(self, z: Array) -> Array:
        """The likeliest action of each row of targets: a Gaussian's mean."""

    @abstractmethod
    def draws(self, z: Array, rng: np.random.Generator, noise: float | None = None) -> Array:
        """One action drawn for each row of targets; ``noise`` is another spread than the policy's."""

    @property
    def is_quadratic(self) -> bool:
        """Whether the loss of single actions is a sum of squares, each with a weight of its output alone."""
        return False

    @property
    @abstractmethod
    def little_noise(self) -> Any:
        """A spread for driving that is small against what actions can be."""

    @property
    @abstractmethod
    def natural_step(self) -> float | None:
        """η = 1/L of the loss, where L is finite and does not depend on what the expert says; else None."""

    @abstractmethod
    def loss(self, labels: Array) -> Loss:
        """The loss of the targets in states with these labels, by the policy's `objective`."""

    @abstractmethod
    def extras(self) -> dict[str, NDArray[Any]]:
        """What the policy is made with beside its network, as arrays: part of its files."""

    def take_extras(self, extras: Mapping[str, NDArray[Any]]) -> None:
        """Take what `extras` gave."""

    def mean_action(self) -> Callable[[Array], Array]:
        """The likeliest action as a function of states."""
        targets = self.numpy()
        return lambda states: self.acts(targets(states))

    def behaviour(self, noise: Any = None) -> Behaviour:
        """What the policy does when it drives: it draws from its distribution, or with another spread."""
        targets = self.numpy()

        def drawn(states: Array, rng: np.random.Generator) -> Array:
            z = targets(states)
            if not np.isfinite(z).all():
                raise Diverged(
                    "the learner has diverged: its mean action is not finite in states that it visits. Lower lr=, or "
                    "use SSO with inner=to.Armijo() or to.LBFGS()."
                )
            return self.draws(z, rng, noise)

        return drawn

    def train_by(self, objective: LossName) -> None:
        """Take the loss of this name."""
        if objective not in self.objectives:
            known = ", ".join(map(repr, self.objectives))
            raise BadArgument(
                f"loss={objective!r} is none that {type(self).__name__} can be trained by: choose one of {known}"
            )
        self.objective = objective

    def save(self, path: str | Path) -> Path:
        """Write weights, provenance and what acting needs to a safetensors file (`load_policy` reads it).

        Of a network that was not made here the file holds the weights and a description; whoever loads
        it builds the module.
        """
        header = {
            "kind": "policy",
            "learner": self.description,
            "environment": self.environment,
            "provenance": self.provenance,
        }
        return weights.write(path, {**self._tensors(), **self.extras()}, header)
