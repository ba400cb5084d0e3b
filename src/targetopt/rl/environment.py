"""Environments for reinforcement learning: continuous, discrete and multi-discrete actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from targetopt.distributions import Categorical, Family, Gaussian, MultiDiscrete
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.environment import Environment
from targetopt.types import BadArgument


class ControlEnvironment(Environment):
    """A Gymnasium environment in which a policy learns by trying.

    Args:
        source: an id, an environment, or a function without arguments that makes one.

    Attributes:
        family: the distributions over its actions: a `Gaussian` with learned deviations for a box, a `Categorical` or
            `MultiDiscrete` for choices.

    Example:
        >>> environment = ControlEnvironment("CartPole-v1")
        >>> environment.family, environment.observation_size
        (Categorical(choices=2), 4)
    """

    family: Family

    def _read_actions(self, spaces: Any, actions: Any) -> None:
        if isinstance(actions, spaces.Box) and len(actions.shape) == 1:
            super()._read_actions(spaces, actions)
            self.family = Gaussian(self.action_size)
            return
        if isinstance(actions, spaces.Discrete):
            self.family = Categorical(int(actions.n))
            self._start: Any = actions.start
        elif isinstance(actions, spaces.MultiDiscrete) and actions.nvec.ndim == 1:
            self.family = MultiDiscrete(tuple(int(n) for n in actions.nvec))
            self._start = actions.start
        else:
            raise BadArgument(
                f"env={self.name!r} has the action space {actions}; policies here act in a 1-D Box (continuous), "
                "Discrete or 1-D MultiDiscrete. Flatten other actions with a gymnasium.ActionWrapper."
            )
        self.action_shape = actions.shape
        self.action_size = int(np.prod(actions.shape, dtype=np.int64))
        self.action_dtype = actions.dtype
        self.low: Array = np.full(self.action_size, -np.inf)
        self.high: Array = np.full(self.action_size, np.inf)

    def clipped(self, actions: Array) -> Any:
        """Actions as the environment takes them: clipped to the box, or the chosen numbers."""
        if isinstance(self.family, Gaussian):
            return super().clipped(actions)
        return (np.asarray(actions) + self._start).astype(self.action_dtype)
