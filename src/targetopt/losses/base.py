"""What every loss offers: one number per example, and its derivatives in the targets.

A loss is made with its labels; ``value``, ``gradient`` and ``curvature`` take the targets. Everything
else here has a default that a loss may replace by something better: all quantities in one pass, a
metric for Newton's method, a place to begin a fit.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from targetopt.losses.spare import Spare
from targetopt.types import BadArgument, MissingCapability


class Scalar(NamedTuple):
    """A loss of one target as three plain functions, which numba compiles exactly as they stand.

    Each takes the target z, the label y, and then the loss's own numbers (see `Loss.numbers`), all of
    them floats, and returns a float: the loss, its first and its second derivative in z.
    """

    value: Callable[..., float]
    slope: Callable[..., float]
    curvature: Callable[..., float]


class ScalarForm(NamedTuple):
    """A loss with one output per row as compiled loops take it: functions, their numbers, labels.

    ``ridge`` is the μ of a term ½μz² that is added to the functions (see `Ridged`).
    """

    scalar: Scalar
    numbers: tuple[float, ...]
    ridge: float
    labels: Tensor


class Evaluation(NamedTuple):
    """ℓ_i(z_i), ∂ℓ_i/∂z_i, and the metric that `Loss.curve` and `Loss.diagonal` take."""

    values: Any
    gradient: Any
    metric: Any


class Loss(ABC):
    """ℓ_i(z_i) for each example i; subclasses hold the labels.

    A new loss needs ``value``, ``gradient`` and ``rows``; ``curvature`` lets the Newton rule use it and
    ``smoothness``, the largest curvature of one example's loss, gives ``lr=None`` its meaning. A loss
    with one output per row that declares ``scalar`` runs in compiled loops too (docs/add-your-own.md).
    """

    smoothness: float | None = None
    strong_convexity: float = 0.0
    majorises: ClassVar[bool] = False
    """Whether `newton_metric` is something larger than the curvature."""
    scalar: ClassVar[Scalar | None] = None
    by_rows: ClassVar[tuple[str, ...]] = ()
    """The attributes that hold the labels: tensors with one row for each example (see `tables`)."""
    spare: Spare | None = None
    """Where `evaluate` and `curve` put their results, if that is not fresh memory (see `OnArrays`)."""

    def room(self, z: Tensor) -> Tensor | None:
        """A tensor like ``z`` to be passed as ``out=``; None, which is fresh memory, unless there is a spare one."""
        return None if self.spare is None else self.spare.like(z)

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the functions of ``scalar`` take after the target and the label, such as Huber's δ."""
        return ()

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """Losses, shape ``(n,)``."""

    @abstractmethod
    def gradient(self, z: Tensor) -> Tensor:
        """∂ℓ_i/∂z_i, shaped like ``z``."""

    def curvature(self, z: Tensor) -> Tensor:
        """∂²ℓ_i/∂z_i²: shaped like ``z`` if diagonal, else ``(n, k, k)``."""
        raise NotImplementedError(f"{type(self).__name__} has no closed-form curvature")

    @abstractmethod
    def rows(self, index: Tensor) -> Self:
        """The same loss on some of the examples (a mini-batch)."""

    def tables(self) -> dict[str, Tensor]:
        """The labels by name, one row for each example: all that differs between the losses of two batches.

        A loss that declares `by_rows` can be kept and put together from several batches, as `Bought` does.
        """
        if not self.by_rows:
            raise MissingCapability(
                f"{type(self).__name__} does not say which of its tensors have one row for each example, so its labels "
                "cannot be kept. Declare by_rows = (the names of these attributes,) in its class."
            )
        return {name: getattr(self, name) for name in self.by_rows}

    def with_tables(self, tables: Mapping[str, Tensor]) -> Self:
        """The same loss with other labels, of as many examples as these have."""
        other = copy.copy(self)
        for name, table in tables.items():
            setattr(other, name, table)
        return other

    def scalar_form(self) -> ScalarForm | None:
        """The loss for compiled loops, or None.

        Only a class that declares ``scalar`` itself has one: a subclass may compute something else
        than its parent, so it does not inherit the parent's functions.
        """
        scalar = vars(type(self)).get("scalar")
        labels = getattr(self, "y", None)
        if scalar is None or labels is None or labels.ndim != 1:
            return None
        return ScalarForm(scalar, tuple(float(number) for number in self.numbers), 0.0, labels)

    # -- for methods that know the whole loss ------------------------------------------------------

    def newton_metric(self, z: Tensor) -> Tensor:
        """The metric of the quadratic model that Newton's method minimises at ``z``.

        This is the curvature, except for losses whose curvature vanishes over a whole range.
        """
        return self.curvature(z)

    def evaluate(self, z: Tensor) -> Evaluation:
        """Value, gradient and `newton_metric` at ``z``, in one pass where they share their work."""
        return Evaluation(self.value(z), self.gradient(z), self.newton_metric(z))

    def curve(self, metric: Tensor, u: Tensor) -> Tensor:
        """W_i u_i, with the ``metric`` that `evaluate` gave; ``u`` may have leading axes."""
        if metric.ndim == 3:
            product: Tensor = torch.einsum("nij,...nj->...ni", metric, u)
            return product
        return torch.mul(metric, u, out=self.room(u))

    def diagonal(self, metric: Tensor) -> Tensor:
        """The diagonal of each W_i, shaped like the targets."""
        return metric.diagonal(dim1=1, dim2=2) if metric.ndim == 3 else metric

    def lower_bound(self) -> Tensor:
        """A number that each example's loss never falls below: 0 unless the loss says otherwise."""
        return torch.zeros((), dtype=torch.float64)

    def best_constant(self, weights: Tensor) -> Tensor:
        """A target near the best one that is the same for all rows: where a fit may begin.

        Args:
            weights: one per row, with the sum 1.
        """
        return torch.zeros((), dtype=torch.float64)


