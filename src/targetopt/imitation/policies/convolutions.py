"""A convolutional network for pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from targetopt.imitation.simulation.observations import PICTURE, Observations
from targetopt.types import BadArgument

LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, width and stride of the layers for pictures of at least 36 × 36."""

SMALL = ((32, 3, 1), (64, 3, 2))
"""Those for smaller ones."""


class Convolutions(nn.Module):
    """Convolutions with relu, then two linear layers: from pictures to targets.

    Pictures are ``(height, width)``, with a channel axis before or after these (the shorter end is taken for it), or
    stacked, ``(frames, height, width, channels)``: frames and channels are then one axis. Bytes are divided by 255.

    Args:
        layout: of the observations: one picture.
        outputs: numbers in a target.
        hidden: width of the first linear layer.

    Example:
        >>> layout = Observations([(None, (4, 84, 84))], "uint8")
        >>> Convolutions(layout, 3)(torch.zeros(2, 4, 84, 84)).shape
        torch.Size([2, 3])

    Reference: Mnih et al., *Human-level control through deep reinforcement learning*, Nature 2015 (the three layers
    for large pictures).
    """

    def __init__(self, layout: Observations, outputs: int, hidden: int = 256) -> None:
        super().__init__()
        shape = layout.parts[0].shape
        if (
            len(layout.parts) != 1
            or layout.parts[0].name is not None
            or len(shape) not in (2, 3, 4)
        ):
            raise BadArgument(
                "learner='cnn' takes one picture per state, of 2 to 4 axes; the environment shows "
                f"{[part.shape for part in layout.parts]}. Pass a module of your own as learner=."
            )
        self.last = len(shape) == 3 and shape[2] < shape[0]
        self.scale = 255.0 if layout.dtype == PICTURE else 1.0
        channels, height, width = self._ordered(torch.empty(1, *shape)).shape[1:]
        layers: list[nn.Module] = []
        for filters, size, stride in LARGE if min(height, width) >= 36 else SMALL:
            padding = 0 if min(height, width) >= 36 else 1
            layers += [nn.Conv2d(channels, filters, size, stride, padding), nn.ReLU()]
            channels = filters
        self.pictures = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            width = self.pictures(self._ordered(torch.zeros(1, *shape))).shape[1]
        self.rest = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def _ordered(self, pictures: Tensor) -> Tensor:
        """Channels first, one axis of them."""
        if pictures.ndim == 3:
            return pictures.unsqueeze(1)
        if pictures.ndim == 5:  # (n, frames, height, width, channels)
            return pictures.movedim(4, 2).flatten(1, 2)
        return pictures.movedim(3, 1) if self.last else pictures

    def forward(self, pictures: Any) -> Tensor:
        z: Tensor = self.rest(self.pictures(self._ordered(pictures) / self.scale))
        return z
