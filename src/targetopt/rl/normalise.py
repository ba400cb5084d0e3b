"""Running statistics: observations of unit scale for the networks, rewards of unit scale for the critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Moments:
    """Mean and variance of all rows seen so far, in one pass, whatever the pieces they come in.

    Args:
        size: numbers in a row.

    Example:
        >>> seen = Moments(1)
        >>> seen.update(np.array([[1.0], [2.0]]))
        >>> seen.update(np.array([[3.0]]))
        >>> seen.mean, seen.variance, seen.count
        (array([2.]), array([0.66666667]), 3)

    Reference: Chan, Golub, LeVeque, *Algorithms for computing the sample variance*, 1983 (merging two samples).
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean: Array = np.zeros(size)
        self._squares: Array = np.zeros(size)  # Σ (x − mean)²

    @property
    def variance(self) -> Array:
        """1 as long as nothing was seen."""
        return self._squares / self.count if self.count else np.ones_like(self._squares)

    def update(self, rows: Array) -> None:
        """Take in some rows, shape ``(n, size)``."""
        if not len(rows):
            return
        mean = rows.mean(axis=0)
        away = mean - self.mean
        count = self.count + len(rows)
        between = away**2 * (self.count * len(rows) / count)
        self._squares = self._squares + np.square(rows - mean).sum(axis=0) + between
        self.mean = self.mean + away * (len(rows) / count)
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.copy(), "squares": self._squares.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean, self._squares = np.array(state["mean"]), np.array(state["squares"])


class Normaliser:
    """x ↦ (x − mean)/std, clipped: what the networks see of an observation.

    The statistics stand still while a batch is gathered and learned from, so that the policy that acted is the policy
    whose update is computed; `learn` moves them between batches.

    Args:
        size: numbers in an observation.
        clip: no entry is larger than this afterwards.
        wanted: whether to do anything at all.

    Example:
        >>> scale = Normaliser(1)
        >>> scale.learn(np.array([[0.0], [4.0]]))
        >>> scale(np.array([[6.0]]))
        array([[2.]])
    """

    def __init__(self, size: int, clip: float = 10.0, *, wanted: bool = True) -> None:
        self.clip = clip
        self.wanted = wanted
        self.moments = Moments(size)
        self._settle()

    def _settle(self) -> None:
        self.mean = self.moments.mean
        self.scale = 1.0 / np.sqrt(self.moments.variance + 1e-8)

    def learn(self, rows: Array) -> None:
        """Take these observations into the statistics."""
        if self.wanted:
            self.moments.update(rows)
            self._settle()

    def __call__(self, rows: Array) -> Array:
        if not self.wanted:
            return rows
        return np.clip((rows - self.mean) * self.scale, -self.clip, self.clip)

    @staticmethod
    def beside(several: Sequence[Normaliser]) -> Callable[[Array], Array]:
        """What each does to its own rows, for arrays of shape ``(N, rows, size)``."""
        if not several[0].wanted:
            return lambda rows: rows
        mean = np.stack([each.mean for each in several])[:, None]
        scale, clip = np.stack([each.scale for each in several])[:, None], several[0].clip
        return lambda rows: np.clip((rows - mean) * scale, -clip, clip)

    def state_dict(self) -> dict[str, Any]:
        return self.moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self._settle()


class RewardScale:
    """r ↦ r / std of the discounted return, clipped: rewards that a critic can learn whatever their unit.

    The sum R_t = γ R_{t−1} + r_t of each copy begins anew with its episodes; the scale is the deviation of all R seen.
    The mean is not taken away, which would change what is optimal.

    Args:
        copies: of the environment.
        discount: γ.
        clip: no reward is larger than this afterwards.
        wanted: whether to do anything at all.

    Reference: Engstrom et al., *Implementation matters in deep policy gradients*, ICLR 2020, §3.
    """

    def __init__(
        self, copies: int, discount: float, clip: float = 10.0, *, wanted: bool = True
    ) -> None:
        self.discount, self.clip, self.wanted = discount, clip, wanted
        self.moments = Moments(1)
        self._sums: Array = np.zeros(copies)

    def __call__(self, rewards: Array, ended: NDArray[np.bool_]) -> Array:
        """Rewards of a batch, shape ``(steps, copies)``, after taking them into the statistics."""
        if not self.wanted:
            return rewards
        sums = np.empty_like(rewards)
        for t in range(len(rewards)):
            self._sums = self.discount * self._sums + rewards[t]
            sums[t] = self._sums
            self._sums = np.where(ended[t], 0.0, self._sums)
        self.moments.update(sums.reshape(-1, 1))
        scale = float(1.0 / np.sqrt(self.moments.variance[0] + 1e-8))
        return np.clip(rewards * scale, -self.clip, self.clip)

    def state_dict(self) -> dict[str, Any]:
        return {**self.moments.state_dict(), "sums": self._sums.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state)
        self._sums = np.array(state["sums"])
