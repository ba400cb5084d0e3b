"""The forms answers have: which columns an oracle returns, and what they say of the targets.

A form is given to `RemoteOracle` and `RayOracle` as ``answers=``. `Gradients` is the default; oracles
that return labels or probabilities have theirs in `targetopt.oracle.teachers`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from targetopt.oracle.columns import Columns
from targetopt.types import BadAnswer, TargetPoint


class Form(Protocol):
    """What an oracle's answer looks like, and what it means.

    Attributes:
        columns: the names of the columns, in the order in which a function returns them.
        needs_targets: whether the answer depends on the targets. If not, only inputs are sent, and
            answers can be cached by example.
    """

    columns: tuple[str, ...]
    needs_targets: bool

    def checked(self, columns: Columns, rows: int, asked: Columns) -> Columns:
        """The columns with the right types and shapes, or `BadAnswer`."""
        ...

    def point(self, columns: Columns, z: Tensor) -> TargetPoint:
        """What the columns say of the targets ``z``."""
        ...


class Gradients:
    """Losses, shape ``(n,)``, and their gradients, shaped like the targets."""

    columns: tuple[str, ...] = ("losses", "gradients")
    needs_targets = True

    def __init__(self, *, smoothness: float | None = None) -> None:
        self.smoothness = smoothness

    def checked(self, columns: Columns, rows: int, asked: Columns) -> Columns:
        targets = np.asarray(asked["targets"])
        return {
            "losses": numbers("losses", columns["losses"], (rows,), targets.dtype),
            "gradients": numbers("gradients", columns["gradients"], targets.shape, targets.dtype),
        }

    def point(self, columns: Columns, z: Tensor) -> TargetPoint:
        return TargetPoint(
            targets=z,
            losses=tensor(columns["losses"], z),
            gradients=tensor(columns["gradients"], z),
            smoothness=self.smoothness,
        )


def numbers(
    name: str, values: object, shape: tuple[int | None, ...], dtype: Any = None
) -> np.ndarray[Any, Any]:
    """``values`` as an array of this shape (``None`` for any extent), or `BadAnswer`."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise BadAnswer(f"{name} must be numbers: {error}") from error
    if array.dtype.kind not in "bifu":
        raise BadAnswer(f"{name} must be numbers; got {array.dtype}")
    fits = len(shape) == array.ndim and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        wanted += "," if len(shape) == 1 else ""
        raise BadAnswer(f"{name} must have the shape ({wanted}); got {array.shape}")
    return np.ascontiguousarray(array)


def finite_rows(columns: Columns) -> list[int]:
    """Rows whose numbers are all finite."""
    good = np.ones(len(next(iter(columns.values()))), dtype=bool)
    for column in columns.values():
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            good &= np.isfinite(column).reshape(len(column), -1).all(axis=1)
    return [int(row) for row in np.flatnonzero(good)]


def tensor(column: object, z: Tensor) -> Tensor:
    """A column as a tensor on the targets' device, floating-point numbers in their type."""
    made = torch.as_tensor(np.asarray(column), device=z.device)
    return made.to(z.dtype) if made.is_floating_point() else made
