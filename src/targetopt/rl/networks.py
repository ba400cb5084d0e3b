"""The networks of actor and critic: perceptrons that torch trains and numpy evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from targetopt.distributions import Family, Gaussian
from targetopt.imitation.policies.network import ACTIVATIONS, Network
from targetopt.types import BadArgument

Array = NDArray[np.float64]
_TORCH = {"tanh": torch.tanh, "relu": torch.relu}


class Perceptron(nn.Module):
    """x ↦ W_L a(… a(W_1 x + b_1) …) + b_L, begun with orthogonal weights.

    Args:
        widths: of input, hidden layers and output.
        activation: ``"tanh"`` or ``"relu"``.
        gain: scale of the last layer's first weights; small for a policy, so that it begins nearly indifferent.
        seed: of the first weights.
        dtype: of the weights.

    Reference: Saxe et al., ICLR 2014 (orthogonal weights); Andrychowicz et al., *What matters for on-policy deep
    actor-critic methods?*, ICLR 2021, §3.2 (a small last layer).
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        activation: str = "tanh",
        gain: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise BadArgument(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
        self.widths, self.activation = tuple(widths), activation
        generator = torch.Generator().manual_seed(seed)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        pairs = list(pairwise(self.widths))
        for i, (before, after) in enumerate(pairs):
            scale = gain if i == len(pairs) - 1 else 2.0**0.5
            weight = nn.init.orthogonal_(
                torch.empty(after, before, dtype=torch.float64), gain=scale, generator=generator
            )
            self.weights.append(nn.Parameter(weight.to(dtype)))
            self.biases.append(nn.Parameter(torch.zeros(after, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        activate = _TORCH[self.activation]
        last = len(self.weights) - 1
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.addmm(bias, x, weight.t())
            if i < last:
                x = activate(x)
        return x

    def numpy(self) -> Callable[[Array], Array]:
        """The same function as it is now, on arrays: for simulators, which call it thousands of times."""
        weights = [w.detach().numpy() for w in self.weights]
        return Network(weights, [b.detach().numpy() for b in self.biases], self.activation)


class Actor(nn.Module):
    """Observations ↦ the targets of a family of policies, from a perceptron.

    A Gaussian has one deviation for all states, a parameter of its own; ``log_std`` is empty where there is none.

    Args:
        inputs: numbers in an observation.
        family: what the targets mean.
        hidden: widths of the hidden layers.
        activation: between them.
        std: first deviation of a Gaussian.
        seed: of the first weights.
        dtype: of the weights.

    Example:
        >>> from targetopt.distributions import Gaussian
        >>> Actor(4, Gaussian(2))(
        ...     torch.zeros(3, 4)
        ... ).shape  # two means, two logarithms of deviations
        torch.Size([3, 4])
    """

    scalar = False
    """Whether targets are one number a row, shape ``(n,)``."""

    def __init__(
        self,
        inputs: int,
        family: Family,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        std: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        spread = isinstance(family, Gaussian) and family.std is None
        outputs = family.size // 2 if spread else family.size
        self.network = Perceptron(
            (inputs, *hidden, outputs), activation=activation, gain=0.01, seed=seed, dtype=dtype
        )
        first = torch.full((outputs if spread else 0,), float(np.log(std)), dtype=dtype)
        self.log_std = nn.Parameter(first, requires_grad=spread)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.network(x)
        if not self.log_std.numel():
            return z
        return torch.cat([z, self.log_std.expand_as(z)], dim=1)

    def numpy(self) -> Callable[[Array], Array]:
        """The same function as it is now, on arrays."""
        network = self.network.numpy()
        if not self.log_std.numel():
            return network
        log_std = self.log_std.detach().numpy().astype(np.float64)
        return lambda x: np.concatenate(
            [network(x), np.broadcast_to(log_std, (len(x), len(log_std)))], axis=1
        )


class Critic(nn.Module):
    """Observations ↦ what the policy is expected to earn from there, shape ``(n,)``.

    Example:
        >>> Critic(4)(torch.zeros(3, 4)).shape
        torch.Size([3])
    """

    scalar = True
    log_std = None

    def __init__(
        self,
        inputs: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.network = Perceptron(
            (inputs, *hidden, 1), activation=activation, gain=1.0, seed=seed, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.network(x)
        return z.squeeze(1)

    def numpy(self) -> Callable[[Array], Array]:
        """The same function as it is now, on arrays."""
        network = self.network.numpy()
        return lambda x: network(x)[:, 0]


def on_arrays(module: nn.Module, dtype: torch.dtype) -> Callable[[Array], Array]:
    """A module as it is now, as a function of arrays: its own ``numpy()``, or torch's forward without gradients."""
    own = getattr(module, "numpy", None)
    if own is not None:
        return own()  # type: ignore[no-any-return]

    def evaluated(x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(module(torch.from_numpy(x).to(dtype)).double().numpy())

    return evaluated
