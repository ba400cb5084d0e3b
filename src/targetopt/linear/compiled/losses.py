"""Losses of one target, by number; the formulas of ``targetopt.losses``."""

from __future__ import annotations

import numpy as np

from targetopt.linear.compiled.jit import loop
from targetopt.linear.spec import HUBER, LOGISTIC, SQUARED, LossSpec


@loop
def _bare_value(loss: LossSpec, z: float, y: float) -> float:
    if loss.kind == LOGISTIC:
        margin = y * z
        return float(max(-margin, 0.0) + np.log1p(np.exp(-abs(margin))))
    if loss.kind == SQUARED:
        return 0.5 * (z - y) * (z - y)
    if loss.kind == HUBER:
        distance = abs(z - y)
        inside = min(distance, loss.delta)
        return inside * (distance - 0.5 * inside)
    return float(np.exp(z) - y * z)


@loop
def _bare_slope(loss: LossSpec, z: float, y: float) -> float:
    if loss.kind == LOGISTIC:
        e = np.exp(-abs(z))
        return float(-y * (e if y * z > 0.0 else 1.0) / (1.0 + e))
    if loss.kind == SQUARED:
        return z - y
    if loss.kind == HUBER:
        return min(max(z - y, -loss.delta), loss.delta)
    return float(np.exp(z) - y)


@loop
def _bare_curvature(loss: LossSpec, z: float, y: float) -> float:
    if loss.kind == LOGISTIC:
        e = np.exp(-abs(z))
        return float(e / ((1.0 + e) * (1.0 + e)))
    if loss.kind == SQUARED:
        return 1.0
    if loss.kind == HUBER:
        return 1.0 if abs(z - y) <= loss.delta else 0.0
    return float(np.exp(z))


@loop
def value(loss: LossSpec, z: float, y: float) -> float:
    return _bare_value(loss, z, y) + 0.5 * loss.ridge * z * z


@loop
def slope(loss: LossSpec, z: float, y: float) -> float:
    return _bare_slope(loss, z, y) + loss.ridge * z


@loop
def curvature(loss: LossSpec, z: float, y: float) -> float:
    return _bare_curvature(loss, z, y) + loss.ridge
