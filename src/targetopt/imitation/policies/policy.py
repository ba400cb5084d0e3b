"""Gaussian policies: a network gives the mean action, the standard deviation is fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.imitation.expert import Expert
from targetopt.imitation.policies import weights
from targetopt.imitation.policies.learner import OWN, Learner
from targetopt.imitation.policies.network import Array
from targetopt.imitation.simulation.environment import Environment
from targetopt.losses import GaussianKL
from targetopt.types import BadArgument

DTYPES = {"torch.float32": torch.float32, "torch.float64": torch.float64}
"""What the networks that are made here may consist of, by the name that files give it."""


class GaussianPolicy(Learner):
    """π(·|s) = N(μ_θ(s), diag(std²)): the mean is what training moves, and what acts.

    ``policy(states)`` is the raw mean μ_θ(s): the targets z of the optimiser. There is one mean for
    training, acting, evaluation, films and files; acting clips it (plus noise) to the action box and
    does nothing else to it. That holds for a subclass with its own ``forward`` as well.

    Args:
        observation_size: numbers in a state.
        action_size: numbers in an action.
        mean: ``"linear"``; ``"mlp"``: hidden layers with relu between them; or a torch module of your
            own from states ``(n, observation_size)`` to means ``(n, action_size)``.
        hidden: widths of the hidden layers of ``"mlp"``.
        std: standard deviation, one number or one per action; 1 is the paper's.
        low: lower end of the action box, a number or one per action.
        high: upper end of the action box.
        seed: of the initial weights (torch's own initialisation).
        dtype: of the weights: float32 for ``"mlp"`` and float64 for ``"linear"`` unless given.
        environment: the environment's name, kept in files.

    Example:
        >>> policy = GaussianPolicy(11, 3, low=-1.0, high=1.0, seed=0)
        >>> policy(torch.zeros(5, 11)).shape
        torch.Size([5, 3])
        >>> policy.act(np.zeros((5, 11))).shape  # numpy, clipped to the box
        (5, 3)
        >>> own = nn.Sequential(nn.LayerNorm(11), nn.Linear(11, 3))
        >>> GaussianPolicy(11, 3, mean=own, low=-1.0, high=1.0).act(np.ones((5, 11))).shape
        (5, 3)

    Reference: Lavington et al., *Target-based Surrogates for Stochastic Optimization*, ICML 2023, §5.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        mean: Literal["linear", "mlp"] | nn.Module = "mlp",
        hidden: Sequence[int] = (256, 256),
        std: ArrayLike = 1.0,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
    ) -> None:
        super().__init__(
            observation_size,
            action_size,
            mean=mean,
            hidden=hidden,
            seed=seed,
            dtype=dtype,
            environment=environment,
        )
        self.std = _per_action("std", std, action_size)
        if not (np.isfinite(self.std).all() and (self.std > 0).all()):
            raise BadArgument(f"std={std!r} must be positive and finite")
        self.low = _per_action("low", low, action_size)
        self.high = _per_action("high", high, action_size)
        if not (self.low < self.high).all():
            raise BadArgument(f"low={low!r} must lie below high={high!r} in every action")

    @property
    def action_size(self) -> int:
        return self.outputs

    def loss(self, labels: Array) -> GaussianKL:
        """KL of each state's policy from the expert's (same std): ½‖(μ − μ_e)/std‖²."""
        return GaussianKL(torch.from_numpy(labels), torch.from_numpy(self.std**2))

    def act(self, states: Array, rng: np.random.Generator | None = None) -> Array:
        """Actions in the box: the clipped mean, or with ``rng`` a clipped sample."""
        actions = self.numpy()(np.asarray(states, dtype=np.float64))
        if rng is not None:
            actions = actions + self.std * rng.standard_normal(actions.shape)
        return np.clip(actions, self.low, self.high)

    def save(self, path: str | Path) -> Path:
        """Write weights, std, box and provenance to a safetensors file (`load_policy` reads it).

        Of a network that was not made here the file holds the weights and a description; whoever loads
        it builds the module.
        """
        arrays: dict[str, NDArray[Any]] = self._tensors()
        arrays |= {"std": self.std, "action.low": self.low, "action.high": self.high}
        header = {
            "kind": "policy",
            "learner": self.description,
            "environment": self.environment,
            "provenance": self.provenance,
        }
        return weights.write(path, arrays, header)


