"""A problem whose oracle is a black box: a simulator, outside autograd, that says losses and gradients."""

import numpy as np
import torch
from torch import Tensor, nn

from targetopt import GradientOracle
from targetopt.lab.problems import Problem, register
from targetopt.lab.problems.base import seeded

GOALS = np.linspace(2.0, 10.0, 64)


def throw(z: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Throw a ball with each row's velocities (u, v): half the squared distance to the goal, and its gradient."""
    u, v = z.numpy().T
    miss = 2 * u * v / 9.81 - GOALS
    return 0.5 * miss**2, miss[:, None] * np.stack([2 * v, 2 * u], axis=1) / 9.81


class Throws(Problem):
    """A network learns how to throw: it sees the distance to the goal and chooses the velocities."""

    expensive = True  # calls are what counts: every answer is recorded

    def model(self, seed):
        layers = (nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2), nn.Softplus())
        return seeded(seed, lambda: nn.Sequential(*layers))

    def forward(self, model, index=None):
        x = torch.from_numpy(GOALS[:, None] / 10)
        return lambda: model(x)

    def oracle(self, index=None):
        return GradientOracle(throw)

    def metrics(self, model):
        losses, _ = throw(self.forward(model)().detach())
        return {"loss": float(losses.mean())}


@register("throws", "a network that learns to throw a ball, with a simulator for an oracle")
def throws() -> Throws:
    return Throws()
