"""Markov decision processes small enough to be solved exactly: where theory can be checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadArgument

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MDP:
    """A finite Markov decision process with a known model.

    Attributes:
        transitions: P(s'|s, a), shape ``(states, actions, states)``. Rows may add up to less than 1: what is missing
            ends the episode.
        rewards: r(s, a), shape ``(states, actions)``.
        start: the distribution of first states.
        discount: γ in [0, 1); 1 is allowed where every policy ends its episodes.
        name: for messages.

    Example:
        >>> bandit = MDP(np.zeros((1, 2, 1)), np.array([[1.0, 0.0]]), np.ones(1), 0.0)
        >>> bandit.value(np.array([[0.25, 0.75]])), bandit.best_value()
        (0.25, 1.0)
    """

    transitions: Array
    rewards: Array
    start: Array
    discount: float
    name: str = "MDP"

    def __post_init__(self) -> None:
        states, actions = self.rewards.shape
        if self.transitions.shape != (states, actions, states) or self.start.shape != (states,):
            raise BadArgument(
                f"MDP: rewards of shape {self.rewards.shape} need transitions of shape {(states, actions, states)} and "
                f"a start of shape {(states,)}; got {self.transitions.shape} and {self.start.shape}"
            )
        sums = self.transitions.sum(axis=2)
        if (self.transitions < 0).any() or (sums > 1 + 1e-12).any():
            raise BadArgument("MDP: transitions must be probabilities that add up to at most 1")
        if (self.start < 0).any() or abs(self.start.sum() - 1) > 1e-12:
            raise BadArgument("MDP: start must be probabilities that add up to 1")
        if not 0.0 <= self.discount <= 1.0:
            raise BadArgument(f"MDP: discount={self.discount!r} must lie between 0 and 1")

    @property
    def states(self) -> int:
        return int(self.rewards.shape[0])

    @property
    def actions(self) -> int:
        return int(self.rewards.shape[1])

    def _resolvent(self, policy: Array) -> Array:
        """I − γ P_π."""
        moves = np.einsum("sa,sat->st", policy, self.transitions)
        found: Array = np.eye(self.states) - self.discount * moves
        return found

    def values(self, policy: Array) -> Array:
        """V_π(s), by solving (I − γ P_π) V = r_π."""
        earned = (policy * self.rewards).sum(axis=1)
        return np.asarray(np.linalg.solve(self._resolvent(policy), earned), dtype=np.float64)

    def value(self, policy: Array) -> float:
        """J(π) = Σ_s start(s) V_π(s)."""
        return float(self.start @ self.values(policy))

    def advantages(self, policy: Array) -> Array:
        """A_π(s, a) = r(s, a) + γ Σ P(s'|s, a) V_π(s') − V_π(s)."""
        values = self.values(policy)
        found: Array = self.rewards + self.discount * self.transitions @ values - values[:, None]
        return found

    def occupancy(self, policy: Array) -> Array:
        """d_π(s) = Σ_t γ^t P(s_t = s), which adds up to 1/(1 − γ) where no episode ends."""
        return np.asarray(np.linalg.solve(self._resolvent(policy).T, self.start), dtype=np.float64)

    def best_policy(self, sweeps: int = 1000) -> Array:
        """An optimal policy that is certain of its actions, by policy iteration."""
        policy: Array = np.full(self.rewards.shape, 1.0 / self.actions)
        for _ in range(sweeps):
            q = self.advantages(policy)
            better: Array = np.eye(self.actions)[(q + 1e-12 * policy).argmax(axis=1)]
            if np.array_equal(better, policy):
                break
            policy = better
        return policy

    def best_value(self) -> float:
        """J of an optimal policy."""
        return self.value(self.best_policy())
