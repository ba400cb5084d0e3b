"""A regression problem with a small network, registered under a name for specifications."""

import torch
from torch import Tensor, nn

from targetopt.lab.problems import Problem, register
from targetopt.losses import Squared
from targetopt.types import Forward


class NoisySine(Problem):
    """y = sin 3x + noise, fitted by one hidden layer of tanh units."""

    def __init__(self, width: int, noise: float) -> None:
        random = torch.Generator().manual_seed(0)
        self.label = f"noisy sine, width {width}"
        self.width = width
        self.x = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
        error = noise * torch.randn(200, generator=random, dtype=torch.float64)
        self.loss = Squared(torch.sin(3 * self.x[:, 0]) + error)

    @property
    def n(self) -> int:
        return len(self.x)

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden, output = nn.Linear(1, self.width), nn.Linear(self.width, 1)
            return nn.Sequential(hidden, nn.Tanh(), output, nn.Flatten(0)).double()

    def forward(self, model: nn.Module, index: Tensor | None = None) -> Forward:
        x = self.x if index is None else self.x[index]
        return lambda: model(x)

    def metrics(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"loss": float(self.loss.value(model(self.x)).mean())}


@register("noisy-sine", "one-hidden-layer regression on 200 points")
def noisy_sine(width: int = 16, noise: float = 0.1) -> Problem:
    return NoisySine(width, noise)
