"""What every learner is: one network, made here or the user's own, that trains, acts and is saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from targetopt.imitation.policies.network import Array, Network
from targetopt.types import BadAnswer, BadArgument, positive_int

MADE_HERE = ("linear", "mlp")
"""Networks that this library makes; anything else is a module of the user's."""

OWN = "own"
"""What `Learner.mean` says of a network that is not one of `MADE_HERE`."""


class Learner(nn.Module):
    """A network from states to the targets z of the optimiser, one row each.

    ``learner(states)`` is what training differentiates. Acting and evaluation ask `numpy`, which
    computes the same function: with arrays alone for the networks made here, and by calling the
    module itself for every other one, a subclass with its own ``forward`` included.

    Args:
        observation_size: numbers in a state.
        outputs: numbers in a target.
        mean: ``"linear"``, ``"mlp"`` (hidden layers with relu between them), or a module of your own
            that takes states ``(n, observation_size)`` and gives ``(n, outputs)``.
        hidden: widths of the hidden layers of ``"mlp"``.
        seed: of the initial weights of a network made here (torch's own initialisation).
        dtype: of its weights: float32 for ``"mlp"`` and float64 for ``"linear"`` unless given.
        environment: the environment's name, kept in files.
    """

    def __init__(
        self,
        observation_size: int,
        outputs: int,
        *,
        mean: Literal["linear", "mlp"] | nn.Module = "mlp",
        hidden: Sequence[int] = (256, 256),
        seed: int = 0,
        dtype: torch.dtype | None = None,
        environment: str = "",
    ) -> None:
        super().__init__()
        self.observation_size = positive_int("observation_size", observation_size)
        self.outputs = positive_int("action_size", outputs)
        self.environment = environment
        self.provenance: dict[str, Any] = {}
        self.layers = nn.ModuleList()
        self.network: nn.Module | None = None
        if isinstance(mean, nn.Module):
            self._take(mean, dtype)
            return
        if mean not in MADE_HERE:
            raise BadArgument(
                f"mean={mean!r} must be one of {', '.join(map(repr, MADE_HERE))}, or a torch module from states to "
                "means"
            )
        self.mean: str = mean
        between = [positive_int("hidden", width) for width in hidden] if mean == "mlp" else []
        if dtype is None:
            dtype = torch.float32 if mean == "mlp" else torch.float64
        self.widths = [observation_size, *between, outputs]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers.extend(nn.Linear(a, b, dtype=dtype) for a, b in pairwise(self.widths))

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
            own: Tensor = self.network(states)
            return own
        h: Tensor = self.layers[0](states)
        for layer in self.layers[1:]:
            h = layer(torch.relu_(h))  # in place: a twentieth of a step's time
        return h

    def inputs(self, states: Array) -> Tensor:
        """States as the network takes them: its precision, its device."""
        first = next(self.parameters())
        return torch.from_numpy(states).to(dtype=first.dtype, device=first.device)

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
    def linear_layer(self) -> nn.Linear | None:
        """The one layer of a linear network made here; None for every other network."""
        layer = self.layers[0] if self.mean == "linear" and self.is_plain else None
        return layer if isinstance(layer, nn.Linear) else None

    def numpy(self) -> Callable[[Array], Array]:
        """The network as a function of arrays ``(n, d) -> (n, k)``.

        A network made here is copied as it is now. Any other is asked itself, in evaluation mode and
        without gradients, and so moves as its weights do.
        """
        return self.arrays_network() if self.is_plain else Asked(self)

    def arrays_network(self) -> Network:
        """The layers made here as they are now, in numpy."""
        if not self.is_plain:
            raise BadArgument(
                f"{type(self).__name__} is not made of this library's layers alone; use numpy(), which asks the "
                "module itself"
            )
        return Network.from_arrays(self._tensors(), "relu")

    @property
    def description(self) -> dict[str, Any]:
        """The network in words and numbers: what a file says of it beside its weights."""
        if self.is_plain:
            return {"mean": self.mean, "dtype": str(self.dtype), "widths": self.widths}
        made = self.network if self.network is not None else self
        return {
            "mean": OWN,
            "dtype": str(self.dtype),
            "widths": [self.observation_size, self.outputs],
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
