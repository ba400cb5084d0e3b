"""Gaussian policies: a network gives the mean action; the deviation is fixed, learned, or the network's too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from targetopt.distributions import ForwardKL, Gaussian, Likelihood, MeanSquared, ReverseKL
from targetopt.imitation.policies.base import LossName, Policy
from targetopt.imitation.policies.choices import ChoicePolicy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.actions import Box
from targetopt.imitation.simulation.environment import Environment
from targetopt.imitation.simulation.observations import Observations
from targetopt.losses import GaussianKL, Loss
from targetopt.types import BadArgument

Std = ArrayLike | Literal["learned", "state"]

LITTLE = 0.1
"""Noise while driving, as a share of half the action box, where little is asked for."""

WORDS = ("learned", "state")
"""In place of a number: the deviation is learned, the same in every state or as the network's."""


class GaussianPolicy(Policy):
    """π(·|s) = N(μ_θ(s), diag(std²)): the mean is what training moves, and what acts.

    ``policy(states)`` is the raw mean μ_θ(s): the targets z of the optimiser. There is one mean for
    training, acting, evaluation, films and files; acting clips it (plus noise) to the action box and
    does nothing else to it. That holds for a subclass with its own ``forward`` as well. With ``std="learned"`` or
    ``"state"`` the targets are (mean, log std), twice as many.

    Args:
        observation_size: numbers in a state, or the layout of states that are pictures or have parts.
        action_size: numbers in an action.
        mean: ``"linear"``; ``"mlp"``: hidden layers with relu between them; ``"cnn"``: convolutions, for pictures; or a
            torch module of your own from states to means ``(n, action_size)``, followed by the logarithms of deviations
            if these depend on the ``"state"``.
        hidden: widths of the hidden layers of ``"mlp"``.
        std: standard deviation, one number or one per action, which stays as it is (1 is the paper's); ``"learned"``:
            one parameter per action, from 1; ``"state"``: given by the network.
        low: lower end of the action box, a number or one per action.
        high: upper end of the action box.
        seed: of the initial weights (torch's own initialisation).
        dtype: of the weights: float64 for ``"linear"``, else float32, unless given.
        environment: the environment's name, kept in files.

    Example:
        >>> policy = GaussianPolicy(11, 3, low=-1.0, high=1.0, seed=0)
        >>> policy(torch.zeros(5, 11)).shape
        torch.Size([5, 3])
        >>> policy.act(np.zeros((5, 11))).shape  # numpy, clipped to the box
        (5, 3)
        >>> own = nn.Sequential(nn.LayerNorm(11), nn.Linear(11, 3))
        >>> GaussianPolicy(11, 3, mean=own, low=-1.0, high=1.0).act(np.ones((5, 11))).shape
        (5, 3)
        >>> GaussianPolicy(11, 3, std="learned")(torch.zeros(5, 11)).shape  # (mean, log std)
        torch.Size([5, 6])

    Reference: Lavington et al., *Target-based Surrogates for Stochastic Optimization*, ICML 2023, §5.
    """

    objectives: ClassVar[tuple[LossName, ...]] = (
        "kl",
        "reverse-kl",
        "cross-entropy",
        "mean-squared",
    )
    family: Gaussian
    kind = "a box of numbers"

    def __init__(
        self,
        observation_size: int | Observations,
        action_size: int,
        *,
        mean: Literal["linear", "mlp", "cnn"] | nn.Module = "mlp",
        hidden: Sequence[int] = (256, 256),
        std: Std = 1.0,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
    ) -> None:
        self.spread = std if isinstance(std, str) else "fixed"
        if isinstance(std, str) and std not in WORDS:
            raise BadArgument(
                f"std={std!r} must be a number, one number for each action, 'learned' or 'state'"
            )
        free = isinstance(std, str)
        super().__init__(
            observation_size,
            2 * action_size if free else action_size,
            mean=mean,
            hidden=hidden,
            seed=seed,
            dtype=dtype,
            environment=environment,
            shared=action_size if self.spread == "learned" else 0,
        )
        self.std = _per_action("std", 1.0 if isinstance(std, str) else std, action_size)
        if not (np.isfinite(self.std).all() and (self.std > 0).all()):
            raise BadArgument(f"std={std!r} must be positive and finite")
        self.family = Gaussian(action_size, None if free else tuple(self.std.tolist()))
        self.low = _per_action("low", low, action_size)
        self.high = _per_action("high", high, action_size)
        if not (self.low < self.high).all():
            raise BadArgument(f"low={low!r} must lie below high={high!r} in every action")

    @property
    def action_size(self) -> int:
        return self.family.actions

    def loss(self, labels: Array) -> Loss:
        """The loss of the targets by the policy's `objective`, for labels as `simulation.actions` has them.

        With a fixed std and mean actions alone, the expert is taken to have the same std: both KL are then
        ½‖(μ − μ_e)/std‖². With a std that is learned, they are −log π(μ_e).
        """
        k = self.action_size
        actions = torch.from_numpy(
            np.ascontiguousarray(labels[:, :k]) if labels.ndim > 1 else labels
        )
        if self.objective == "mean-squared":
            return MeanSquared(self.family, actions)
        if labels.ndim > 1 and labels.shape[1] == 2 * k and self.objective != "cross-entropy":
            expert = Gaussian(k).from_targets(torch.from_numpy(labels))
            return (ForwardKL if self.objective == "kl" else ReverseKL)(self.family, expert)
        if self.spread == "fixed" and self.objective != "cross-entropy":
            return GaussianKL(actions, torch.from_numpy(self.std**2))
        if self.objective == "reverse-kl":
            raise BadArgument(
                "loss='reverse-kl' with a std that is learned needs an expert that answers with its own; this one "
                "gives its mean action only. Use expert.stochastic(), a fixed std, or loss='kl'."
            )
        return Likelihood(self.family, actions)

    @property
    def little_noise(self) -> Array:
        half = 0.5 * (self.high - self.low)
        return LITTLE * np.where(np.isfinite(half), half, self.std)

    @property
    def natural_step(self) -> float | None:
        if self.objective == "mean-squared":
            return 1.0
        fixed = self.spread == "fixed" and self.objective != "reverse-kl"
        return float(self.std.min() ** 2) if fixed else None

    @property
    def is_quadratic(self) -> bool:
        return self.spread == "fixed"

    def acts(self, z: Array) -> Array:
        return z[:, : self.action_size]

    def draws(self, z: Array, rng: np.random.Generator, noise: ArrayLike | None = None) -> Array:
        mean = self.acts(z)
        if noise is None:
            noise = self.std if self.spread == "fixed" else np.exp(z[:, self.action_size :])
        scale = np.asarray(noise, dtype=np.float64)
        return mean + scale * rng.standard_normal(mean.shape) if scale.any() else np.array(mean)

    def act(self, states: NDArray[Any], rng: np.random.Generator | None = None) -> Array:
        """Actions in the box: the clipped mean, or with ``rng`` a clipped sample."""
        z = self.numpy()(np.asarray(states, dtype=self.layout.dtype))
        return np.clip(self.acts(z) if rng is None else self.draws(z, rng), self.low, self.high)

    def extras(self) -> dict[str, NDArray[Any]]:
        return {"std": self.std, "action.low": self.low, "action.high": self.high}

    def take_extras(self, extras: Mapping[str, NDArray[Any]]) -> None:
        self.std = np.array(extras["std"])
        self.low, self.high = np.array(extras["action.low"]), np.array(extras["action.high"])
        if self.spread == "fixed":
            self.family = Gaussian(self.action_size, tuple(self.std.tolist()))

    @property
    def description(self) -> dict[str, Any]:
        spread = {} if self.spread == "fixed" else {"std": self.spread}
        return {**super().description, **spread}


def made_for(
    environment: Environment,
    mean: str | nn.Module,
    std: Std | None = None,
    seed: int = 0,
) -> Policy:
    """A policy for an environment's observations and actions."""
    layout = environment.observations
    network: Any = {"mean": mean, "seed": seed, "environment": environment.name}
    if not isinstance(environment.actions, Box):
        if std is not None:
            raise BadArgument(
                f"std={std!r} is for continuous actions; those of env={environment.name!r} are choices"
            )
        sizes = getattr(environment.actions.family, "choices", None)
        return ChoicePolicy(layout, sizes, **network)  # type: ignore[arg-type]
    network |= {"low": environment.low, "high": environment.high}
    return GaussianPolicy(
        layout, environment.action_size, std=1.0 if std is None else std, **network
    )


def _per_action(name: str, value: ArrayLike, size: int) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in {(), (size,)} or np.isnan(array).any():
        raise BadArgument(
            f"{name}={value!r} must be a number or one number for each of the {size} actions"
        )
    return np.array(np.broadcast_to(array, (size,)))
