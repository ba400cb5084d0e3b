"""Models whose output is a picture: one number for every cell of a grid, from no input but the place.

Each takes the grid's shape (columns, rows) and gives the numbers column by column, of no particular range;
`Density` and `Bounded` turn them into what a solver understands.

References: Tancik et al., *Fourier features let networks learn high frequency functions*, 2020; Sitzmann et al.,
*Implicit neural representations with periodic activation functions*, 2020; Hoyer, Sohl-Dickstein, Greydanus,
*Neural reparameterization improves structural optimization*, 2019 (the convolutional network).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from targetopt.lab.problems.physics.sparse import Array
from targetopt.types import BadArgument

Shape = tuple[int, int]
"""Columns and rows of a grid."""

Kind = Literal["fourier", "siren", "cnn", "pixels"]


def places(shape: Shape) -> Tensor:
    """The centres of the cells, column by column; the shorter side reaches from −½ to ½."""
    columns, rows = shape
    short = min(shape)
    x = (torch.arange(columns, dtype=torch.float64) + 0.5 - columns / 2) / short
    y = (torch.arange(rows, dtype=torch.float64) + 0.5 - rows / 2) / short
    return torch.cartesian_prod(x, y)


class Fourier(nn.Module):
    """A multi-layer perceptron on random Fourier features sin(Bx), cos(Bx), with B_ij ∼ N(0, scale²).

    Example:
        >>> Fourier((6, 4))().shape
        torch.Size([24])
    """

    features: Tensor

    def __init__(
        self, shape: Shape, *, scale: float = 8.0, waves: int = 32, width: int = 64
    ) -> None:
        super().__init__()
        angles = places(shape) @ (scale * torch.randn(2, waves, dtype=torch.float64))
        self.register_buffer("features", torch.cat([angles.sin(), angles.cos()], dim=1))
        self.net = nn.Sequential(
            nn.Linear(2 * waves, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        ).double()

    def forward(self) -> Tensor:
        values: Tensor = self.net(self.features)
        return values[:, 0]


class Siren(nn.Module):
    """A network of sines: h ← sin(ω(Wh + b)), ω = ``frequency`` in the first layer and in the others.

    Weights are drawn as Sitzmann et al. do, so that every layer's input is spread like every other's.

    Example:
        >>> Siren((6, 4))().shape
        torch.Size([24])
    """

    places: Tensor

    def __init__(
        self, shape: Shape, *, frequency: float = 10.0, width: int = 48, layers: int = 3
    ) -> None:
        super().__init__()
        self.register_buffer("places", 2.0 * places(shape))
        self.frequency = frequency
        sizes = [2, *[width] * layers, 1]
        layers_made = [nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)]
        with torch.no_grad():
            for number, layer in enumerate(layers_made):
                inputs = layer.in_features
                bound = 1.0 / inputs if number == 0 else math.sqrt(6.0 / inputs) / frequency
                layer.weight.uniform_(-bound, bound)
        self.layers = nn.ModuleList(layers_made)

    def forward(self) -> Tensor:
        h = self.places
        *hidden, last = self.layers
        for layer in hidden:
            h = torch.sin(self.frequency * layer(h))
        values: Tensor = last(h)
        return values[:, 0]


class Convolutional(nn.Module):
    """A convolutional decoder: a trained seed, a coarse picture, twice as fine twice, with 3 × 3 filters.

    Example:
        >>> Convolutional((6, 4))().shape
        torch.Size([24])
    """

    def __init__(
        self, shape: Shape, *, seed: int = 16, channels: tuple[int, int] = (24, 12)
    ) -> None:
        super().__init__()
        self.shape = shape
        self.coarse = (-(-shape[0] // 4), -(-shape[1] // 4))
        first, second = channels
        self.seed = nn.Parameter(torch.randn(seed, dtype=torch.float64))
        self.spread = nn.Linear(seed, first * self.coarse[0] * self.coarse[1]).double()
        self.convolutions = nn.ModuleList(
            [nn.Conv2d(first, second, 3, padding=1), nn.Conv2d(second, 1, 3, padding=1)]
        ).double()

    def forward(self) -> Tensor:
        picture: Tensor = self.spread(self.seed).reshape(1, -1, *self.coarse)
        for convolution in self.convolutions:
            fine = nn.functional.interpolate(
                torch.tanh(picture), scale_factor=2.0, mode="bilinear", align_corners=False
            )
            picture = convolution(fine)
        return picture[0, 0, : self.shape[0], : self.shape[1]].reshape(-1)


class Pixels(nn.Module):
    """No model at all: one parameter for every cell.

    Example:
        >>> Pixels((6, 4))().shape
        torch.Size([24])
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.values = nn.Parameter(0.01 * torch.randn(shape[0] * shape[1], dtype=torch.float64))

    def forward(self) -> Tensor:
        return 1.0 * self.values


