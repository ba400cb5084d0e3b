"""Problems with models that are not linear in their parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Array, Problem, as_rows, checked_seed, non_negative, seeded
from targetopt.lab.problems.registry import register
from targetopt.lab.problems.supervised import small_set, standardised
from targetopt.losses import CrossEntropy, Loss, Squared
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward, positive_int


class NetworkProblem(Problem):
    """h(θ) = (1/n) Σ ℓ_i(f_θ(x_i)) + ½ λ ‖θ‖² for a module f_θ.

    Args:
        label: what figures show.
        inputs: one row per example.
        loss: the loss on all examples.
        build: makes the module.
        weight_decay: λ of ½λ‖θ‖².
        classes: class numbers, where the largest output is a prediction of them.
        infimum: inf h where it is known, with the reason.
    """

    def __init__(
        self,
        label: str,
        inputs: Array,
        loss: Loss,
        build: Callable[[], nn.Module],
        *,
        weight_decay: float = 0.0,
        classes: Tensor | None = None,
        infimum: Reference | None = None,
    ) -> None:
        self.label = label
        self.loss: Loss = loss
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.inputs = torch.from_numpy(inputs)
        self.classes = classes
        self._build, self._reference = build, infimum

    @property
    def n(self) -> int:
        return len(self.inputs)

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, self._build)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        inputs = self.inputs if index is None else self.inputs[as_rows(index)]
        first = next(model.parameters())
        inputs = inputs.to(dtype=first.dtype, device=first.device)
        return lambda: model(inputs)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        twin = self.model(0)  # float64, whatever the model is trained in
        twin.load_state_dict(model.state_dict())
        twin.eval()
        parameters = list(twin.parameters())
        z = twin(self.inputs)
        penalty = 0.5 * self.weight_decay * sum(p.square().sum() for p in parameters)
        loss = self.loss.value(z).mean() + penalty
        gradients = torch.autograd.grad(loss, parameters)
        square = sum(float(g.square().sum()) for g in gradients)
        values = {"loss": float(loss.detach()), "grad_norm": square**0.5}
        if self.classes is not None:
            values["accuracy"] = float((z.argmax(dim=1) == self.classes).double().mean())
        if self._reference is not None:
            values["suboptimality"] = values["loss"] - self._reference.value
        return values

    def reference(self) -> Reference | None:
        return self._reference

    @cached_property
    def parameter_smoothness(self) -> None:
        """None: a composition of layers has no global smoothness constant."""
        return None


@register("mlp-digits", "one-hidden-layer ReLU network on the digits, 10 classes, cross-entropy")
def mlp_digits(hidden: int = 64, weight_decay: float = 0.0) -> NetworkProblem:
    """64 inputs (standardised), ``hidden`` ReLU units, 10 outputs.

    Example:
        >>> from targetopt.lab import problems
        >>> problem = problems.get("mlp-digits", hidden=16)
        >>> problem.forward(problem.model(seed=0), index=[0, 1])().shape
        torch.Size([2, 10])
    """
    positive_int("hidden", hidden)
    X, y = small_set("digits")
    classes = torch.from_numpy(y)
    return NetworkProblem(
        f"MLP on digits ({hidden} hidden{f', weight_decay={weight_decay:g}' if weight_decay else ''})",
        standardised(X),
        CrossEntropy(classes),
        lambda: nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)),
        weight_decay=weight_decay,
        classes=classes,
    )


@register(
    "matrix-factorisation", "two-layer linear network fitting an ill-conditioned map, 1000 × 6 → 10"
)
def matrix_factorisation(
    rank: int = 10,
    kappa: float = 1e10,
    inputs: int = 6,
    outputs: int = 10,
    n: int = 1000,
    seed: int = 0,
) -> NetworkProblem:
    """Fit y = Ax by W₂W₁x, W₁ of ``rank`` rows: (1/2n) Σ ‖W₂W₁x_i − Ax_i‖², x_i Gaussian.

    Row j of A is uniform on [0, 1] times a factor that falls evenly from 1 to 1/kappa. The least
    value is known (Eckart–Young on the images of the data): 0 when ``rank`` ≥ min(inputs, outputs).

    Reference:
        In the manner of the matrix factorisation of Vaswani et al., "Painless stochastic gradient",
        2019, which the paper's authors' code takes up.
    """
    if not 1 <= kappa < np.inf:
        raise BadArgument(f"kappa={kappa!r} must be at least 1 and finite")
    sizes = {"rank": rank, "inputs": inputs, "outputs": outputs, "n": n}
    for name, size in sizes.items():
        positive_int(name, size)
    rng = np.random.default_rng(checked_seed(seed))
    A = np.linspace(1.0, 1.0 / kappa, outputs)[:, None] * rng.random((outputs, inputs))
    X = rng.standard_normal((n, inputs))
    Y = X @ A.T
    lost = np.linalg.svd(Y, compute_uv=False)[rank:]
    infimum = Reference(
        value=float(np.sum(lost**2)) / (2 * n) if rank < min(inputs, outputs, n) else 0.0,
        gap=0.0,
        attained=True,
        certificate="Eckart–Young: the labels are Ax, so the best rank-limited map truncates them",
    )
    return NetworkProblem(
        f"matrix factorisation (rank {rank}, κ={kappa:g})",
        X,
        Squared(torch.from_numpy(Y)),
        lambda: nn.Sequential(
            nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)
        ),
        infimum=infimum,
    )
