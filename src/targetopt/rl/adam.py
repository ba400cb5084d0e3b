"""Torch's Adam for small networks: by itself, and for several networks of one shape at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from targetopt.inner import Torch


@dataclass(frozen=True)
class Adam:
    """A factory for `targetopt.Torch`: torch's Adam with one call into C for all parameters.

    Args:
        lr: its step size.
        eps: what is added to the root of the second moment.

    Example:
        >>> Adam(lr=1e-3)([torch.zeros(2, requires_grad=True)]).defaults["lr"]
        0.001
    """

    lr: float = 3e-4
    eps: float = 1e-5

    def beside(self, params: list[Tensor], states: Sequence[dict[str, Any]]) -> Moments:
        """The same optimiser for networks that are stacked along the first axis of ``params``.

        Args:
            params: which move.
            states: ``state_dict()`` of each network's own optimiser, all equally old; none at the beginning.
        """
        return Moments(self, params, states)

    def __call__(self, params: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, lr=self.lr, eps=self.eps, fused=True)


LANES = 64
"""Numbers that every processor's vector instructions divide evenly."""


class Moments:
    """Adam's moments of stacked networks; see `Adam.beside`.

    Torch takes the numbers of a tensor in vectors, and what is left over at its end one by one, which rounds
    otherwise. So that every number is taken as it would be in its own network, tensors that leave something over are
    moved network by network, and the others as one.
    """

    def __init__(
        self, made_by: Adam, params: list[Tensor], states: Sequence[dict[str, Any]]
    ) -> None:
        optimiser = made_by(params)
        self._groups = optimiser.state_dict()["param_groups"]
        self._options = optimiser.defaults
        self.params = params

        def begun(name: str) -> list[Tensor]:
            if not states:
                return [torch.zeros_like(p) for p in params]
            return [
                torch.stack([each["state"][i][name] for each in states]) for i in range(len(params))
            ]

        self._first, self._second = begun("exp_avg"), begun("exp_avg_sq")
        self._steps = [
            states[0]["state"][i]["step"].clone() if states else torch.zeros(())
            for i in range(len(params))
        ]
        self._whole = [p[0].numel() % LANES == 0 for p in params]
        self._moved = [self._apart(each) for each in (params, self._first, self._second)]
        self._done = 0
        self._counted = [
            step.clone()
            for p, step, whole in zip(params, self._steps, self._whole, strict=True)
            for _ in (p[:1] if whole else p)
        ]

    def _apart(self, tensors: list[Tensor]) -> list[Tensor]:
        """As they are, or one for each network."""
        pairs = zip(tensors, self._whole, strict=True)
        return [part for each, whole in pairs for part in ([each] if whole else each)]

    def step(self, gradients: list[Tensor]) -> None:
        """One step of every network: torch's own function, without what its class does around it."""
        beta1, beta2 = self._options["betas"]
        params, first, second = self._moved
        adam(
            params,
            self._apart(gradients),
            first,
            second,
            [],
            self._counted,
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=self._options["lr"],
            weight_decay=0.0,
            eps=self._options["eps"],
            maximize=False,
        )
        self._done += 1

    def states(self, count: int) -> list[dict[str, Any]]:
        """``state_dict()`` of each network's own optimiser."""
        return [
            {
                "state": {
                    key: {
                        "step": self._steps[key] + self._done,
                        "exp_avg": self._first[key][i].clone(),
                        "exp_avg_sq": self._second[key][i].clone(),
                    }
                    for key in range(len(self.params))
                },
                "param_groups": [dict(group) for group in self._groups],
            }
            for i in range(count)
        ]


def minibatch_adam(
    lr: float = 3e-4, epochs: int = 10, batch_size: int = 64, clip: float = 0.5
) -> Torch:
    """Adam in mini-batches, as PPO has it: so many passes over the batch, with clipped gradients.

    Example:
        >>> minibatch_adam(epochs=5).epochs
        5
    """
    return Torch(Adam(lr), epochs=epochs, batch_size=batch_size, clip=clip)


def full_adam(lr: float = 3e-4, max_steps: int = 40, clip: float = 0.5) -> Torch:
    """Adam on the whole batch at once: fewer steps, each of all rows.

    Example:
        >>> full_adam(max_steps=20).max_steps
        20
    """
    return Torch(Adam(lr), max_steps=max_steps, clip=clip)
