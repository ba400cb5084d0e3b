"""Who acts while states are gathered: the expert, the learner, or a mixture of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from targetopt.imitation.expert import Expert
from targetopt.imitation.policies.base import Behaviour, Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.actions import answered
from targetopt.imitation.teacher import Teacher
from targetopt.types import BadArgument, positive_int


@dataclass(frozen=True)
class Geometric:
    """β_t = decay^(t−1) for rounds t = 1, 2, …: DAgger's schedule; the expert drives the first round.

    >>> [Geometric(0.5)(t) for t in (1, 2, 3)]
    [1.0, 0.5, 0.25]
    """

    decay: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise BadArgument(f"Geometric: decay={self.decay!r} must lie in [0, 1]")

    def __call__(self, t: int) -> float:
        return float(self.decay ** (t - 1))


@dataclass(frozen=True)
class First:
    """β_t = 1 for the first rounds, then 0: the expert shows how it is done, and from then on the learner drives.

    It is the schedule that Ross et al. found best, and the default of `train`.

    >>> [First(1)(t) for t in (1, 2, 3)]
    [1.0, 0.0, 0.0]
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        positive_int("First: rounds", self.rounds)

    def __call__(self, t: int) -> float:
        return float(t <= self.rounds)


@dataclass(frozen=True)
class Mixture:
    """At every step the expert acts with probability β_t, else the learner.

    ===================== ============================================== =============
    ``Mixture(1.0)``      the expert drives: behavioural cloning         ``"cloning"``
    ``Mixture(0.0)``      the learner drives: online imitation           ``"online"``
    ``Mixture(Geometric)``  from the one to the other: DAgger            ``"dagger"``
    ``Mixture(First)``    the expert drives the first round only         ``"handover"``
    ===================== ============================================== =============

    Args:
        beta: β, a number, or a function of the round t = 1, 2, … .
        learner_noise: standard deviation of the noise on the learner's mean; None means the
            policy's own std (the paper samples), 0 acts by the mean. ``"little"`` is 0.1 of half the action box (of
            the std where there is no box); of choices the likeliest is taken.
        expert_noise: the same for the expert; 0 by default. ``"own"`` draws from the distribution that the expert
            answers with.

    Example:
        >>> Mixture(Geometric(0.9)).share(1)
        1.0

    Reference: Ross, Gordon & Bagnell, *A Reduction of Imitation Learning and Structured Prediction to
    No-Regret Online Learning*, AISTATS 2011.
    """

    beta: float | Callable[[int], float] = 0.0
    learner_noise: float | Literal["little"] | None = None
    expert_noise: float | Literal["own"] = 0.0

    def __post_init__(self) -> None:
        if not callable(self.beta):
            _checked_share(self.beta, "beta")
        for name, word in (("learner_noise", "little"), ("expert_noise", "own")):
            value = getattr(self, name)
            if value == word:
                continue
            if value is not None and (isinstance(value, str) or not 0 <= value < np.inf):
                raise BadArgument(f"Mixture: {name}={value!r} must be at least 0 and finite")

    def share(self, t: int) -> float:
        """β_t: the probability that the expert acts in round t."""
        value = self.beta(t) if callable(self.beta) else self.beta
        return _checked_share(value, f"beta({t})")

    def noise_of(self, policy: Policy) -> Any:
        """The learner's noise as its policy takes it."""
        return policy.little_noise if self.learner_noise == "little" else self.learner_noise

    def at(self, t: int, policy: Policy, expert: Expert) -> Behaviour:
        """The behaviour of round t (from 1), with the learner as it is now."""
        beta = self.share(t)
        learner = policy.behaviour(self.noise_of(policy))
        if beta == 0.0:
            return learner
        teacher = self._teaching(expert)
        if beta == 1.0:
            return _handed_over(teacher, learner)

        def mixed(states: Array, rng: np.random.Generator) -> Array:
            expert_acts = rng.random(len(states)) < beta
            actions = learner(states, rng)
            if expert_acts.any():  # and it is asked about no other state
                driven = teacher(states[expert_acts], rng)
                known = answered(driven)
                actions[np.flatnonzero(expert_acts)[known]] = driven[known]
            return actions

        return mixed

    def _teaching(self, expert: Expert) -> Behaviour:
        """The expert at the wheel. A `Teacher` answers with labels, which its environment knows how to act on."""
        space = expert.environment.actions if isinstance(expert, Teacher) else None
        if self.expert_noise == "own":
            if space is None:
                raise BadArgument(
                    "expert_noise='own' needs an expert that is a to.imitation.Teacher"
                )
            return lambda states, rng: space.draws(expert(states), rng)
        if space is None:
            return noisy(expert, self.expert_noise)
        return noisy(lambda states: space.acts(expert(states)), self.expert_noise)


def _handed_over(teacher: Behaviour, learner: Behaviour) -> Behaviour:
    """The expert drives; where it gives no answer, the learner does."""

    def driving(states: Array, rng: np.random.Generator) -> Array:
        actions = teacher(states, rng)
        known = answered(actions)
        if not known.all():
            actions[~known] = learner(states[~known], rng)
        return actions

    return driving


def noisy(mean: Callable[[Array], Array], std: ArrayLike = 0.0) -> Behaviour:
    """The behaviour that acts by ``mean``, plus Gaussian noise of this standard deviation."""
    scale = np.asarray(std, dtype=np.float64)
    if not scale.any():
        return lambda states, rng: np.array(mean(states), dtype=np.float64)

    def behaviour(states: Array, rng: np.random.Generator) -> Array:
        actions = mean(states)
        return actions + scale * rng.standard_normal(np.shape(actions))

    return behaviour


def mixture(behaviour: str | Mixture) -> Mixture:
    """A mixture by its short name, or as it is."""
    if isinstance(behaviour, Mixture):
        return behaviour
    if behaviour not in BEHAVIOURS:
        raise BadArgument(
            f"behaviour={behaviour!r} must be one of {', '.join(map(repr, BEHAVIOURS))}, or a "
            "to.imitation.Mixture"
        )
    return BEHAVIOURS[behaviour]


def _checked_share(value: float, name: str) -> float:
    if isinstance(value, bool) or not 0 <= value <= 1:
        raise BadArgument(f"Mixture: {name}={value!r} must be a probability, between 0 and 1")
    return float(value)


BEHAVIOURS = {
    "online": Mixture(0.0),
    "cloning": Mixture(1.0),
    "dagger": Mixture(Geometric(0.5)),
    "handover": Mixture(First(1), learner_noise="little"),
}
