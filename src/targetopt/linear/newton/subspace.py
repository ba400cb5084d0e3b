"""The step of the full-batch Newton solver: the best one in the span of a direction and earlier steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from targetopt.linear.newton.metrics import PER_TARGET, product_cost
from targetopt.linear.newton.objective import Array, PenalisedLoss, Point

MEMORY = {
    True: 1,
    False: 5,
}  # earlier steps kept, by whether a product with X costs less than a loss
LONGEST = 1e3  # a step moves no target further than this, relative to the largest target
RESOLVED = 1e-11  # directions of less curvature than this, relative to the rest, are rounding


@dataclass(frozen=True)
class Step:
    """A direction in parameters and in targets; along it F has ``slope``, q_t falls by ``decrease``."""

    theta: Array
    z: Array
    slope: float
    decrease: float
    ridge: float


class Subspace:
    """The last steps with their images, and the exact minimiser of q_t over their span and u.

    Slots are reused in turn: u takes the oldest step's place, and the step found takes u's. A single
    intercept's own direction stays in a slot before them: its image is known without a product, and
    a metric that is diagonal knows nothing of how features and intercept can replace each other.
    """

    def __init__(self, objective: PenalisedLoss, point: Point) -> None:
        self.objective = objective
        self.kept = int(objective.intercept and point.theta.ndim == 1)
        self.memory = MEMORY[product_cost(objective.X) < PER_TARGET * objective.weights.size]
        slots = self.kept + self.memory + 1
        self.steps = np.zeros((slots, *point.theta.shape))
        self.images = np.zeros((slots, *point.z.shape))
        self.ridges = np.zeros((slots, slots))
        self.slot = self.filled = self.kept
        if self.kept:
            self.steps[0, -1] = self.images[0] = 1.0
            self.ridges[0, 0] = objective.ridge[-1]

    def minimiser(self, point: Point, gradient: Array, u: Array) -> Step:
        """The step from ``point`` to the minimiser of q_t over the span of u and the steps kept."""
        slot = self.slot
        self.filled = max(self.filled, slot + 1)
        self.slot = slot + 1 if slot < self.kept + self.memory else self.kept
        # Only u's direction counts, and where losses are flat it is very long.
        np.divide(u, float(np.abs(u).max()) or 1.0, out=self.steps[slot])
        self.images[slot] = self.objective.forward(self.steps[slot])
        steps = self.steps[: self.filled].reshape(self.filled, -1)
        images = self.images[: self.filled].reshape(self.filled, -1)
        ridges = self.ridges[: self.filled, : self.filled]
        pulled = (self.objective.ridge * self.steps[slot]).ravel()
        products = steps @ np.stack([pulled, gradient.ravel()], axis=1)
        ridges[slot] = ridges[:, slot] = products[:, 0]

        # Slots that are empty yet hold zeros; counts that are powers of two need few spare arrays.
        most = 1 << (self.filled - 1).bit_length()
        curved = self.objective.curved(point.at.metric, self.images[:most])
        model = curved.reshape(len(curved), -1)[: self.filled] @ images.T + ridges
        slopes = -products[:, 1]
        c = _least(model, slopes)
        gain = float(slopes @ c)
        image = np.dot(c, images, out=self.objective.loss.spare.take((images.shape[1],)))
        share = _allowed(point, image)
        c *= share

        ridges[slot] = ridges[:, slot] = ridges @ c
        ridges[slot, slot] = c @ ridges[:, slot]
        steps[slot] = c @ steps
        np.multiply(image, share, out=images[slot])
        return Step(
            self.steps[slot],
            self.images[slot],
            -share * gain,
            share * (1.0 - 0.5 * share) * gain,
            float(ridges[slot, slot]),
        )


def newton_step(objective: PenalisedLoss, point: Point, gradient: Array, u: Array) -> Step:
    """The step from ``point`` to the minimiser of q_t over all θ, where u is M⁻¹∇F with M the Hessian of q_t."""
    gain = float(np.vdot(gradient, u))
    image = objective.forward(u)
    share = _allowed(point, image)
    ridge = share * share * float(np.vdot(objective.ridge * u, u))
    image *= -share
    return Step(-share * u, image, -share * gain, share * (1.0 - 0.5 * share) * gain, ridge)


def _allowed(point: Point, image: Array) -> float:
    """The part of a step that may be made, for no target to move too far; `image` is what all of it would do."""
    if float(np.vdot(image, image)) <= LONGEST * LONGEST:  # then no entry is larger either
        return 1.0
    furthest = max(float(image.max()), -float(image.min()))
    largest = max(float(point.z.max()), -float(point.z.min()))
    allowed = LONGEST * (1.0 + largest)
    return allowed / furthest if furthest > allowed else 1.0


def _least(model: Array, slopes: Array) -> Array:
    """argmin ½cᵀAc − bᵀc of least norm after scaling A's diagonal to one."""
    diagonal = model.diagonal()
    scale = np.divide(
        1.0, np.sqrt(np.abs(diagonal)), out=np.zeros_like(diagonal), where=diagonal > 0
    )
    values, vectors = np.linalg.eigh(model * scale * scale[:, None])
    keep = values > RESOLVED
    vectors = vectors[:, keep]
    return np.asarray(scale * (vectors @ ((vectors.T @ (scale * slopes)) / values[keep])))
