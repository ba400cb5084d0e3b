"""Losses of many targets, by number; the formulas of ``targetopt.losses``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from targetopt.linear.spec import HUBER, LOGISTIC, SQUARED, LossSpec

Array = NDArray[np.float64]


def _bare_value(loss: LossSpec, z: Array, y: Array) -> Array:
    if loss.kind == LOGISTIC:
        return np.logaddexp(0.0, -y * z)
    if loss.kind == SQUARED:
        return 0.5 * (z - y) ** 2
    if loss.kind == HUBER:
        distance = np.abs(z - y)
        inside = np.minimum(distance, loss.delta)
        return inside * (distance - 0.5 * inside)
    return np.exp(z) - y * z


def _bare_slope(loss: LossSpec, z: Array, y: Array) -> Array:
    if loss.kind == LOGISTIC:
        return -y * expit(-y * z)
    if loss.kind == SQUARED:
        return z - y
    if loss.kind == HUBER:
        return np.clip(z - y, -loss.delta, loss.delta)
    return np.exp(z) - y


def _bare_curvature(loss: LossSpec, z: Array, y: Array) -> Array:
    if loss.kind == LOGISTIC:
        return expit(z) * expit(-z)
    if loss.kind == SQUARED:
        return np.ones_like(z)
    if loss.kind == HUBER:
        return (np.abs(z - y) <= loss.delta).astype(np.float64)
    return np.exp(z)


def value(loss: LossSpec, z: Array, y: Array) -> Array:
    return _bare_value(loss, z, y) + 0.5 * loss.ridge * z * z


def slope(loss: LossSpec, z: Array, y: Array) -> Array:
    return _bare_slope(loss, z, y) + loss.ridge * z


def curvature(loss: LossSpec, z: Array, y: Array) -> Array:
    return _bare_curvature(loss, z, y) + loss.ridge
