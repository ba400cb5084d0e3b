"""Experts: functions from states to mean actions, in files of ours or from other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike

from targetopt.distributions import CategoricalRows, GaussianRows
from targetopt.imitation.policies import weights
from targetopt.imitation.policies.network import Array, Network
from targetopt.types import BadArgument

SHIPPED = Path(__file__).parent / "experts"
"""Expert files of the package: ``<environment>-<family>.safetensors``."""

FAMILIES = ("sac", "ppo")
OUTPUTS = ("tanh", "clip", "logits")
SMALLEST_SLOPE = 1e-3
"""Of tanh, where it carries a deviation to actions: at the ends of the box it would be nothing at all."""


class Expert(Protocol):
    """Says what it would do: called on every state that was visited, in batches.

    ``expert(states)`` gets an array ``(n, d)`` (or what the environment shows, for pictures and dicts) and returns the
    mean actions, ``(n, k)``. They are clipped to the action box, which is what the environment would do with
    them. Where actions are choices it returns whole numbers from 0, ``(n,)`` or ``(n, j)``. It may also return a
    distribution for each state, such as `targetopt.distributions.CategoricalRows`, or a list with None for states that
    it has no answer for.
    """

    def __call__(self, states: Any, /) -> Any: ...


@dataclass(frozen=True)
class Noise:
    """log σ = clip(weight · h + bias, −20, 2) of the noise on u, h the network's last hidden layer.

    Without ``weight`` it is the same in every state.
    """

    weight: Array | None
    bias: Array

    LEAST: ClassVar[float] = -20.0
    LARGEST: ClassVar[float] = 2.0

    @classmethod
    def of(cls, log_std: ArrayLike | tuple[Array, Array], network: Network) -> Noise:
        """From what `NetworkExpert` takes, checked against the network's shape."""
        k = network.outputs
        if not isinstance(log_std, tuple):
            return cls(None, _row("log_std", log_std, k))
        weight, bias = (np.asarray(part, dtype=np.float64) for part in log_std)
        if weight.shape != (k, network.width) or bias.shape != (k,):
            raise BadArgument(
                f"NetworkExpert: log_std=(weight, bias) must have the shapes ({k}, {network.width}) and ({k},), a "
                f"layer on the last hidden one; got {weight.shape} and {bias.shape}"
            )
        return cls(weight, bias)

    @classmethod
    def stored(cls, arrays: Mapping[str, Array]) -> Array | tuple[Array, Array] | None:
        """What a file's arrays say of it, as `NetworkExpert` takes it."""
        if "log_std.bias" not in arrays:
            return None
        bias = arrays["log_std.bias"]
        return (arrays["log_std.weight"], bias) if "log_std.weight" in arrays else bias

    def arrays(self) -> dict[str, Array]:
        weight = {} if self.weight is None else {"log_std.weight": self.weight}
        return {**weight, "log_std.bias": self.bias}

    def __call__(self, features: Array) -> Array:
        slope = 0.0 if self.weight is None else features @ self.weight.T
        log_std = np.clip(slope + self.bias, self.LEAST, self.LARGEST)
        return np.array(np.broadcast_to(np.exp(log_std), (len(features), len(self.bias))))