def checked_labels(name: str, labels: Any) -> Tensor:
    """The labels as a tensor, refused unless there is one finite row for each example."""
    y: Tensor = torch.as_tensor(labels).detach()
    if y.ndim == 0:
        raise BadArgument(f"{name}: labels must have one row per example; got a single number")
    if y.is_floating_point() and not torch.isfinite(y).all():
        bad = (~torch.isfinite(y)).reshape(y.shape[0], -1).any(dim=1).nonzero()[:5, 0].tolist()
        raise BadArgument(f"{name}: labels must be finite; rows {bad} are not. Clean the data.")
    return y


def sum_outputs(per_entry: Tensor) -> Tensor:
    """The sum over all axes but the first."""
    return per_entry.reshape(per_entry.shape[0], -1).sum(dim=1) if per_entry.ndim > 1 else per_entry


class Pointwise(Loss):
    """A loss of each entry of the targets on its own, with labels ``y`` of the targets' shape.

    Derive your own loss from this one: ``_matched`` gives the labels in the targets' type, after it
    has refused targets of another shape.
    """

    by_rows: ClassVar[tuple[str, ...]] = ("y",)

    def __init__(self, y: Tensor) -> None:
        self.y = checked_labels(type(self).__name__, y)

    def _matched(self, z: Tensor) -> Tensor:
        if z.shape != self.y.shape:
            raise BadArgument(
                f"{type(self).__name__}: targets have shape {tuple(z.shape)}, labels "
                f"{tuple(self.y.shape)}; they must be equal (no broadcasting: it would silently sum "
                "over pairs). Squeeze the forward's output or reshape the labels."
            )
        return self.y.to(dtype=z.dtype, device=z.device)

    def rows(self, index: Tensor) -> Self:
        return self.with_tables({"y": self.y[index]})


def check_signs(name: str, y: Tensor) -> None:
    """Refuse labels of two classes that are not +1 and −1; ``name`` is the loss that asks."""
    wrong = (y != 1) & (y != -1)
    if wrong.any():
        raise BadArgument(
            f"{name}: labels must be +1 or −1; found {y[wrong][0].item()!r}. Map them first, for 0/1 labels "
            "with 2*y − 1."
        )
