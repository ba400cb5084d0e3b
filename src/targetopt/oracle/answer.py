"""Checking and counting what an oracle says, before anything believes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, cast

import torch
from torch import Tensor

from targetopt.losses import Loss
from targetopt.oracle.base import Oracle
from targetopt.oracle.loss import LossOracle, as_answer, check_losses
from targetopt.surrogate import Surrogate
from targetopt.types import BadAnswer, BadArgument, TargetPoint, all_finite, finite_rows, shown


def as_oracle(oracle: Any) -> Oracle:
    """An oracle as it is; a loss, or a bare function of the targets, becomes a `LossOracle`."""
    if isinstance(oracle, type) and issubclass(oracle, Loss):
        raise BadArgument(
            f"oracle={oracle!r} is a class without labels; pass a loss of this batch's, {oracle.__name__}(y)"
        )
    if hasattr(oracle, "query"):
        return cast(Oracle, oracle)
    if isinstance(oracle, Loss) or callable(oracle):
        return LossOracle(oracle)
    raise BadArgument(
        f"oracle={oracle!r} must have query(z), be a loss such as to.losses.Logistic(y), or be a function "
        "that returns one loss per example"
    )


def as_point(
    z: Tensor,
    losses: Any,
    gradients: Any,
    curvature: Any = None,
    value: Callable[[Tensor], Tensor] | None = None,
    smoothness: float | None = None,
) -> TargetPoint:
    """An answer that is handed over in parts: tensors, arrays or lists."""
    curved = None if curvature is None else as_answer("curvature", curvature, z).clone()
    return TargetPoint(
        targets=z,
        losses=as_answer("losses", losses, z),
        gradients=as_answer("gradients", gradients, z),
        curvature=None if curved is None else (lambda: curved),
        value=value,
        smoothness=smoothness,
    )


def checked(point: object, z: Tensor) -> TargetPoint:
    """A copy of the answer, on the targets' device and of their type, or an error that names the bad rows.

    It is a copy because simulators reuse their buffers: what ``value`` computes later must not change it.
    """
    if not isinstance(point, TargetPoint):
        raise BadAnswer(
            f"oracle.query(z) must return a TargetPoint; got {type(point).__name__}. Functions that return "
            "losses can be passed as they are, (losses, gradients) through to.GradientOracle."
        )
    if point.losses is not None:
        check_losses(point.losses, z)
    if not isinstance(point.gradients, Tensor) or point.gradients.shape != z.shape:
        shape = getattr(point.gradients, "shape", None)
        raise BadAnswer(
            f"the oracle's gradients must be shaped like the targets, {tuple(z.shape)}; got "
            f"{tuple(shape) if shape is not None else type(point.gradients).__name__}"
        )
    smoothness = _checked_offers(point)
    gradients = _own(point.gradients, z)
    losses = None if point.losses is None else _own(point.losses, z)
    known = [gradients] if losses is None else [losses, gradients]
    if not all_finite(*known):
        good = torch.stack([finite_rows(each) for each in known]).all(dim=0)
        rows = (~good).nonzero()[:, 0].tolist()
        raise BadAnswer(
            f"the oracle's answer is not finite in {len(rows)} of {z.shape[0]} rows: {shown(rows)}. Nothing was "
            "changed; repair or leave out these examples and call step again."
        )
    return replace(
        point,
        targets=z,
        losses=losses,
        gradients=gradients,
        smoothness=smoothness,
        data=_checked_data(point.data, z),
        weights=_checked_weights(point.weights, z),
        scales=checked_scales(point.scales, z),
        interactions=_checked_interactions(point.interactions),
    )


def _checked_data(data: Any, z: Tensor) -> dict[str, Tensor] | None:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise BadAnswer(
            f"the oracle's data={type(data).__name__} must be a dictionary of tensors, one entry per row, or None"
        )
    for name, column in data.items():
        if not isinstance(column, Tensor) or column.ndim == 0 or column.shape[0] != z.shape[0]:
            shape = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise BadAnswer(
                f"the oracle's data[{name!r}] must be a tensor with one entry for each of the {z.shape[0]} rows; got "
                f"{shape}"
            )
        if column.is_floating_point() and not all_finite(column):
            rows = (~finite_rows(column)).nonzero()[:, 0].tolist()
            raise BadAnswer(
                f"the oracle's data[{name!r}] is not finite in {len(rows)} of {z.shape[0]} rows: {shown(rows)}"
            )
    return {name: column.detach().to(z.device, copy=True) for name, column in data.items()}


def _checked_weights(weights: Any, z: Tensor) -> Tensor | None:
    if weights is None:
        return None
    if not isinstance(weights, Tensor) or weights.shape != z.shape[:1]:
        shape = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise BadAnswer(
            f"the oracle's weights must be a tensor of shape ({z.shape[0]},), one for each row; got {shape}"
        )
    own = _own(weights, z)
    bad = (~(torch.isfinite(own) & (own >= 0))).nonzero()[:, 0].tolist()
    if bad:
        raise BadAnswer(
            f"the oracle's weights must be finite and not negative; row {bad[0]} has {own[bad[0]].item():g}"
        )
    return own


def checked_scales(scales: Any, z: Tensor) -> Tensor | None:
    """One positive number for each row, on the targets' device and of their type; or None."""
    if scales is None:
        return None
    try:
        own = torch.as_tensor(scales).detach().to(z, copy=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgument(
            f"scales= must be numbers, one for each row of the batch ({error})"
        ) from error
    if own.shape != z.shape[:1]:
        raise BadArgument(
            f"scales= must have one number for each of the {z.shape[0]} rows, shape ({z.shape[0]},); got "
            f"{tuple(own.shape)}. One step for all rows is lr=."
        )
    bad = (~(torch.isfinite(own) & (own > 0))).nonzero()[:, 0].tolist()
    if bad:
        raise BadArgument(
            f"scales= must be positive and finite: row i has the step η·scales_i; row {bad[0]} has "
            f"{own[bad[0]].item():g}. Leave out rows that are not to move, or give them a small number."
        )
    return own


def _checked_interactions(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise BadAnswer(
            f"the oracle's interactions={count!r} must be a whole number ≥ 0: the environment's steps it has cost"
        )
    return int(count)


def _own(part: Tensor, z: Tensor) -> Tensor:
    """A dense copy of it, of the type and on the device of ``z``."""
    if part.is_meta:
        raise BadAnswer(
            "the oracle answered with tensors on the device 'meta', which hold no numbers. Compute the "
            "losses and gradients on a real device."
        )
    dense = part.detach() if part.layout is torch.strided else part.detach().to_dense()
    return dense.to(z, copy=True)


def _checked_offers(point: TargetPoint) -> float | None:
    """L, if the oracle says it. All that it offers beside losses and gradients must be usable, or None."""
    for name in ("value", "curvature"):
        offered = getattr(point, name)
        if offered is not None and not callable(offered):
            raise BadAnswer(
                f"the oracle's {name}={offered!r} must be a function, or None if unknown"
            )
    if point.majoriser is not None and not isinstance(point.majoriser, Surrogate):
        raise BadAnswer(
            f"the oracle's majoriser={point.majoriser!r} must be a targetopt.Surrogate, or None if unknown"
        )
    known: Any = point.smoothness
    if known is None:
        return None
    number = isinstance(known, Real) or (isinstance(known, Tensor) and known.numel() == 1)
    if not (number and 0.0 < float(known) < math.inf):
        raise BadAnswer(
            f"the oracle's smoothness={known!r} must be positive and finite: it is L, the largest curvature "
            "of one example's loss. Leave it None if there is none or it is not known."
        )
    return float(known)


class CountedValue:
    """The oracle's ``value``, counted and checked; value calls are apart from gradient calls."""

    def __init__(self, point: TargetPoint) -> None:
        self.calls = 0
        self._function = point.value

    def __call__(self, z: Tensor) -> Tensor:
        assert self._function is not None
        self.calls += 1
        losses = torch.as_tensor(self._function(z.clone()), device=z.device)
        check_losses(losses, z)
        return _own(losses, z)

    def attached(self, point: TargetPoint) -> TargetPoint:
        """The same point, asking through this counter."""
        return point if point.value is None else replace(point, value=self)


def check_ids(asked: Sequence[Any] | None, answered: Sequence[Any] | None) -> None:
    """The answer's rows are those that were asked, in the same order; else an error says which are not.

    >>> check_ids(["a", "b"], ["a", "b"])
    >>> check_ids(["a", "b"], ["b"])
    Traceback (most recent call last):
    targetopt.errors.BadAnswer: the answer lacks 1 of 2 rows: 'a' (row 0). Tell all rows at once, in query.ids' order.
    """
    if asked is None:
        if answered is not None:
            raise BadArgument(
                "ids= was given to tell and not to ask: give the rows their ids when you ask"
            )
        return
    if answered is None:
        raise BadArgument(
            "this query's rows have ids: pass ids= to tell, those of the answer's rows in its order"
        )
    given = list(answered)
    place = {name: row for row, name in enumerate(asked)}
    foreign = [name for name in given if name not in place]
    if foreign:
        raise BadAnswer(
            f"the answer has {len(foreign)} rows that were not asked about: {shown([repr(f) for f in foreign])}. "
            "It belongs to another query, or to several: pick this query's rows by query.ids."
        )
    missing = [f"{name!r} (row {row})" for name, row in place.items() if name not in set(given)]
    if missing:
        raise BadAnswer(
            f"the answer lacks {len(missing)} of {len(asked)} rows: {shown(missing)}. Tell all rows at once, in "
            "query.ids' order."
        )
    if given != list(asked):
        row = next(r for r, name in enumerate(given) if place[name] != r)
        raise BadAnswer(
            f"the answer's rows are not in the order in which they were asked: its row {row} is {given[row]!r}, "
            f"which was asked as row {place[given[row]]}. Sort losses and gradients by query.ids."
        )