class NetworkExpert:
    """An expert whose mean is a network: what expert files hold.

    States are normalised to ``clip((s − mean)/std, ±observation_clip)`` if statistics are given (pictures as rows of
    their bytes), the network gives u, and the mean action is

    ============ ===================================================
    ``"tanh"``   low + (tanh(u) + 1)/2 · (high − low)   (SAC)
    ``"clip"``   clip(u, low, high)                     (PPO)
    ``"logits"`` the likeliest choice, argmax u         (PPO where actions are choices)
    ============ ===================================================

    The noise that an expert with numbers as actions was trained with is u + σ·ξ before the squashing or clipping, ξ
    standard normal; ``deviation`` gives σ where the file holds it. Logits are the odds that it chose by.

    Args:
        network: from (normalised) states to u.
        output: ``"tanh"``, ``"clip"`` or ``"logits"``.
        low: lower end of the action box; choices have none.
        high: upper end of the action box.
        environment: name of the environment it was trained in.
        family: how it was trained, ``"sac"`` say.
        observation_mean: statistics of the observations, one number each; None for none.
        observation_std: their standard deviations.
        observation_clip: bound on normalised observations.
        log_std: log σ of the noise on u: one number an action; or a pair ``(weight, bias)`` of a layer on
            the network's last hidden layer, which makes it depend on the state; None where it is not known.
        card: what is known about it (algorithm, steps, seeds, returns): the model card.

    Example:
        >>> u = Network([np.array([[1.0]])], [np.array([0.0])])
        >>> expert = NetworkExpert(u, "clip", low=[-1.0], high=[1.0])
        >>> expert(np.array([[0.5], [7.0]]))
        array([[0.5],
               [1. ]])
    """

    def __init__(
        self,
        network: Network,
        output: str,
        *,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
        environment: str = "",
        family: str = "",
        observation_mean: ArrayLike | None = None,
        observation_std: ArrayLike | None = None,
        observation_clip: float = np.inf,
        log_std: ArrayLike | tuple[Array, Array] | None = None,
        card: dict[str, Any] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise BadArgument(f"output={output!r} must be one of {', '.join(map(repr, OUTPUTS))}")
        self.network = network
        self.output = output
        self.low = _row("low", low, network.outputs)
        self.high = _row("high", high, network.outputs)
        if not (self.low < self.high).all():
            raise BadArgument(f"low={low!r} must lie below high={high!r} in every action")
        if (observation_mean is None) != (observation_std is None):
            raise BadArgument("observation_mean= and observation_std= come together or not at all")
        self.observation_mean = self.observation_std = None
        if observation_mean is not None and observation_std is not None:
            self.observation_mean = _row("observation_mean", observation_mean, network.inputs)
            self.observation_std = _row("observation_std", observation_std, network.inputs)
            if not ((self.observation_std > 0) & np.isfinite(self.observation_std)).all():
                raise BadArgument(
                    f"observation_std={observation_std!r} must be positive and finite: states are divided by it"
                )
        self.observation_clip = float(observation_clip)
        self.noise: Noise | None = None if log_std is None else Noise.of(log_std, network)
        self.environment = environment
        self.family = family
        self.card = dict(card or {})

    def __call__(self, states: Array, /) -> Array:
        return self.squash(self.network(self._normalised(states)))

    def _normalised(self, states: Array) -> Array:
        states = states.reshape(len(states), -1) if states.ndim > 2 else states
        if states.shape[-1] != self.network.inputs:
            raise BadArgument(
                f"this expert of {self.environment or 'an unnamed environment'!r} takes {self.network.inputs} numbers "
                f"and gives {self.network.outputs}; it got states of {states.shape[-1]}. Was it made for another "
                "environment?"
            )
        if self.observation_mean is not None and self.observation_std is not None:
            states = (states - self.observation_mean) / self.observation_std
            np.clip(states, -self.observation_clip, self.observation_clip, out=states)
        return states

    def squash(self, u: Array) -> Array:
        """The action of the network's output u, with or without noise."""
        if self.output == "logits":
            likeliest: Array = np.argmax(u, axis=-1)[..., None].astype(np.float64)
            return likeliest
        if self.output == "tanh":
            return self.low + 0.5 * (np.tanh(u) + 1.0) * (self.high - self.low)
        return np.clip(u, self.low, self.high)

    def deviation(self, states: Array) -> Array:
        """σ of the noise on u at each state, shape ``(n, k)``; refused where the file does not hold it."""
        if self.noise is None:
            raise BadArgument(
                f"this expert of {self.environment or 'an unnamed environment'!r} keeps its mean action only: its file "
                "has no log_std. Give noise= yourself, or train one that keeps it (targetopt expert train)."
            )
        return self.noise(self.network.features(self._normalised(states)))

    def distribution(self, states: Array) -> GaussianRows | CategoricalRows:
        """N(a, σ_a²) at each state: mean and σ, carried through the squashing to first order; or its odds."""
        inside = self._normalised(states)
        u = self.network(inside)
        if self.output == "logits":
            return CategoricalRows(torch.from_numpy(u))
        slope = np.ones_like(u)
        if self.output == "tanh":
            slope = 0.5 * (self.high - self.low) / np.cosh(np.clip(u, -300.0, 300.0)) ** 2
        std = self.deviation(states) * np.maximum(slope, SMALLEST_SLOPE)
        return GaussianRows(torch.from_numpy(self.squash(u)), torch.from_numpy(np.log(std)))

    def stochastic(self) -> StochasticExpert:
        """This expert, answering with its distribution instead of its mean action.

        Losses then compare whole distributions, and ``Mixture(1.0, expert_noise="own")`` drives by its own noise.
        """
        self.distribution(np.zeros((1, self.network.inputs)))  # refused where it is not known
        return StochasticExpert(self)

    def save(self, path: str | Path) -> Path:
        """Write it to a safetensors file (`load_expert` reads it)."""
        arrays = {**self.network.arrays(), "action.low": self.low, "action.high": self.high}
        if self.observation_mean is not None and self.observation_std is not None:
            arrays["observation.mean"] = self.observation_mean
            arrays["observation.std"] = self.observation_std
            arrays["observation.clip"] = np.array(self.observation_clip)
        if self.noise is not None:
            arrays |= self.noise.arrays()
        header = {
            "kind": "expert",
            "environment": self.environment,
            "family": self.family,
            "activation": self.network.activation,
            "output": self.output,
            "card": self.card,
        }
        return weights.write(path, arrays, header)


@dataclass(frozen=True)
class StochasticExpert:
    """A `NetworkExpert` that answers with distributions over actions."""

    expert: NetworkExpert

    def __call__(self, states: Array, /) -> GaussianRows | CategoricalRows:
        return self.expert.distribution(states)


def load_expert(source: str | Path, family: str = "sac") -> NetworkExpert:
    """An expert of ours: by the environment's name (those the package ships), or from a file.

    Args:
        source: ``"Hopper-v5"``, or the path of a file that ``expert.save`` wrote.
        family: ``"sac"`` or ``"ppo"``, for a shipped one.
    """
    path = Path(source)
    if path.suffix != ".safetensors":
        path = SHIPPED / f"{source}-{family}.safetensors"
        if not path.is_file():
            shipped = sorted(file.stem for file in SHIPPED.glob("*.safetensors"))
            raise BadArgument(
                f"no expert for environment {str(source)!r} of family {family!r} comes with targetopt; "
                f"there are {', '.join(shipped) or 'none'}. Pass a function from states to mean actions, an "
                "expert file, or an SB3 model through from_stable_baselines3."
            )
    arrays, header = weights.read(path, "expert")
    try:
        return NetworkExpert(
            Network.from_arrays(arrays, header["activation"]),
            header["output"],
            low=arrays["action.low"],
            high=arrays["action.high"],
            environment=header["environment"],
            family=header["family"],
            observation_mean=arrays.get("observation.mean"),
            observation_std=arrays.get("observation.std"),
            observation_clip=float(arrays.get("observation.clip", np.inf)),
            log_std=Noise.stored(arrays),
            card=header["card"],
        )
    except KeyError as error:
        raise BadArgument(f"{str(path)!r} is a damaged expert file: no {error}") from error
    except (TypeError, ValueError) as error:
        raise BadArgument(f"{str(path)!r} is a damaged expert file: {error}") from error


def _row(name: str, value: ArrayLike, size: int) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in {(), (size,)} or np.isnan(array).any():
        raise BadArgument(
            f"NetworkExpert: {name} must be one number or {size} numbers; got shape {array.shape}"
        )
    return np.array(np.broadcast_to(array, (size,)))