FIELDS: dict[str, Callable[[Shape], nn.Module]] = {
    "fourier": Fourier,
    "siren": Siren,
    "cnn": Convolutional,
    "pixels": Pixels,
}


def field(kind: str, shape: Shape) -> nn.Module:
    """A field of this kind for a grid, drawn with torch's present random state."""
    if kind not in FIELDS:
        raise BadArgument(f"model={kind!r} is unknown. Use one of {', '.join(FIELDS)}.")
    return FIELDS[kind](shape)


class Density(nn.Module):
    """Physical densities with a given mean: C · sigmoid(y + s), with s such that the mean is ``volume``.

    C is the density filter of a structure, a convolution with its cone. The shift s is found by Newton's
    method, kept between bounds; that it moves with y is part of the derivative (implicit
    differentiation), so that a small step of y keeps the volume.

    Args:
        shape: of the grid.
        kernel: the filter's weights around a cell (`Structure.kernel`).
        volume: the mean density.

    Example:
        >>> density = Density((6, 4), torch.ones(1, 1).double().numpy(), 0.3)
        >>> float(density(torch.randn(24, dtype=torch.float64)).mean().round(decimals=12))
        0.3
    """

    kernel: Tensor
    sums: Tensor

    def __init__(self, shape: Shape, kernel: Array, volume: float) -> None:
        super().__init__()
        if not 0 < volume < 1:
            raise BadArgument(f"volume={volume!r} must lie between 0 and 1: it is the mean density")
        self.shape, self.volume = shape, volume
        ones = torch.ones(shape[0] * shape[1], dtype=torch.float64)
        self.register_buffer("kernel", torch.from_numpy(kernel)[None, None], persistent=False)
        self.register_buffer("sums", self._convolved(ones), persistent=False)
        # the mean of the filtered densities is a weighted mean of the unfiltered ones
        self._weights: Array = (self._convolved(1.0 / self.sums) / ones.numel()).numpy()

    def _convolved(self, x: Tensor) -> Tensor:
        reach = self.kernel.shape[-1] // 2
        picture = nn.functional.conv2d(
            x.reshape(1, 1, *self.shape), self.kernel.to(x), padding=reach
        )
        return picture.reshape(-1)

    def forward(self, y: Tensor) -> Tensor:
        flat = y.detach().cpu().double().numpy()
        s, slope = self._shift(flat)
        share = torch.from_numpy(slope / slope.sum()).to(y)
        shift = s - share @ (y - y.detach())
        return self._convolved(torch.sigmoid(y + shift)) / self.sums.to(y)

    def _shift(self, y: Array) -> tuple[float, Array]:
        """s with Σ w_i sigmoid(y_i + s) = volume, to rounding, and the derivative of every summand."""
        weights = self._weights
        middle = math.log(self.volume / (1.0 - self.volume))
        low, high = middle - float(y.max()), middle - float(y.min())
        s = middle - float(weights @ y)
        for _ in range(100):
            x = expit(y + s)
            slope = weights * x * (1.0 - x)
            excess = float(weights @ x) - self.volume
            low, high = (low, s) if excess > 0 else (s, high)
            total = float(slope.sum())
            new = s - excess / total if total > 0 else math.nan
            if not low < new < high:
                new = 0.5 * (low + high)
            if not abs(new - s) > 4 * np.finfo(np.float64).eps * (1.0 + abs(s)):
                break
            s = new
        return s, np.maximum(slope, np.finfo(np.float64).tiny)


class Bounded(nn.Module):
    """Logarithms of positive coefficients between 1/spread and spread: r tanh(y/r) with r = log ``spread``.

    Example:
        >>> Bounded(4.0)(torch.tensor([-1e9, 0.0, 1e9]).double()).exp()
        tensor([0.2500, 1.0000, 4.0000], dtype=torch.float64)
    """

    def __init__(self, spread: float) -> None:
        super().__init__()
        if not 1.0 < spread < math.inf:
            raise BadArgument(f"spread={spread!r} must be above 1 and finite")
        self.range = math.log(spread)

    def forward(self, y: Tensor) -> Tensor:
        return self.range * torch.tanh(y / self.range)
