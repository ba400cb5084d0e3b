"""Experts, learners and misbehaving environments that several imitation tests use."""

from typing import Any

import gymnasium
import numpy as np

from targetopt import imitation as im
from targetopt.imitation.policies.network import Array


def teacher(environment: im.Environment, seed: int = 7) -> im.NetworkExpert:
    """A network expert of the right widths, with lively actions."""
    network = im.GaussianPolicy(
        environment.observation_size, environment.action_size, hidden=(32, 32), seed=seed
    ).arrays_network()
    return im.NetworkExpert(
        network, "tanh", low=environment.low, high=environment.high, environment=environment.name
    )


def learner(environment: im.Environment, *, mean: Any = "mlp", seed: int = 0) -> im.GaussianPolicy:
    return im.GaussianPolicy(
        environment.observation_size,
        environment.action_size,
        mean=mean,
        hidden=(32, 32),
        low=environment.low,
        high=environment.high,
        seed=seed,
    )


class PointMass(gymnasium.Env[Array, Array]):
    """A point on a line that is pushed; it may be told to fail at some step of an episode.

    The observation is (position, velocity); episodes end after 30 steps or far out.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, fail_at: int | None = None, how: str = "raise") -> None:
        self.fail_at, self.how = fail_at, how
        self.steps_ever = 0

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-0.5, 0.5, 2)
        self.age = 0
        return self.state.astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps_ever += 1
        if self.steps_ever == self.fail_at:
            if self.how == "raise":
                raise RuntimeError("the simulator's licence expired")
            return np.array([np.nan, 0.0]), 0.0, False, False, {}
        position, velocity = self.state
        velocity = 0.9 * velocity + 0.1 * float(action[0]) + 0.01 * self.np_random.standard_normal()
        self.state = np.array([position + velocity, velocity])
        self.age += 1
        reward = -float(self.state[0] ** 2)
        observation = self.state.astype(np.float32)
        return observation, reward, bool(abs(self.state[0]) > 3), self.age >= 30, {}


def spring(states: Array) -> Array:
    """The expert of `PointMass`."""
    return np.clip(-states[:, :1] - 0.5 * states[:, 1:], -1, 1)