def load_policy(path: str | Path, learner: nn.Module | None = None) -> GaussianPolicy:
    """The policy that ``policy.save(path)`` wrote, bit for bit.

    Args:
        path: the file.
        learner: the module that the weights belong to, built as it was built when the policy was
            trained. It is needed for networks of your own, because loading a file never runs code that
            the file names. A `GaussianPolicy` (a subclass of yours, say) is filled and returned.

    Example:
        >>> import tempfile
        >>> policy = GaussianPolicy(4, 2, mean="linear", seed=3)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     again = load_policy(policy.save(Path(directory) / "policy.safetensors"))
        >>> torch.equal(policy(torch.ones(1, 4).double()), again(torch.ones(1, 4).double()))
        True
    """
    arrays, header = weights.read(path, "policy")
    source = repr(str(path))
    try:
        box = {"std": arrays.pop("std")}
        box |= {"low": arrays.pop("action.low"), "high": arrays.pop("action.high")}
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        policy = rebuilt(header["learner"], tensors, box, learner, source)
        policy.environment = header["environment"]
        policy.provenance = header["provenance"]
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, BadArgument) and source in str(error):
            raise
        raise BadArgument(f"{source} is a damaged policy file: {error}") from error
    return policy


def rebuilt(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    box: Mapping[str, Any],
    learner: nn.Module | None,
    source: str,
) -> GaussianPolicy:
    """A policy from what a file says of it: its description, its weights, its std and action box."""
    widths = description["widths"]
    if learner is None and description["mean"] == OWN:
        raise BadArgument(
            f"{source} holds the weights of a network of your own, {description['class']}. Pass the module they belong "
            f"to, learner={description['class'].rpartition('.')[2]}(...). It was built as\n{description['modules']}"
        )
    if isinstance(learner, GaussianPolicy):
        policy = learner
        policy.std, policy.low, policy.high = (np.array(box[k]) for k in ("std", "low", "high"))
    elif learner is not None:
        policy = GaussianPolicy(widths[0], widths[-1], mean=learner, **box)
    else:
        dtype = DTYPES[description["dtype"]]
        needed = sum((before + 1) * after for before, after in pairwise(widths))
        # single arrays that are missing are named below; this is before memory is taken
        if needed > 10 * sum(tensor.numel() for tensor in tensors.values()):
            raise BadArgument(
                f"{source} is a damaged policy file: its weights are too few for layers of {widths}"
            )
        policy = GaussianPolicy(
            widths[0],
            widths[-1],
            mean=description["mean"],
            hidden=widths[1:-1],
            dtype=dtype,
            **box,
        )
    policy.fill(tensors, source)
    return policy


def actor(
    policy: GaussianPolicy | nn.Module | Expert, environment: Environment
) -> Callable[[Array], Array]:
    """What acts for ``policy``: its mean, a bare module's output, or the function that it is."""
    if not isinstance(policy, nn.Module):
        return policy
    if not isinstance(policy, GaussianPolicy):
        sizes = environment.observation_size, environment.action_size
        policy = GaussianPolicy(*sizes, mean=policy)
    return policy.numpy()


def _per_action(name: str, value: ArrayLike, size: int) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in {(), (size,)} or np.isnan(array).any():
        raise BadArgument(
            f"{name}={value!r} must be a number or one number for each of the {size} actions"
        )
    return np.array(np.broadcast_to(array, (size,)))
