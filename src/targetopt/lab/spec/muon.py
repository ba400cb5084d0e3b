"""Muon as a rival: the momentum of every matrix is made orthogonal before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from targetopt.lab.problems import Problem
from targetopt.lab.problems.base import BatchSize
from targetopt.lab.spec.methods import MethodSpec, register
from targetopt.lab.spec.options import Positive
from targetopt.lab.spec.trainers import GradientTrainer, Trainer

QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← aX + b(XXᵀ)X + c(XXᵀ)²X, which takes singular values in (0, 1] to about 1."""
ITERATIONS = 5
MOMENTUM = 0.95
MEANS = (0.9, 0.999)
"""Adam's β₁ and β₂, for parameters that are no matrices."""
TINY = 1e-8


def orthogonal(matrix: Tensor) -> Tensor:
    """About UVᵀ, where USVᵀ is the matrix: all singular values become about 1.

    >>> found = orthogonal(torch.diag(torch.tensor([3.0, 0.2])))
    >>> [0.6 < float(value) < 1.3 for value in torch.linalg.svdvals(found)]
    [True, True]
    """
    a, b, c = QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=TINY)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class MuonWithAdam(torch.optim.Optimizer):
    """Muon on matrices and kernels, Adam on all other parameters, with one step size.

    For a matrix with gradient G, B ← μB + (1 − μ)G, and W ← W − lr · 0.2 √max(rows, columns) · orth(G + μ(B − G)),
    in the precision of the parameters. A kernel is the matrix whose rows are its outputs. The factor gives the step
    of a matrix the usual size of a step of Adam, so that one ``lr`` suits both parts. torch's own Muon computes in
    bfloat16 and refuses everything that is no matrix.

    References: Jordan et al., *Muon: an optimizer for hidden layers in neural networks*, 2024; Liu et al., *Muon is
    scalable for LLM training*, 2025 (the factor).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Use the gradients in ``.grad``."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    gradient = p.grad + group["weight_decay"] * p
                    direction = _by_muon if p.ndim >= 2 else _by_adam
                    p.sub_(direction(gradient, self.state[p]), alpha=group["lr"])


def _by_muon(gradient: Tensor, state: dict[str, Any]) -> Tensor:
    mean = state.setdefault("mean", torch.zeros_like(gradient))
    mean.lerp_(gradient, 1.0 - MOMENTUM)
    update = gradient.lerp(mean, MOMENTUM).reshape(len(gradient), -1)
    factor = 0.2 * math.sqrt(max(update.shape))
    return factor * orthogonal(update).reshape(gradient.shape)


def _by_adam(gradient: Tensor, state: dict[str, Any]) -> Tensor:
    first, second = MEANS
    mean = state.setdefault("mean", torch.zeros_like(gradient))
    square = state.setdefault("square", torch.zeros_like(gradient))
    state["step"] = state.get("step", 0) + 1
    mean.lerp_(gradient, 1.0 - first)
    square.lerp_(gradient.square(), 1.0 - second)
    unbiased = square / (1.0 - second ** state["step"])
    direction: Tensor = mean / (1.0 - first ** state["step"]) / (unbiased.sqrt() + TINY)
    return direction


@register
class Muon(MethodSpec):
    """Muon on matrices and kernels, Adam on all other parameters."""

    name = "muon"
    title = "Muon"
    about = "Muon on matrices and kernels, Adam on all other parameters, with one step size"

    lr: Positive = 1e-3

    def trainer(
        self, problem: Problem, model: nn.Module, total_steps: int, batch_size: BatchSize
    ) -> Trainer:
        optimiser = MuonWithAdam(
            model.parameters(), lr=self.lr, weight_decay=self.weight_decay_on(problem)
        )
        return GradientTrainer(problem, model, optimiser, self.make_schedule(total_steps))
