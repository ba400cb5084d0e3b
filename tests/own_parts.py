"""Losses, rules and solvers as a user would write them, outside the package."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

import targetopt as to
from targetopt.losses import Huber, Pointwise, Scalar, Squared
from targetopt.surrogate import Quadratic


def value(z: float, y: float, scale: float) -> float:
    r = abs(z - y) / scale
    return float(scale * scale * (r + np.log1p(np.exp(-2.0 * r)) - np.log(2.0)))


def slope(z: float, y: float, scale: float) -> float:
    return float(scale * np.tanh((z - y) / scale))


def curvature(z: float, y: float, scale: float) -> float:
    t = np.tanh((z - y) / scale)
    return float(1.0 - t * t)


class LogCosh(Pointwise):
    """s² log cosh((z − y)/s): a loss with a number of its own."""

    smoothness = 1.0
    scalar: ClassVar[Scalar | None] = Scalar(value, slope, curvature)

    def __init__(self, y: Tensor, scale: float = 0.8) -> None:
        super().__init__(y)
        self.scale = scale

    @property
    def numbers(self) -> tuple[float, ...]:
        return (self.scale,)

    def value(self, z: Tensor) -> Tensor:
        r = (z - self._matched(z)).abs() / self.scale
        return self.scale**2 * (r + torch.log1p(torch.exp(-2.0 * r)) - np.log(2.0))

    def gradient(self, z: Tensor) -> Tensor:
        return self.scale * torch.tanh((z - self._matched(z)) / self.scale)

    def curvature(self, z: Tensor) -> Tensor:
        return 1.0 - torch.tanh((z - self._matched(z)) / self.scale).square()


def tilted_value(z: float, y: float, a: float, b: float, c: float) -> float:
    return 0.5 * a * (z - y) * (z - y) + b * z + c


def tilted_slope(z: float, y: float, a: float, b: float, c: float) -> float:
    return a * (z - y) + b


def tilted_curvature(z: float, y: float, a: float, b: float, c: float) -> float:
    return a


class Tilted(Pointwise):
    """½a(z − y)² + bz + c: as many numbers as compiled loops take."""

    scalar: ClassVar[Scalar | None] = Scalar(tilted_value, tilted_slope, tilted_curvature)
    numbers = (0.5, 0.1, 1.0)
    smoothness = 0.5

    def value(self, z: Tensor) -> Tensor:
        a, b, c = self.numbers
        return 0.5 * a * (z - self._matched(z)).square() + b * z + c

    def gradient(self, z: Tensor) -> Tensor:
        a, b, _ = self.numbers
        return a * (z - self._matched(z)) + b

    def curvature(self, z: Tensor) -> Tensor:
        return torch.full_like(z, self.numbers[0])


class Doubled(Squared):
    """A subclass that is not its parent."""

    smoothness = 2.0

    def value(self, z: Tensor) -> Tensor:
        return 2.0 * super().value(z)

    def gradient(self, z: Tensor) -> Tensor:
        return 2.0 * super().gradient(z)

    def curvature(self, z: Tensor) -> Tensor:
        return 2.0 * super().curvature(z)


class Renamed(Huber):
    """A subclass that is its parent but for the name."""


class PlainOnly(Squared):
    """Without scalar functions of its own."""

    scalar = None


@dataclass(frozen=True)
class HalfStep(to.GradientStep):
    """A subclass of a rule with a kernel."""

    def propose(self, point, lr, decay, state):
        return super().propose(point, lr, 0.5 * decay, state)


@dataclass(frozen=True)
class Counting(to.Rule):
    """A rule of one's own, with a state."""

    def propose(self, point, lr, decay, state):
        seen = state.get("seen", 0) + 1
        eta = self.step_size(point, lr, decay) / seen
        metric = point.targets.new_tensor(1.0 / eta)
        surrogate = Quadratic(point.targets, point.gradients, metric, point.loss)
        return to.Proposal(surrogate, {"seen": seen}, eta)


@dataclass(frozen=True)
class ShortArmijo(to.Armijo):
    """A subclass of a solver with a kernel: one step, whatever ``max_steps`` is."""

    def minimise(self, objective, state):
        return to.Armijo.minimise(replace(self, max_steps=1), objective, state)


@dataclass(frozen=True)
class OneStep(to.Inner):
    """A solver of one's own."""

    size: float = 0.05

    def minimise(self, objective, state):
        before = objective.start()
        gradient = objective.gradient(before)
        for p, g in zip(objective.params, gradient, strict=True):
            p -= self.size * g
        return to.InnerResult(1, None, "max-steps")
