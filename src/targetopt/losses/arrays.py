"""A loss for callers who work with numpy arrays: everything about the targets in one pass."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.losses.base import Evaluation, Loss
from targetopt.losses.spare import Spare

Array = NDArray[np.float64]


class OnArrays:
    """The same mathematics as ``loss``, from numpy arrays to numpy arrays, nothing copied.

    Values are counted from each example's `Loss.lower_bound`, so that zero means a perfect fit and a
    tolerance relative to the value means something; for `Poisson` this is half the deviance. Results lie in
    ``spare`` arrays, which are used again when nobody holds them any more.

    Example:
        >>> from targetopt.losses import Poisson
        >>> loss = OnArrays(Poisson(torch.tensor([1.0, 0.0])))
        >>> loss.evaluate(np.zeros(2)).values
        array([0., 1.])
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = copy.copy(loss)
        self.spare = self.loss.spare = Spare()
        least = loss.lower_bound().numpy()
        self._least = least if least.any() else None
        self.majorises = loss.majorises
        self.quadratic = loss.smoothness == loss.strong_convexity  # its curvature is one number

    def evaluate(self, z: Array) -> Evaluation:
        """Values, gradient and metric at ``z``. Far away a loss may overflow to inf; it never gives nan."""
        values, gradient, metric = self.loss.evaluate(torch.from_numpy(z))
        above = values.numpy()
        if self._least is not None:
            above = np.subtract(above, self._least, out=self.spare.take(above.shape))
        return Evaluation(above, gradient.numpy(), metric.numpy())

    def curvature(self, z: Array) -> Array:
        """∂²ℓ_i/∂z_i² in the form of a metric: what `evaluate` gives, unless that majorises it."""
        if self.majorises:
            curvature: Array = self.loss.curvature(torch.from_numpy(z)).numpy()
            return curvature
        metric: Array = self.evaluate(z).metric
        return metric

    def curve(self, metric: Array, u: Array) -> Array:
        """W_i u_i for the ``metric`` of `evaluate`; ``u`` may have leading axes."""
        if metric.ndim == 1:  # one output, for which W_i is a number
            return np.multiply(metric, u, out=self.spare.take(u.shape))
        curved: Array = self.loss.curve(torch.from_numpy(metric), torch.from_numpy(u)).numpy()
        return curved

    def diagonal(self, metric: Array) -> Array:
        """The diagonal of each W_i, shaped like the targets."""
        if metric.ndim == 1:
            return metric
        diagonal: Array = self.loss.diagonal(torch.from_numpy(metric)).numpy()
        return diagonal

    def best_constant(self, weights: Array) -> Array:
        """See `Loss.best_constant`: a number for one output, else one per output."""
        constant: Array = self.loss.best_constant(torch.from_numpy(weights)).numpy()
        return constant
