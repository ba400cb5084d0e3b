"""The learner: a Gaussian policy whose mean is linear or a small network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from targetopt.losses import GaussianKL
from targetopt.problems.base import positive_int
from targetopt.problems.imitation import weights
from targetopt.problems.imitation.network import Array, Network
from targetopt.types import BadArgument

MEANS = ("linear", "mlp")


class GaussianPolicy(nn.Module):
    """π(·|s) = N(μ_θ(s), diag(std²)): the mean is what training moves, and what acts.

    ``policy(states)`` is the raw mean μ_θ(s): the targets z of the optimiser. There is one mean for
    training, acting and evaluation; acting clips it (plus noise) to the action box and does nothing
    else to it.

    Args:
        observation_size: numbers in a state.
        action_size: numbers in an action.
        mean: ``"linear"``, or ``"mlp"``: hidden layers with relu between them.
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

    Reference: Lavington et al., *Target-based Surrogates for Stochastic Optimization*, ICML 2023, §5.
    """

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        mean: Literal["linear", "mlp"] = "mlp",
        hidden: Sequence[int] = (256, 256),
        std: ArrayLike = 1.0,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
    ) -> None:
        super().__init__()
        if mean not in MEANS:
            raise BadArgument(f"mean={mean!r} must be one of {', '.join(map(repr, MEANS))}")
        positive_int("observation_size", observation_size)
        positive_int("action_size", action_size)
        self.mean = mean
        between = [positive_int("hidden", width) for width in hidden] if mean == "mlp" else []
        self.std = _per_action("std", std, action_size)
        if not (np.isfinite(self.std).all() and (self.std > 0).all()):
            raise BadArgument(f"std={std!r} must be positive and finite")
        self.low = _per_action("low", low, action_size)
        self.high = _per_action("high", high, action_size)
        if not (self.low < self.high).all():
            raise BadArgument(f"low={low!r} must lie below high={high!r} in every action")
        self.environment = environment
        self.provenance: dict[str, Any] = {}
        if dtype is None:
            dtype = torch.float32 if mean == "mlp" else torch.float64
        self.widths = [observation_size, *between, action_size]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.ModuleList(
                nn.Linear(a, b, dtype=dtype) for a, b in pairwise(self.widths)
            )

    @property
    def observation_size(self) -> int:
        return self.widths[0]

    @property
    def action_size(self) -> int:
        return self.widths[-1]

    @property
    def dtype(self) -> torch.dtype:
        dtype = self.layers[0].weight.dtype
        assert isinstance(dtype, torch.dtype)
        return dtype

    def forward(self, states: Tensor) -> Tensor:
        """μ_θ(s), one row per state."""
        h: Tensor = self.layers[0](states)
        for layer in self.layers[1:]:
            h = layer(torch.relu_(h))  # in place: a twentieth of a step's time
        return h

    def loss(self, labels: Array) -> GaussianKL:
        """KL of each state's policy from the expert's (same std): ½‖(μ − μ_e)/std‖²."""
        return GaussianKL(torch.from_numpy(labels), torch.from_numpy(self.std**2))

    def numpy(self) -> Network:
        """The mean as it is now, as a function of numpy arrays ``(n, d) -> (n, k)``."""
        parameters = {k: v.detach().cpu().numpy() for k, v in self.state_dict().items()}
        return Network.from_arrays(parameters, "relu")

    def act(self, states: Array, rng: np.random.Generator | None = None) -> Array:
        """Actions in the box: the clipped mean, or with ``rng`` a clipped sample."""
        actions = self.numpy()(np.asarray(states, dtype=np.float64))
        if rng is not None:
            actions = actions + self.std * rng.standard_normal(actions.shape)
        return np.clip(actions, self.low, self.high)

    def save(self, path: str | Path) -> Path:
        """Write weights, std, box and provenance to a safetensors file (`load_policy` reads it)."""
        arrays: dict[str, NDArray[Any]] = {
            name: value.detach().cpu().numpy() for name, value in self.state_dict().items()
        }
        arrays |= {"std": self.std, "action.low": self.low, "action.high": self.high}
        header = {
            "kind": "policy",
            "mean": self.mean,
            "environment": self.environment,
            "provenance": self.provenance,
        }
        return weights.write(path, arrays, header)


def load_policy(path: str | Path) -> GaussianPolicy:
    """The policy that ``policy.save(path)`` wrote, bit for bit.

    Example:
        >>> import tempfile
        >>> policy = GaussianPolicy(4, 2, mean="linear", seed=3)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     again = load_policy(policy.save(Path(directory) / "policy.safetensors"))
        >>> torch.equal(policy(torch.ones(1, 4).double()), again(torch.ones(1, 4).double()))
        True
    """
    arrays, header = weights.read(path, "policy")
    try:
        return _rebuilt(arrays, header)
    except (KeyError, RuntimeError) as error:
        raise BadArgument(f"{str(path)!r} is a damaged policy file: {error}") from error


def _rebuilt(arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> GaussianPolicy:
    network = Network.from_arrays(arrays, "relu")
    parameters = {name: torch.tensor(array) for name, array in network.arrays().items()}
    policy = GaussianPolicy(
        network.inputs,
        network.outputs,
        mean=header["mean"],
        hidden=[len(b) for name, b in parameters.items() if name.endswith("bias")][:-1],
        std=arrays["std"],
        low=arrays["action.low"],
        high=arrays["action.high"],
        dtype=parameters["layers.0.weight"].dtype,
        environment=header["environment"],
    )
    policy.load_state_dict(parameters)
    policy.provenance = header["provenance"]
    return policy


def _per_action(name: str, value: ArrayLike, size: int) -> Array:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in {(), (size,)} or np.isnan(array).any():
        raise BadArgument(
            f"{name}={value!r} must be a number or one number for each of the {size} actions"
        )
    return np.array(np.broadcast_to(array, (size,)))
