"""A trained policy: what acts, with the scale of its observations, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from targetopt.distributions import Categorical, Family, Gaussian, MultiDiscrete
from targetopt.imitation.policies import weights
from targetopt.rl.networks import Actor, on_arrays
from targetopt.rl.normalise import Normaliser
from targetopt.types import BadArgument

Array = NDArray[np.float64]


class Policy:
    """Acts: the distribution's mode, or a sample of it, from an observation as the environment shows it.

    Args:
        actor: observations (scaled) ↦ targets of the family.
        family: what the targets mean.
        normaliser: how observations are scaled.
        low, high: the action box; infinite for choices.
        environment: the environment's name.

    Example:
        >>> from targetopt.distributions import Categorical
        >>> policy = Policy(Actor(4, Categorical(2), seed=0), Categorical(2), Normaliser(4))
        >>> policy.act(np.zeros((3, 4))).shape
        (3,)
    """

    def __init__(
        self,
        actor: nn.Module,
        family: Family,
        normaliser: Normaliser,
        *,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
        environment: str = "",
    ) -> None:
        self.actor, self.family, self.normaliser = actor, family, normaliser
        self.low, self.high = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
        self.environment = environment

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.actor.parameters())

    def targets(self, observations: ArrayLike) -> Array:
        """The family's targets of some observations, shape ``(n, family.size)``."""
        rows = np.asarray(observations, dtype=np.float64)
        return on_arrays(self.actor, self.dtype)(self.normaliser(rows))

    def act(
        self, observations: ArrayLike, generator: torch.Generator | None = None
    ) -> NDArray[Any]:
        """The likeliest actions, or with a generator sampled ones; in the box, one for each row."""
        policies = self.family.from_targets(torch.from_numpy(self.targets(observations)))
        actions = policies.mode() if generator is None else policies.sample(generator)
        if not actions.is_floating_point():
            return np.asarray(actions.numpy())
        return np.asarray(np.clip(actions.numpy(), self.low, self.high))

    def save(self, path: str | Path) -> Path:
        """Write weights, scales and box to a safetensors file, which `load` reads without running code."""
        if not isinstance(self.actor, Actor):
            raise BadArgument(
                f"policy.save: the actor is a {type(self.actor).__name__} of your own; save its state_dict, and the "
                "scale of observations with policy.normaliser.state_dict()"
            )
        arrays: dict[str, NDArray[Any]] = {
            f"actor.{name}": tensor.detach().numpy()
            for name, tensor in self.actor.state_dict().items()
        }
        moments = self.normaliser.moments.state_dict()
        arrays |= {"scale.mean": moments["mean"], "scale.squares": moments["squares"]}
        box = np.broadcast_to(self.low, self._box), np.broadcast_to(self.high, self._box)
        arrays |= {"action.low": box[0], "action.high": box[1]}
        header = {
            "kind": "rl policy",
            "environment": self.environment,
            "family": _written(self.family),
            "learner": {
                "widths": list(self.actor.network.widths),
                "activation": self.actor.network.activation,
                "dtype": str(self.dtype).removeprefix("torch."),
                "scaled": self.normaliser.wanted,
                "clip": self.normaliser.clip,
                "seen": moments["count"],
            },
        }
        return weights.write(path, arrays, header)

    @property
    def _box(self) -> tuple[int, ...]:
        return (self.family.actions,) if isinstance(self.family, Gaussian) else (1,)

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """The policy that ``policy.save(path)`` wrote, bit for bit."""
        arrays, header = weights.read(path, "rl policy")
        try:
            told = header["learner"]
            family, widths = _read(header["family"]), told["widths"]
            dtype = {"float32": torch.float32, "float64": torch.float64}[told["dtype"]]
            actor = Actor(
                widths[0],
                family,
                hidden=widths[1:-1],
                activation=told["activation"],
                dtype=dtype,
            )
            state = {
                name.removeprefix("actor."): torch.tensor(array)
                for name, array in arrays.items()
                if name.startswith("actor.")
            }
            actor.load_state_dict(state)
            scale = Normaliser(widths[0], float(told["clip"]), wanted=bool(told["scaled"]))
            scale.load_state_dict(
                {
                    "count": told["seen"],
                    "mean": arrays["scale.mean"],
                    "squares": arrays["scale.squares"],
                }
            )
            return cls(
                actor,
                family,
                scale,
                low=arrays["action.low"],
                high=arrays["action.high"],
                environment=header["environment"],
            )
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise BadArgument(f"{str(path)!r} is a damaged policy file: {error}") from error


def _written(family: Family) -> str:
    if isinstance(family, Gaussian):
        return f"gaussian {family.actions}"
    if isinstance(family, Categorical):
        return f"categorical {family.choices}"
    if isinstance(family, MultiDiscrete):
        return "multi-discrete " + " ".join(map(str, family.choices))
    raise BadArgument(f"policy.save: {family!r} cannot be written")


def _read(text: str) -> Family:
    name, *sizes = text.split()
    numbers = [int(size) for size in sizes]
    if name == "gaussian":
        return Gaussian(numbers[0])
    if name == "categorical":
        return Categorical(numbers[0])
    if name == "multi-discrete":
        return MultiDiscrete(tuple(numbers))
    raise ValueError(f"there is no family {text!r}")
