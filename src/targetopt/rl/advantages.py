"""Generalised advantage estimation: how much better an action was than what the critic expected."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from targetopt.types import BadArgument

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: Flags,
    ended: Flags,
    *,
    discount: float,
    trace: float,
) -> Array:
    """A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V(s'_t) − V(s_t), added up until the episode ends.

    Two kinds of ending are kept apart. An episode that *terminated* earns nothing any more: V(s'_t) counts as 0 there.
    One that was *cut off* would have gone on: V(s'_t), the value of the observation at which it was cut, stands for
    what it would have earned. In both cases nothing of the next episode enters the sum.

    Args:
        rewards: shape ``(steps, copies)``, and so are the others.
        values: V of the observation before each step.
        next_values: V of the observation after each step, before any reset.
        terminated: whether the episode terminated in this step.
        ended: whether it terminated or was cut off in this step.
        discount: γ in [0, 1].
        trace: λ in [0, 1]; 0 trusts the critic after one step, 1 adds up all rewards there are.

    Example:
        >>> one = np.ones((3, 1))
        >>> never = np.zeros((3, 1), dtype=bool)
        >>> advantages(one, 0 * one, 0 * one, never, never, discount=0.5, trace=1.0).ravel()
        array([1.75, 1.5 , 1.  ])

    Reference: Schulman et al., *High-dimensional continuous control using generalized advantage estimation*,
    ICLR 2016, eq. 16; Pardo et al., *Time limits in reinforcement learning*, ICML 2018, for the endings.
    """
    for name, value in (("discount", discount), ("trace", trace)):
        if not 0.0 <= value <= 1.0:
            raise BadArgument(f"{name}={value!r} must lie between 0 and 1")
    surprise = rewards + discount * np.where(terminated, 0.0, next_values) - values
    carried = np.where(ended, 0.0, discount * trace)
    found = np.empty_like(surprise)
    ahead = np.zeros(surprise.shape[1:])
    for t in range(len(surprise) - 1, -1, -1):
        ahead = surprise[t] + carried[t] * ahead
        found[t] = ahead
    return found
