"""Problems whose targets are linear in the parameters: z = Xθ (+ bias)."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.baselines.smoothness import linear_smoothness
from targetopt.lab.problems.base import (
    Array,
    LinearData,
    LossClass,
    Problem,
    is_sparse,
    non_negative,
    seeded,
)
from targetopt.lab.problems.compiled import CompiledSession
from targetopt.lab.problems.session import Session
from targetopt.linear import Linear, design
from targetopt.losses import CrossEntropy, Logistic, Loss, Squared
from targetopt.reference import Reference
from targetopt.types import BadArgument

if TYPE_CHECKING:
    from targetopt.lab.spec.config import RunConfig
    from targetopt.lab.spec.methods import MethodSpec

LOSSES: dict[str, LossClass] = {"squared": Squared, "logistic": Logistic}


def binary_loss(name: str) -> LossClass:
    """The loss class of an option ``loss=``.

    Example:
        >>> binary_loss("logistic").__name__
        'Logistic'
    """
    if name not in LOSSES:
        raise BadArgument(f"loss={name!r} must be one of: {', '.join(LOSSES)}")
    return LOSSES[name]


def _linear_layer(model: nn.Module) -> nn.Linear:
    if not isinstance(model, nn.Linear):
        raise BadArgument(
            f"model is a {type(model).__name__}; this problem's model is an nn.Linear. Make one with "
            "problem.model(seed)."
        )
    return model


class LinearProblem(Problem):
    """h(θ) = (1/n) Σ ℓ_i(x_iᵀθ) + ½ λ ‖θ‖² with X dense or CSR.

    Args:
        label: what figures show.
        X: data, one row per example, numpy or scipy CSR; never densified.
        y: labels: ±1 or real numbers (one target an example), or class numbers for `CrossEntropy`.
        loss: class of the loss.
        bias: whether each output gets a bias.
        weight_decay: λ of ½λ‖θ‖², bias included.
        classification: whether the sign (or the largest output) is a prediction of ``y``.
    """

    def __init__(
        self,
        label: str,
        X: Array | sp.csr_array[np.float64, tuple[int, int]],
        y: NDArray[Any],
        loss: LossClass,
        *,
        bias: bool,
        weight_decay: float,
        classification: bool,
    ) -> None:
        self.label = label
        self.weight_decay = non_negative("weight_decay", weight_decay)
        self.loss: Loss = loss(torch.from_numpy(y))
        self.outputs = int(y.max()) + 1 if loss is CrossEntropy else 1
        self.linear: LinearData = LinearData(
            X, y, loss, bool(bias), self.weight_decay, self.outputs
        )
        self.classification = classification
        self.design = design(X)

    @property
    def n(self) -> int:
        return int(self.linear.X.shape[0])

    def session(self, config: RunConfig) -> Session:
        """In the compiled driver, if the configuration says so."""
        if config.engine == "compiled":
            return CompiledSession(config, self)
        return super().session(config)

    def why_not_compiled(self, method: MethodSpec) -> str | None:
        if self.outputs != 1:
            return f"{self.name!r} has {self.outputs} outputs, and it takes one"
        if method.on_linear(self, "full") is None:
            return f"it does not know {method.label()!r}"
        if self.loss.scalar_form() is None:
            return f"the loss {type(self.loss).__name__} has no functions of one target to compile"
        return None

    def model(self, seed: int) -> nn.Module:
        features = self.linear.X.shape[1]
        return seeded(seed, lambda: nn.Linear(features, self.outputs, bias=self.linear.bias))

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Linear:
        rows = self.design if index is None else self.design.rows(index)
        return Linear(_linear_layer(model), rows)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        return self.metrics_at(*self.parameters_of(model))

    def parameters_of(self, model: nn.Module) -> tuple[Array, Array | None]:
        """Weights, shape ``(d,)`` or ``(d, outputs)``, and bias, as float64 arrays."""
        layer = _linear_layer(model)
        weight = layer.weight.detach().cpu().double().numpy().T
        bias = layer.bias.detach().cpu().double().numpy() if self.linear.bias else None
        return (weight[:, 0] if self.outputs == 1 else weight), bias

    def metrics_at(self, weight: Array, bias: Array | float | None = None) -> dict[str, float]:
        """The metrics at given parameters, for drivers that have no torch model.

        On two classes that a linear model separates, where inf h = 0 is attained nowhere, ``margin`` is
        min_i y_i z_i / ‖θ‖: the distance of the nearest row to the boundary, negative while rows are on
        its wrong side.

        Args:
            weight: shape ``(d,)``, or ``(d, outputs)`` for several outputs.
            bias: one number per output, where the problem has a bias.
        """
        X = self.linear.X
        z = X @ weight + (0.0 if bias is None else bias)
        targets = torch.from_numpy(z)
        g = self.loss.gradient(targets).numpy() / self.n
        gradient = X.T @ g + self.weight_decay * weight
        square_norm = float(np.vdot(weight, weight))
        square_gradient = float(np.vdot(gradient, gradient))
        if bias is not None:
            by_bias = g.sum(axis=0) + self.weight_decay * bias
            square_norm += float(np.vdot(bias, bias))
            square_gradient += float(np.vdot(by_bias, by_bias))
        loss = float(self.loss.value(targets).mean()) + 0.5 * self.weight_decay * square_norm
        values = {"loss": loss, "grad_norm": square_gradient**0.5}
        if self.classification:
            values["accuracy"] = float(np.mean(self._is_right(z)))
        if self._reference.resolved:
            values["suboptimality"] = loss - self._reference.value
        if not self._reference.attained and self.outputs == 1:
            # Separable: losses say how long θ has become, the margin where it points.
            norm = square_norm**0.5
            values["margin"] = float(np.min(self.linear.y * z)) / norm if norm else 0.0
        return values

    def _is_right(self, z: Array) -> NDArray[np.bool_]:
        if self.outputs == 1:
            right: NDArray[np.bool_] = self.linear.y * z > 0
            return right
        return np.asarray(z.argmax(axis=1) == self.linear.y)

    @cached_property
    def _reference(self) -> Reference:
        return self.reference()

    def reference(self) -> Reference:
        from targetopt.lab.problems.optima.reference import cached_reference

        return cached_reference(self)

    @cached_property
    def parameter_smoothness(self) -> float | None:
        """L_θ = L · λ_max(XᵀX)/n + λ."""
        L = self.loss.smoothness
        assert L is not None  # all of LOSSES and CrossEntropy have one
        return linear_smoothness(
            self.linear.X, L, bias=self.linear.bias, weight_decay=self.weight_decay
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that the objective depends on."""
        data, digest = self.linear, hashlib.sha256()
        options = (
            data.X.shape,
            data.loss.__name__,
            data.bias,
            data.weight_decay,
            is_sparse(data.X),
        )
        digest.update(repr(options).encode())
        if is_sparse(data.X):
            digest.update(data.X.indptr.astype("<i8").tobytes())
            digest.update(data.X.indices.astype("<i4").tobytes())
            digest.update(data.X.data.astype("<f8").tobytes())
        else:
            digest.update(np.ascontiguousarray(data.X, dtype="<f8").tobytes())
        digest.update(data.y.astype("<f8").tobytes())
        return digest.hexdigest()
