"""Perceptrons of one shape, one behind another: their values and their derivatives by batched matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from targetopt.rl.networks import Actor, Critic

_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": lambda g, y: torch.ops.aten.threshold_backward(g, y, 0),
}
_FORWARD = {"tanh": torch.tanh, "relu": torch.relu}


TRIES = 4
"""How many random layers are tried before a batched product is taken for single ones."""


class Alike(NamedTuple):
    """Which products of a layer have in a batch the bits of single ones, each in memory of its own."""

    values: bool
    by_weights: bool
    by_inputs: bool


@cache
def alike(
    count: int, rows: int, inputs: int, outputs: int, kind: torch.dtype, threads: int
) -> Alike:
    """What `Alike` says of ``count`` layers of these sizes, which is tried on random ones.

    torch multiplies batches of small or narrow matrices in other ways than single ones, and which sizes these are
    depends on the processor, on the number of threads, and on where in memory a matrix begins.
    """
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(TRIES):
        x, w, b, g = (
            torch.randn(count, *shape, generator=generator, dtype=kind)
            for shape in ((rows, inputs), (outputs, inputs), (1, outputs), (rows, outputs))
        )
        found.append(
            (
                torch.equal(torch.baddbmm(b, x, w.transpose(1, 2)), _values(b, x, w)),
                torch.equal(torch.bmm(g.transpose(1, 2), x), _by_weights(g, x)),
                torch.equal(torch.bmm(g, w), _by_inputs(g, w)),
            )
        )
    return Alike(*(all(each) for each in zip(*found, strict=True)))


def _values(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.stack(
        [
            torch.addmm(b[0].clone(), r.clone(), w.clone().t())
            for b, r, w in zip(bias, x, weight, strict=True)
        ]
    )


def _by_weights(g: Tensor, x: Tensor) -> Tensor:
    return torch.stack([own.clone().t().mm(r.clone()) for own, r in zip(g, x, strict=True)])


def _by_inputs(g: Tensor, weight: Tensor) -> Tensor:
    return torch.stack([own.clone().mm(w.clone()) for own, w in zip(g, weight, strict=True)])


class Perceptrons:
    """N actors or critics of one shape, with copies of their parameters stacked along a first axis.

    The forward is that of `Actor` or `Critic`, N at a time. The derivative is written out, with the matrix products
    that autograd takes for one network, so that every network gets the bits that it would get alone. Where a batched
    product has other bits than single ones (`alike`), layers are multiplied one after another.

    Args:
        modules: of one shape.
        params: which of their parameters are trained, one list a module, in one order.

    Attributes:
        stacked: a tensor for each of ``params``, the modules along its first axis.
        gradients: of the same shapes; `pull` writes them.

    Example:
        >>> nets = [Critic(3, hidden=(4,), seed=s) for s in range(2)]
        >>> x = torch.ones(2, 5, 3)
        >>> both = Perceptrons(nets, [list(net.parameters()) for net in nets])
        >>> torch.equal(both.forward(x)[5:], nets[1](x[1]).detach())
        True
    """

    def __init__(
        self, modules: Sequence[Actor] | Sequence[Critic], params: Sequence[Sequence[Tensor]]
    ) -> None:
        self.count = len(modules)
        self.stacked = [
            torch.stack([p.detach() for p in same]) for same in zip(*params, strict=True)
        ]
        self.gradients = [torch.zeros_like(each) for each in self.stacked]
        network, place = modules[0].network, {id(p): i for i, p in enumerate(params[0])}
        self._weights = [self.stacked[place[id(p)]] for p in network.weights]
        self._biases = [self.stacked[place[id(p)]].unsqueeze(1) for p in network.biases]
        self._weight_gradients = [self.gradients[place[id(p)]] for p in network.weights]
        self._bias_gradients = [self.gradients[place[id(p)]] for p in network.biases]
        log_std = modules[0].log_std
        own = None if log_std is None else place.get(id(log_std))
        self._log_std = None if own is None else self.stacked[own].unsqueeze(1)
        self._log_std_gradient = None if own is None else self.gradients[own]
        self._scalar = modules[0].scalar
        self._activate = _FORWARD[network.activation]
        self._backward = _BACKWARD[network.activation]
        self._layers: list[Tensor] = []
        # views of every network's gradients, for lengths
        self.flat = [[each[i].reshape(-1) for each in self.gradients] for i in range(self.count)]

    def forward(self, x: Tensor) -> Tensor:
        """Targets of all rows, network by network: shape ``(N·B, k)``, or ``(N·B,)`` of critics, for ``(N, B, d)``."""
        self._layers = [x]
        last = len(self._weights) - 1
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            x = self._product(bias, x, weight)
            if i < last:
                x = self._activate(x)
                self._layers.append(x)
        if self._scalar:
            return x.reshape(-1)
        if self._log_std is not None:
            x = torch.cat([x, self._log_std.expand_as(x)], dim=2)
        return x.reshape(-1, x.shape[2])

    def _product(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        if self._alike(x, weight).values:
            return torch.baddbmm(bias, x, weight.transpose(1, 2))
        return _values(bias, x, weight)

    def _alike(self, x: Tensor, weight: Tensor) -> Alike:
        sizes = (x.shape[1], weight.shape[2], weight.shape[1])
        return alike(self.count, *sizes, x.dtype, torch.get_num_threads())

    def pull(self, v: Tensor) -> None:
        """Jᵀv of every network at the last `forward`, into `gradients`; ``v`` is shaped as its targets."""
        layers = self._layers
        g = v.reshape(self.count, layers[0].shape[1], -1)
        if self._log_std is not None:
            outputs = g.shape[2] // 2
            torch.sum(g[:, :, outputs:], dim=1, out=self._log_std_gradient)
            g = g[:, :, :outputs]
        for i in range(len(self._weights) - 1, -1, -1):
            torch.sum(g, dim=1, out=self._bias_gradients[i])
            x, weight, out = layers[i], self._weights[i], self._weight_gradients[i]
            same = self._alike(x, weight)
            if same.by_weights:
                torch.bmm(g.transpose(1, 2), x, out=out)
            else:
                out.copy_(_by_weights(g, x))
            if i:
                products = torch.bmm(g, weight) if same.by_inputs else _by_inputs(g, weight)
                g = self._backward(products, x)

    def give_back(self, params: Sequence[Sequence[Tensor]]) -> None:
        """Put every network's parameters where its copy has come to."""
        for i, own in enumerate(params):
            for p, each in zip(own, self.stacked, strict=True):
                p.copy_(each[i])
