"""Policies that choose: a network gives logits, one choice or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from targetopt.distributions import Categorical, ForwardKL, Likelihood, MultiDiscrete, ReverseKL
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.observations import Observations
from targetopt.losses import Loss
from targetopt.types import BadArgument


class ChoicePolicy(Policy):
    """π(a|s) = softmax(z_θ(s))_a, or a product of such choices: discrete and multi-discrete actions.

    ``policy(states)`` are the logits: the targets z of the optimiser, L = ½.

    Args:
        observation_size: numbers in a state, or the layout of states that are pictures or have parts.
        choices: how many there are; several numbers for several choices at once.
        mean: ``"linear"``, ``"mlp"``, ``"cnn"``, or a torch module of your own from states to logits.
        hidden: widths of the hidden layers of ``"mlp"``.
        seed: of the initial weights.
        dtype: of the weights.
        environment: the environment's name, kept in files.

    Example:
        >>> policy = ChoicePolicy(4, 2, seed=0)
        >>> policy(torch.zeros(5, 4)).shape, policy.act(np.zeros((5, 4))).shape
        (torch.Size([5, 2]), (5, 1))
        >>> ChoicePolicy(4, (2, 3)).act(np.zeros((5, 4)), np.random.default_rng(0)).shape
        (5, 2)
    """

    kind = "choices"

    def __init__(
        self,
        observation_size: int | Observations,
        choices: int | Sequence[int],
        *,
        mean: Literal["linear", "mlp", "cnn"] | nn.Module = "mlp",
        hidden: Sequence[int] = (256, 256),
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
    ) -> None:
        one = isinstance(choices, int)
        family = Categorical(choices) if isinstance(choices, int) else MultiDiscrete(tuple(choices))
        super().__init__(
            observation_size,
            family.size,
            mean=mean,
            hidden=hidden,
            seed=seed,
            dtype=dtype,
            environment=environment,
        )
        self.family = family
        self.choices: list[int] = (
            [choices] if isinstance(choices, int) else [int(c) for c in choices]
        )
        self.one = one

    @property
    def action_size(self) -> int:
        return len(self.choices)

    def acts(self, z: Array) -> Array:
        return self._rows(self.family.from_targets(torch.from_numpy(z)).mode())

    def draws(self, z: Array, rng: np.random.Generator, noise: float | None = None) -> Array:
        if noise is not None and noise != 0:
            raise BadArgument(
                f"learner_noise={noise!r} is for continuous actions; choices are drawn from the policy (None), or the "
                "likeliest is taken (0)"
            )
        if noise == 0:
            return self.acts(z)
        uniform = rng.random((len(z), self.action_size))
        drawn = np.empty_like(uniform)
        for j, part in enumerate(np.split(z, np.cumsum(self.choices)[:-1], axis=1)):
            p = np.exp(part - part.max(axis=1, keepdims=True))
            ends = np.cumsum(p, axis=1)
            drawn[:, j] = (uniform[:, [j]] * ends[:, -1:] >= ends).sum(axis=1)
        inside: Array = np.minimum(drawn, np.array(self.choices) - 1.0)
        return inside

    @property
    def little_noise(self) -> float:
        return 0.0

    @property
    def natural_step(self) -> float | None:
        return None if self.objective == "reverse-kl" else 2.0

    def _rows(self, chosen: torch.Tensor) -> Array:
        rows: Array = chosen.numpy().astype(np.float64)
        return rows.reshape(len(rows), self.action_size)

    def loss(self, labels: Array) -> Loss:
        """KL from the expert's odds; where labels are choices, −log π of them, which has the same gradient."""
        tells_odds = labels.shape[1] == self.family.size
        if self.objective == "reverse-kl" and not tells_odds:
            raise BadArgument(
                "loss='reverse-kl' needs an expert that answers with its odds; this one says only what it would do. "
                "Let it return to.distributions.CategoricalRows(logits), or use loss='kl'."
            )
        if not tells_odds or self.objective == "cross-entropy":
            chosen = self.acts(labels) if tells_odds else labels
            return Likelihood(self.family, torch.from_numpy(chosen[:, 0] if self.one else chosen))
        kinds = {"kl": ForwardKL, "reverse-kl": ReverseKL}
        return kinds[self.objective](
            self.family, self.family.from_targets(torch.from_numpy(labels))
        )

    def act(self, states: NDArray[Any], rng: np.random.Generator | None = None) -> Array:
        """The likeliest choices, one row each; with ``rng`` they are drawn."""
        z = self.numpy()(np.asarray(states))
        return self.acts(z) if rng is None else self.draws(z, rng)

    def extras(self) -> dict[str, NDArray[Any]]:
        return {}

    @property
    def description(self) -> dict[str, Any]:
        return {**super().description, "choices": self.choices[0] if self.one else self.choices}
