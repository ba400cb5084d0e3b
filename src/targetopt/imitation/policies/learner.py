"""What every learner is: one network, made here or the user's own, that trains, acts and is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from targetopt.imitation.policies.convolutions import Convolutions
from targetopt.imitation.policies.network import Array, Network
from targetopt.imitation.simulation.observations import Observations
from targetopt.types import BadAnswer, BadArgument, positive_int

MADE_HERE = ("linear", "mlp", "cnn")
"""Networks that this library makes; anything else is a module of the user's."""

OWN = "own"
"""What `Learner.mean` says of a network that is not one of `MADE_HERE`."""


class Learner(nn.Module):
    """A network from states to the targets z of the optimiser, one row each.

    ``learner(states)`` is what training differentiates. Acting and evaluation ask `numpy`, which
    computes the same function: with arrays alone for the networks made here, and by calling the
    module itself for every other one, a subclass with its own ``forward`` included.

    Args:
        observation_size: numbers in a state, or the layout of states that are pictures or have parts.
        outputs: numbers in a target.
        mean: ``"linear"``, ``"mlp"`` (hidden layers with relu between them), ``"cnn"`` (`Convolutions`), or a
            module of your own that takes states, ``(n, observation_size)`` or in their own shape, and gives
            ``(n, outputs)``.
        hidden: widths of the hidden layers of ``"mlp"``.
        seed: of the initial weights of a network made here (torch's own initialisation).
        dtype: of its weights: float64 for ``"linear"``, else float32, unless given.
        environment: the environment's name, kept in files.
        shared: how many of the outputs are the same in every row: learned numbers beside the network, which gives the
            outputs before them.
    """

    def __init__(
        self,
        observation_size: int | Observations,
        outputs: int,
        *,
        mean: Literal["linear", "mlp", "cnn"] | nn.Module = "mlp",
        hidden: Sequence[int] = (256, 256),
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
        shared: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(observation_size, Observations):
            observation_size = Observations.rows(positive_int("observation_size", observation_size))
        self.layout = observation_size
        self.observation_size = self.layout.size
        self.outputs = positive_int("action_size", outputs)
        self.shared: nn.Parameter | None = None
        self.environment = environment
        self.provenance: dict[str, Any] = {}
        self.layers = nn.ModuleList()
        self.network: nn.Module | None = None
        if isinstance(mean, nn.Module):
            self._take(mean, dtype)
            self._share(shared)
            return
        if mean not in MADE_HERE:
            raise BadArgument(
                f"mean={mean!r} must be one of {', '.join(map(repr, MADE_HERE))}, or a torch module from states to "
                "means"
            )
        self.mean: str = mean
        between = [positive_int("hidden", width) for width in hidden] if mean == "mlp" else []
        if dtype is None:
            dtype = torch.float64 if mean == "linear" else torch.float32
        self.widths = [self.observation_size, *between, outputs - shared]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if mean == "cnn":
                self.network = Convolutions(self.layout, outputs - shared).to(dtype)
            else:
                self.layers.extend(nn.Linear(a, b, dtype=dtype) for a, b in pairwise(self.widths))
        self._share(shared)

    def _share(self, count: int) -> None:
        if count:
            like = next(self.parameters())
            self.shared = nn.Parameter(like.new_zeros(count))

    def _take(self, module: nn.Module, dtype: torch.dtype | None) -> None:
        """Make the user's module the network, if it can be trained."""
        if dtype is not None:
            raise BadArgument(
                f"dtype={dtype} is for a network that is made here; convert your own with module.to({dtype})"
            )
        kinds = {p.dtype for p in module.parameters()}
        if not kinds or not kinds <= {torch.float32, torch.float64} or len(kinds) > 1:
            raise BadArgument(
                f"the parameters of {type(module).__name__} must all be float32 or all be float64; they are "
                f"{', '.join(sorted(map(str, kinds))) or 'none at all'}"
            )
        if not any(p.requires_grad for p in module.parameters()):
            raise BadArgument(
                f"no parameter of {type(module).__name__} has requires_grad=True, so there is nothing to train. "
                "Call module.requires_grad_(True)."
            )
        self.mean, self.network = OWN, module
        self.widths = [self.observation_size, self.outputs]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def forward(self, states: Tensor) -> Tensor:
        """The targets, one row per state."""
        if self.network is not None:
            h: Tensor = self.network(states)
        else:
            h = self.layers[0](states)
            for layer in self.layers[1:]:
                h = layer(torch.relu_(h))  # in place: a twentieth of a step's time
        if self.shared is not None:
            h = torch.cat([h, self.shared.expand(len(h), -1)], dim=1)
        return h

    def inputs(self, states: NDArray[Any]) -> Any:
        """Rows of states as the network takes them: its precision, its device, and the observations' own shape.

        The networks of rows made here take rows; every other module takes what the environment shows.
        """
        first = next(self.parameters())
        rows = torch.from_numpy(states).to(dtype=first.dtype, device=first.device)
        return rows if self.network is None else self.layout.unrolled(rows)

    @property
    def is_plain(self) -> bool:
        """Whether the network is the layers made here and nothing else, so that arrays can compute it."""
        untouched = (
            type(self).forward is Learner.forward
            and type(self).__call__ is nn.Module.__call__
            and "forward" not in vars(self)
            and self.network is None
        )
        return untouched and all(map(_is_plain_layer, self.layers)) and not _hooked(self)

    @property
    def _is_convolutions(self) -> bool:
        """Whether the network is the convolutions made here and nothing else."""
        untouched = type(self).forward is Learner.forward and "forward" not in vars(self)
        return untouched and type(self.network) is Convolutions and self.mean == "cnn"

    @property
    def linear_layer(self) -> nn.Linear | None:
        """The one layer of a linear network made here; None for every other network."""
        plain = self.mean == "linear" and self.is_plain and self.shared is None
        layer = self.layers[0] if plain else None
        return layer if isinstance(layer, nn.Linear) else None

    def numpy(self) -> Callable[[Array], Array]:
        """The network as a function of arrays ``(n, d) -> (n, k)``.

        A network made here is copied as it is now. Any other is asked itself, in evaluation mode and
        without gradients, and so moves as its weights do.
        """
        return self._arrays() if self.is_plain else Asked(self)

    def arrays_network(self) -> Network:
        """The layers made here as they are now, in numpy."""
        if not self.is_plain:
            raise BadArgument(
                f"{type(self).__name__} is not made of this library's layers alone; use numpy(), which asks the "
                "module itself"
            )
        return Network.from_arrays(self._tensors(), "relu")

    def _arrays(self) -> Callable[[Array], Array]:
        """The layers and the shared numbers, in numpy."""
        network = self.arrays_network()
        if self.shared is None:
            return network
        shared = self.shared.detach().cpu().numpy().astype(np.float64)
        rows = lambda n: np.broadcast_to(shared, (n, len(shared)))  # noqa: E731
        return lambda states: np.concatenate([network(states), rows(len(states))], axis=1)

    @property
    def description(self) -> dict[str, Any]:
        """The network in words and numbers: what a file says of it beside its weights."""
        layout = {} if self.layout.is_flat else {"observations": self.layout.description}
        if self.is_plain or self._is_convolutions:
            return {"mean": self.mean, "dtype": str(self.dtype), "widths": self.widths, **layout}
        made = self.network if self.network is not None else self
        return {
            "mean": OWN,
            "dtype": str(self.dtype),
            "widths": [self.observation_size, self.outputs],
            **layout,
            "class": f"{type(made).__module__}.{type(made).__qualname__}",
            "modules": repr(made),
        }

    def _tensors(self) -> dict[str, NDArray[Any]]:
        """The state of the network by name, as arrays."""
        found = {}
        for name, value in self.state_dict().items():
            if not isinstance(value, Tensor):
                raise BadArgument(
                    f"the state {name!r} of {type(self).__name__} is a {type(value).__name__}; files hold tensors "
                    "only. Keep it in a buffer, or outside of get_extra_state()."
                )
            found[name] = value.detach().cpu().numpy()
        return found

    def fill(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Take the weights of a file; the names and shapes must be those of this network."""
        own = self.state_dict()
        differs = [f"it has no {name!r}" for name in own if name not in tensors]
        differs += [f"the network has no {name!r}" for name in tensors if name not in own]
        differs += [
            f"{name!r} is {tuple(tensors[name].shape)} there and {tuple(value.shape)} here"
            for name, value in own.items()
            if name in tensors and tensors[name].shape != value.shape
        ]
        if differs:
            more = f"; and {len(differs) - 5} more" if differs[5:] else ""
            raise BadArgument(
                f"{source} does not fit the network: {'; '.join(differs[:5])}{more}. Build learner= as it was built "
                "when this was saved; if the network is not one of your own, the file is damaged."
            )
        self.load_state_dict(dict(tensors))


class Asked:
    """A learner's own module as a function of arrays, in evaluation mode and without gradients."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @torch.no_grad()
    def __call__(self, states: Array) -> Array:
        learner = self.learner
        training = [module for module in learner.modules() if module.training]
        for module in training:
            module.training = False
        try:
            z = learner(learner.inputs(states))
        finally:
            for module in training:
                module.training = True
        expected = (len(states), learner.outputs)
        if not isinstance(z, Tensor) or tuple(z.shape) != expected:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise BadAnswer(
                f"learner= must give one row per state, shape {expected} for states {tuple(states.shape)}; "
                f"{type(learner.network or learner).__name__} gave {got}"
            )
        return np.array(z.cpu().numpy(), dtype=np.float64)


def _is_plain_layer(layer: nn.Module) -> bool:
    return type(layer) is nn.Linear and layer.bias is not None


def _hooked(module: nn.Module) -> bool:
    return any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
