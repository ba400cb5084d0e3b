"""Logistic regression whose targets are the probabilities of the labels, and not the logits.

"The target space is not unique. For example, we could directly target the classification probabilities for logistic
regression resulting in different f and ℓ" (the paper, a footnote of §2). Here f_i(θ) = σ(⟨x_i, θ⟩), which is not
linear, and ℓ_i(z) = −log z or −log(1 − z), which is convex and has no L. The objective h(θ) is the one that the same
data have with logits, so both can be compared.
"""

from __future__ import annotations

from functools import cached_property

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.divergence import NegativeEntropy
from targetopt.lab.problems import registry
from targetopt.lab.problems.base import Problem
from targetopt.lab.problems.linear import LinearProblem
from targetopt.losses import BinaryLikelihood, Logistic
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward


class ProbabilityProblem(Problem):
    """A linear problem with the logistic loss, asked in probabilities; mirror descent goes by their entropy.

    Args:
        logits: the problem with logits as its targets.
    """

    divergence = NegativeEntropy()

    def __init__(self, logits: LinearProblem) -> None:
        self.logits = logits
        self.label = f"{logits.label}, probabilities"
        self.weight_decay = logits.weight_decay
        self.loss: BinaryLikelihood = BinaryLikelihood(torch.from_numpy(logits.linear.y))

    @property
    def n(self) -> int:
        return self.logits.n

    def model(self, seed: int) -> nn.Module:
        """A linear layer, the one that the problem with logits begins with."""
        return self.logits.model(seed)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        inside = self.logits.forward(model, index)
        return lambda: torch.sigmoid(inside())

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return self.logits.metrics(model)

    def reference(self) -> Reference:
        return self.logits.reference()

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ, that of the problem with logits."""
        return self.logits.parameter_smoothness


@registry.register(
    "probabilities",
    "logistic regression on the data of another problem; targets are probabilities",
)
def probabilities(data: str = "breast_cancer", weight_decay: float = 0.0) -> ProbabilityProblem:
    """The data of a linear problem of two classes, without a bias.

    Example:
        >>> from targetopt.lab import problems
        >>> problem = problems.get("probabilities", data="breast_cancer")
        >>> z = problem.forward(problem.model(seed=0), index=[0, 1])()
        >>> bool(((z > 0) & (z < 1)).all()), problem.target_smoothness
        (True, None)
    """
    if "loss" not in registry.declaration(data).options:
        raise BadArgument(
            f"data={data!r} must name a linear problem of two classes, such as breast_cancer or mushrooms"
        )
    found = registry.get(data, loss="logistic", bias=False, weight_decay=weight_decay)
    if not isinstance(found, LinearProblem) or found.linear.loss is not Logistic:
        raise BadArgument(f"data={data!r} has no logistic loss of a linear model")
    return ProbabilityProblem(found)
