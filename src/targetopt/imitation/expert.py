"""Experts: functions from states to mean actions, in files of ours or from other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from targetopt.imitation.policies import weights
from targetopt.imitation.policies.network import Array, Network
from targetopt.types import BadArgument

SHIPPED = Path(__file__).parent / "experts"
"""Expert files of the package: ``<environment>-<family>.safetensors``."""

FAMILIES = ("sac", "ppo")
OUTPUTS = ("tanh", "clip")


class Expert(Protocol):
    """Says what it would do: called on every state that was visited, in batches.

    ``expert(states)`` gets an array ``(n, d)`` and returns the mean actions, ``(n, k)``. They are
    clipped to the action box, which is what the environment would do with them.
    """

    def __call__(self, states: Array, /) -> Array: ...


class NetworkExpert:
    """An expert whose mean is a network: what expert files hold.

    States are normalised to ``clip((s − mean)/std, ±observation_clip)`` if statistics are given,
    the network gives u, and the mean action is

    =========== ===================================================
    ``"tanh"``  low + (tanh(u) + 1)/2 · (high − low)   (SAC)
    ``"clip"``  clip(u, low, high)                     (PPO)
    =========== ===================================================

    Args:
        network: from (normalised) states to u.
        output: ``"tanh"`` or ``"clip"``.
        low: lower end of the action box.
        high: upper end of the action box.
        environment: name of the environment it was trained in.
        family: how it was trained, ``"sac"`` say.
        observation_mean: statistics of the observations, one number each; None for none.
        observation_std: their standard deviations.
        observation_clip: bound on normalised observations.
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
        low: ArrayLike,
        high: ArrayLike,
        environment: str = "",
        family: str = "",
        observation_mean: ArrayLike | None = None,
        observation_std: ArrayLike | None = None,
        observation_clip: float = np.inf,
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
        self.environment = environment
        self.family = family
        self.card = dict(card or {})

    def __call__(self, states: Array, /) -> Array:
        if states.shape[-1] != self.network.inputs:
            raise BadArgument(
                f"this expert of {self.environment or 'an unnamed environment'!r} takes {self.network.inputs} numbers "
                f"and gives {self.network.outputs}; it got states of {states.shape[-1]}. Was it made for another "
                "environment?"
            )
        if self.observation_mean is not None and self.observation_std is not None:
            states = (states - self.observation_mean) / self.observation_std
            np.clip(states, -self.observation_clip, self.observation_clip, out=states)
        u = self.network(states)
        if self.output == "tanh":
            return self.low + 0.5 * (np.tanh(u) + 1.0) * (self.high - self.low)
        return np.clip(u, self.low, self.high)

    def save(self, path: str | Path) -> Path:
        """Write it to a safetensors file (`load_expert` reads it)."""
        arrays = {**self.network.arrays(), "action.low": self.low, "action.high": self.high}
        if self.observation_mean is not None and self.observation_std is not None:
            arrays["observation.mean"] = self.observation_mean
            arrays["observation.std"] = self.observation_std
            arrays["observation.clip"] = np.array(self.observation_clip)
        header = {
            "kind": "expert",
            "environment": self.environment,
            "family": self.family,
            "activation": self.network.activation,
            "output": self.output,
            "card": self.card,
        }
        return weights.write(path, arrays, header)


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
