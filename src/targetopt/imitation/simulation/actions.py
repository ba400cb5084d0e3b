"""What can be done in an environment, and what an expert may answer there: numbers in a box, or choices.

An answer becomes a row of numbers, the *label* of a state. It has one of two forms, which its width tells apart:

=============  ============================  ===============================================
               what the expert would do      the distribution it would draw from
=============  ============================  ===============================================
a box          k mean actions                k means, then k logarithms of deviations
choices        one whole number per choice   the logarithms of all probabilities
=============  ============================  ===============================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from targetopt.distributions import (
    Categorical,
    Distribution,
    Family,
    Gaussian,
    GaussianRows,
    MultiDiscrete,
)
from targetopt.imitation.policies.network import Array
from targetopt.types import BadAnswer, BadArgument

RAREST = 1e-12
"""The smallest probability that an answer is taken to mean."""


class ActionSpace(ABC):
    """The actions of an environment.

    Attributes:
        size: numbers in an action.
        shape: of one action, as the environment takes it.
        dtype: what the environment takes actions in.
        family: the distributions over its actions, with their spread among the parameters.
    """

    size: int
    shape: tuple[int, ...]
    dtype: Any
    family: Family
    noun: ClassVar[str]
    kind: ClassVar[str]

    @abstractmethod
    def taken(self, actions: Array) -> NDArray[Any]:
        """Rows of actions as the environment takes them."""

    @abstractmethod
    def checked(self, actions: Array, name: str) -> Array:
        """Rows of actions, brought into the set of actions or refused."""

    def label(self, answer: Any, count: int, name: str) -> Array:
        """An expert's answer as rows of labels; refused unless it is an action or a distribution for each state.

        Where the answer is a list with None for some states, or None for all, their rows are nan: see `answered`.
        """
        if answer is None:
            return np.full((count, self.size), np.nan)
        if isinstance(answer, list | tuple) and any(each is None for each in answer):
            return self._partly(list(answer), count, name)
        if isinstance(answer, Distribution):
            return self._odds(answer, count, name)
        rows: Array = np.array(answer, dtype=np.float64)
        if rows.shape == (count,) and self.size == 1 and self.shape == ():
            rows = rows[:, None]
        if rows.shape != (count, self.size):
            raise BadAnswer(
                f"expert(states) must give one {self.noun} per state, shape {(count, self.size)} for {name!r}; got "
                f"{rows.shape}. Was the expert made for another environment?"
            )
        if not np.isfinite(rows).all():
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            raise BadAnswer(
                f"expert(states) is not finite in {len(bad)} of {count} rows: {bad[:10].tolist()}"
            )
        return self.checked(rows, name)

    def _partly(self, answer: list[Any], count: int, name: str) -> Array:
        """Answers to some of the questions."""
        if len(answer) != count:
            raise BadAnswer(
                f"expert(states) must give one {self.noun} or None per state; got {len(answer)} for {count} states of "
                f"{name!r}"
            )
        known = [row for row, each in enumerate(answer) if each is not None]
        labels = np.full((count, self.size), np.nan)
        if known:
            given = np.array([answer[row] for row in known], dtype=np.float64)
            labels[known] = self.label(given, len(known), name)
        return labels

    def _odds(self, answer: Distribution, count: int, name: str) -> Array:
        try:
            rows = self.family.targets(answer)
        except AttributeError:
            rows = torch.empty(0, 0)
        if rows.shape != (count, self.family.size):
            raise BadAnswer(
                f"expert(states) gave {type(answer).__name__} of {len(answer)} rows; {name!r} needs the "
                f"{self.family.noun} for each of {count} states. Was the expert made for another environment?"
            )
        found: Array = rows.detach().cpu().double().numpy()
        return self._bounded(found)

    @abstractmethod
    def _bounded(self, odds: Array) -> Array:
        """The parameters of a distribution, finite; refused where they are not."""

    def tells_odds(self, labels: Array) -> bool:
        """Whether labels are distributions, not single actions."""
        return bool(labels.shape[1] == self.family.size)

    def distribution(self, labels: Array) -> Distribution:
        """The distributions that labels stand for."""
        return self.family.from_targets(torch.from_numpy(labels))

    @abstractmethod
    def acts(self, labels: Array) -> Array:
        """The action of a label: what it says, or the likeliest."""

    def draws(self, labels: Array, rng: np.random.Generator) -> Array:
        """Actions drawn from the distributions that labels stand for."""
        if not self.tells_odds(labels):
            raise BadArgument(
                "expert_noise='own' needs an expert that answers with distributions; this one says only what it would "
                "do. A NetworkExpert whose file keeps its deviation does so as expert.stochastic()."
            )
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        drawn: Array = self.distribution(labels).sample(generator).numpy().astype(np.float64)
        return drawn.reshape(len(labels), self.size)


class Box(ActionSpace):
    """One row of numbers between ``low`` and ``high``."""

    noun = "mean action"
    kind = "a box of numbers"

    def __init__(self, space: Any) -> None:
        self.size = int(space.shape[0])
        self.shape = space.shape
        self.dtype = space.dtype
        self.low: Array = space.low.astype(np.float64)
        self.high: Array = space.high.astype(np.float64)
        self.family: Gaussian = Gaussian(self.size)

    def taken(self, actions: Array) -> NDArray[Any]:
        return np.clip(actions, self.low, self.high).astype(self.dtype)

    def checked(self, actions: Array, name: str) -> Array:
        return np.clip(actions, self.low, self.high, out=actions)

    def _bounded(self, odds: Array) -> Array:
        mean, log_std = odds[:, : self.size], odds[:, self.size :]
        if not np.isfinite(odds).all():
            raise BadAnswer(
                "expert(states) gave Gaussians whose mean or deviation is not positive and finite; an expert without "
                "noise answers with its mean action alone"
            )
        return np.concatenate([np.clip(mean, self.low, self.high), log_std], axis=1)

    def acts(self, labels: Array) -> Array:
        return labels[:, : self.size]

    def distribution(self, labels: Array) -> GaussianRows:
        return self.family.from_targets(torch.from_numpy(labels))


class Choices(ActionSpace):
    """One choice or several, each of a finite set; rows count from 0, whatever the environment calls the first.

    Args:
        space: a ``Discrete`` or ``MultiDiscrete`` space of one axis.
    """

    noun = "choice"
    kind = "choices"

    def __init__(self, space: Any) -> None:
        several = hasattr(space, "nvec")
        counts = space.nvec.tolist() if several else [int(space.n)]
        self.size = len(counts)
        self.shape = space.shape
        self.dtype = space.dtype
        self.counts = np.array(counts)
        self.start = np.array(space.start).reshape(-1)
        self.family = MultiDiscrete(tuple(counts)) if several else Categorical(counts[0])

    def taken(self, actions: Array) -> NDArray[Any]:
        whole: NDArray[Any] = (actions + self.start).astype(self.dtype)
        return whole.reshape(len(actions), *self.shape)

    def checked(self, actions: Array, name: str) -> Array:
        outside = (actions < 0) | (actions >= self.counts) | (actions != np.floor(actions))
        if outside.any():
            row = int(np.flatnonzero(outside.any(axis=1))[0])
            raise BadAnswer(
                f"expert(states) gave {actions[row].tolist()} in row {row}, which is no choice of {name!r}: choices "
                f"are whole numbers from 0, and there are {self.counts.tolist()} of them. An expert that gives logits "
                "returns to.distributions.CategoricalRows(logits)."
            )
        return actions

    def _bounded(self, odds: Array) -> Array:
        if np.isnan(odds).any() or np.isposinf(odds).any():
            raise BadAnswer("expert(states) gave logits that are not numbers")
        return np.maximum(odds, np.log(RAREST))

    def acts(self, labels: Array) -> Array:
        if not self.tells_odds(labels):
            return labels
        mode: Array = self.distribution(labels).mode().numpy().astype(np.float64)
        return mode.reshape(len(labels), self.size)


def answered(labels: Array) -> NDArray[np.bool_]:
    """Which states the expert gave an answer for."""
    known: NDArray[np.bool_] = ~np.isnan(labels[:, 0])
    return known


def action_space(space: Any, spaces: Any, name: str) -> ActionSpace:
    """What is known of a Gymnasium space of actions, or why it cannot be used."""
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return Box(space)
    flat = isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1
    if flat or isinstance(space, spaces.Discrete):
        return Choices(space)
    raise BadArgument(
        f"env={name!r} has the action space {space}; policies here act in a 1-D Box, Discrete or 1-D MultiDiscrete. "
        "Flatten other actions with a gymnasium.ActionWrapper."
    )
