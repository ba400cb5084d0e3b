"""Losses of one target in kernels: the functions that a loss declares, called by their addresses."""

from __future__ import annotations

from collections.abc import Callable

from numba import types

from targetopt.linear.kernels.arguments import LossSpec
from targetopt.linear.kernels.compiler.jit import caller, loop, scalar_address
from targetopt.losses import ScalarForm

MOST_NUMBERS = 3
"""A loss with more numbers of its own runs on the general path."""

_call: Callable[[int, tuple[float, ...]], float] = caller(types.float64)


def loss_spec(form: ScalarForm | None) -> LossSpec | None:
    """The loss for kernels, compiled if it was not before; None if it has no form that they take."""
    if form is None or len(form.numbers) > MOST_NUMBERS:
        return None
    arity = len(form.numbers)
    value, slope, curvature = (scalar_address(function, 2 + arity) for function in form.scalar)
    a, b, c = (*form.numbers, *[0.0] * (MOST_NUMBERS - arity))
    return LossSpec(value, slope, curvature, arity, a, b, c, form.ridge)


@loop
def _of_one(address: int, loss: LossSpec, z: float, y: float) -> float:
    if loss.arity == 0:
        return _call(address, (z, y))
    if loss.arity == 1:
        return _call(address, (z, y, loss.a))
    if loss.arity == 2:
        return _call(address, (z, y, loss.a, loss.b))
    return _call(address, (z, y, loss.a, loss.b, loss.c))


@loop
def value(loss: LossSpec, z: float, y: float) -> float:
    return _of_one(loss.value, loss, z, y) + 0.5 * loss.ridge * z * z


@loop
def slope(loss: LossSpec, z: float, y: float) -> float:
    return _of_one(loss.slope, loss, z, y) + loss.ridge * z


@loop
def curvature(loss: LossSpec, z: float, y: float) -> float:
    return _of_one(loss.curvature, loss, z, y) + loss.ridge
