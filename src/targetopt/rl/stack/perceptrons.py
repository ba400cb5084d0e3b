"""Perceptrons of one shape, one behind another: their values and their derivatives by batched matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from targetopt.rl.networks import Actor, Critic

_BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward,
    "relu": lambda g, y: torch.ops.aten.threshold_backward(g, y, 0),
}
_FORWARD = {"tanh": torch.tanh, "relu": torch.relu}


TINY = 400
"""Multiplications of a matrix product below which torch's batched product goes a way of its own."""


def _singly(x: Tensor, weight: Tensor) -> bool:
    """Whether the products of a layer have other bits in a batch."""
    sizes = (x.shape[1], weight.shape[1], weight.shape[2])
    return min(sizes) == 1 or sizes[0] * sizes[1] * sizes[2] < TINY


class Perceptrons:
    """N actors or critics of one shape, with copies of their parameters stacked along a first axis.

    The forward is that of `Actor` or `Critic`, N at a time. The derivative is written out, with the matrix products
    that autograd takes for one network, so that every network gets the bits that it would get alone. This holds as far
    as a batched product has the bits of single ones. It does not for vectors (a layer with one output, a mini-batch of
    one row) and for tiny matrices, which torch multiplies in other ways; these are multiplied one after another.

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
        if _singly(x, weight):
            return torch.stack(
                [torch.addmm(b[0], r, w.t()) for b, r, w in zip(bias, x, weight, strict=True)]
            )
        return torch.baddbmm(bias, x, weight.transpose(1, 2))

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
            if _singly(x, weight):
                for own, rows, into in zip(g, x, out, strict=True):
                    torch.mm(own.t(), rows, out=into)
                if i:
                    products = [own.mm(w) for own, w in zip(g, weight, strict=True)]
                    g = self._backward(torch.stack(products), x)
            else:
                torch.bmm(g.transpose(1, 2), x, out=out)
                if i:
                    g = self._backward(torch.bmm(g, weight), x)

    def give_back(self, params: Sequence[Sequence[Tensor]]) -> None:
        """Put every network's parameters where its copy has come to."""
        for i, own in enumerate(params):
            for p, each in zip(own, self.stacked, strict=True):
                p.copy_(each[i])
