"""What several policies make of what they see, at once: for simulators that are stepped side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from targetopt.imitation.policies.network import ACTIVATIONS
from targetopt.rl.networks import Actor, on_arrays
from targetopt.rl.normalise import Normaliser

Array = NDArray[np.float64]


def acting(
    actors: Sequence[nn.Module], normalisers: Sequence[Normaliser], dtype: torch.dtype
) -> Callable[[Array], Array]:
    """Raw observations of each policy's copies, shape ``(N, copies, d)``, ↦ their targets, ``(N, copies, k)``.

    Networks and scales are as they are now. Actors of our own and of one shape are evaluated at once, with the bits of
    each by itself.

    Args:
        actors: scaled observations ↦ targets.
        normalisers: one for each.
        dtype: of the networks.
    """
    first = actors[0]
    if (
        len(actors) == 1
        or type(first) is not Actor
        or any(type(each) is not Actor for each in actors)
    ):
        each = [on_arrays(actor, dtype) for actor in actors]
        pairs = list(zip(each, normalisers, strict=True))
        return lambda seen: np.stack(
            [on(scale(rows)) for (on, scale), rows in zip(pairs, seen, strict=True)]
        )
    ours: list[Actor] = [actor for actor in actors if isinstance(actor, Actor)]
    layers = [
        (
            np.stack([np.ascontiguousarray(w.detach().numpy().T) for w in weights]),
            np.stack([b.detach().numpy() for b in biases])[:, None],
        )
        for weights, biases in zip(
            zip(*(actor.network.weights for actor in ours), strict=True),
            zip(*(actor.network.biases for actor in ours), strict=True),
            strict=True,
        )
    ]
    activate = ACTIVATIONS[first.network.activation]
    spread = np.stack([actor.log_std.detach().numpy().astype(np.float64) for actor in ours])[
        :, None
    ]
    scaled = Normaliser.beside(normalisers)
    kind = layers[0][0].dtype

    def evaluated(seen: Array) -> Array:
        h = scaled(seen).astype(kind, copy=False)
        for i, (matrix, bias) in enumerate(layers):
            h = h @ matrix
            h += bias
            if i < len(layers) - 1:
                activate(h)
        z = h.astype(np.float64, copy=False)
        if not spread.size:
            return z
        return np.concatenate([z, np.broadcast_to(spread, (*z.shape[:2], spread.shape[2]))], axis=2)

    return evaluated
