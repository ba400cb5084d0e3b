"""Gymnasium environments, opened and checked: what they show and what can be done in them, as rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from targetopt.imitation.needs import MissingPackage, package
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.actions import ActionSpace, action_space
from targetopt.imitation.simulation.observations import Observations
from targetopt.types import BadArgument, TargetoptError

Env = Any
"""A ``gymnasium.Env``."""

EnvLike = str | Env | Callable[[], Env]
"""What users pass: an id such as ``"Hopper-v5"``, an environment, or a function that makes one; vector environments,
too."""


OURS = {"Catch-v0": "targetopt.imitation.simulation.catch:Catch"}
"""Environments of this package, by the id that Gymnasium knows them by once it is imported here."""


class EnvironmentFailed(TargetoptError, RuntimeError):
    """The environment raised, or gave observations that cannot be used; the round is kept.

    Attributes:
        result: out of `train`, the run so far.
    """

    result: Any = None


class Environment:
    """An environment that can be made as often as copies are needed.

    Args:
        source: an id, an environment, or a function without arguments that makes one.

    Attributes:
        source: what it was opened with.
        name: the id, or the class's name.
        prototype: one instance of it.
        observations: how what it shows is laid out in rows.
        actions: what can be done in it.
        observation_size: numbers in a row of what it shows.
        action_size: numbers that an action has.
        action_shape: the shape of one action, as the environment takes it.
        low, high: the action box; infinite for choices.
        action_dtype: what the environment takes actions in.
        limit: steps after which its ``TimeLimit`` cuts an episode off; None without one.
        is_vector: whether it is a vector environment, which holds many copies.
    """

    def __init__(self, source: EnvLike) -> None:
        gymnasium = package("gymnasium", "Imitation learning")
        for name in OURS.keys() - gymnasium.registry.keys():
            gymnasium.register(name, OURS[name])
        self.source = source
        self._make, self.prototype = _opened(gymnasium, source)
        self._made = [] if self._make is None else [self.prototype]
        spec = self.prototype.spec
        self.name = str(spec.id) if spec is not None else type(self.prototype.unwrapped).__name__
        limits = [
            w for w in wrappers(self.prototype) if isinstance(w, gymnasium.wrappers.TimeLimit)
        ]
        self.is_vector = isinstance(self.prototype, gymnasium.vector.VectorEnv)
        declared = spec.max_episode_steps if self.is_vector and spec is not None else None
        self.limit: int | None = min((w._max_episode_steps for w in limits), default=declared)
        spaces, one = gymnasium.spaces, "single_" if self.is_vector else ""
        observations = getattr(self.prototype, f"{one}observation_space")
        self._read_actions(spaces, getattr(self.prototype, f"{one}action_space"))
        self.observations = Observations.of(observations, spaces, self.name)
        self.observation_size = self.observations.size

    def _read_actions(self, spaces: Any, actions: Any) -> None:
        """Set all that is known of actions, or refuse them."""
        self.actions: ActionSpace = action_space(actions, spaces, self.name)
        self.action_size = self.actions.size
        self.action_shape: tuple[int, ...] = self.actions.shape
        self.action_dtype = self.actions.dtype
        endless = np.full(self.action_size, np.inf)
        self.low: Array = getattr(self.actions, "low", -endless)
        self.high: Array = getattr(self.actions, "high", endless)

    def copies(self, count: int) -> list[Env]:
        """Environments to step; nobody else gets the same ones, unless there is one instance only."""
        if self._make is None:
            if count == 1:
                return [self.prototype]
            raise BadArgument(
                f"copies={count}: env={self.name!r} was passed as one instance, of which there are no copies. "
                "Pass copies=1, or a function that makes it: env=lambda: gymnasium.make(...)."
            )
        made = [self._make() for _ in range(count)]
        self._made += made
        return made

    def close(self) -> None:
        """Close what was made here; an instance that was passed in is its owner's to close."""
        for env in self._made:
            env.close()
        self._made = []

    @property
    def multiplies(self) -> bool:
        """Whether there can be more than one copy."""
        return self._make is not None

    def most_copies(self, wanted: int) -> int | None:
        """How many copies to make where up to ``wanted`` are of use; None where that is settled already."""
        return wanted if self.multiplies and not self.is_vector else None

    def clipped(self, actions: Array) -> Any:
        """Rows of actions as the environment takes them: clipped to the box, or choices in its own numbers."""
        return self.actions.taken(actions)


def wrappers(env: Env) -> list[Env]:
    """The wrappers around an environment, outermost first."""
    found = []
    while env is not env.unwrapped:
        found.append(env)
        env = env.env
    return found


def _opened(gymnasium: Any, source: EnvLike) -> tuple[Callable[[], Env] | None, Env]:
    make: Callable[[], Env] | None
    if isinstance(source, str):
        make = lambda: gymnasium.make(source)  # noqa: E731
    elif isinstance(source, gymnasium.Env | gymnasium.vector.VectorEnv):
        _check_resets(gymnasium, source)
        return None, source  # what was done to it since it was made is nobody's to repeat
    elif callable(source):
        make = source
    else:
        raise BadArgument(
            f"env={source!r} must be a Gymnasium id such as 'Hopper-v5', an environment, or a function "
            "that makes one"
        )
    try:
        made = make()
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingPackage(
            f"env={source!r} needs a simulator that is not installed ({error}): pip install 'targetopt[rl]'"
        ) from error
    except (gymnasium.error.Error, ImportError) as error:  # ImportError: of versions given up
        raise BadArgument(f"env={source!r} cannot be made: {error}") from error
    if not isinstance(made, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise BadArgument(
            f"env={source!r} must make a gymnasium.Env or a vector environment; it made {type(made).__name__}"
        )
    _check_resets(gymnasium, made)
    return make, made


def _check_resets(gymnasium: Any, made: Env) -> None:
    """Refuse vector environments that begin episodes by themselves: their seeds would be nobody's."""
    if not isinstance(made, gymnasium.vector.VectorEnv):
        return
    mode = made.metadata.get("autoreset_mode")
    if mode != gymnasium.vector.AutoresetMode.DISABLED:
        raise BadArgument(
            f"env= is a vector environment that begins new episodes by itself (autoreset_mode {mode}), with seeds that "
            "cannot be given or repeated. Make it with autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED, for "
            "instance by gymnasium.make_vec(id, num_envs=8, vectorization_mode='sync', vector_kwargs="
            "{'autoreset_mode': gymnasium.vector.AutoresetMode.DISABLED})."
        )
