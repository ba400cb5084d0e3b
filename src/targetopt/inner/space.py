"""The parameters as a space of vectors: a vector is a list of tensors, one for each parameter.

Where a parameter is sharded over ranks (FSDP2), its part of a vector is what lies on this rank, and nothing is ever put
together: an inner product is taken part by part and added up over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import local, present, replicas
from targetopt.types import HALF, MissingCapability, total, wide

Tensors = Sequence[Tensor]

SMALL = 2**18
"""Numbers of a model up to which calling an operation takes longer than the operation itself."""


def dot(a: Tensors, b: Tensors) -> float:
    """Σ ⟨a_i, b_i⟩ over two lists of tensors that are whole on every rank, as a number."""
    return total([_product(x, y) for x, y in zip(a, b, strict=True)])


def _product(x: Tensor, y: Tensor) -> Tensor:
    return torch.dot(wide(x).reshape(-1), wide(y).reshape(-1))


class Space:
    """The space of some parameters.

    Args:
        params: the parameters, as autograd knows them.

    Attributes:
        parts: this rank's part of each, which solvers move in place; the parameter itself where it is whole.
        sharded: whether any of them is sharded over ranks.

    Example:
        >>> space = Space([torch.ones(2), torch.full((1,), 3.0)])
        >>> space.dot(space.parts, space.parts)
        11.0
    """

    def __init__(self, params: Tensors) -> None:
        self.params = list(params)
        self._replicas = [replicas(p) for p in self.params]
        self.sharded = any(copies is not None for copies in self._replicas)
        self.parts = [local(p) for p in self.params] if self.sharded else self.params

    def dot(self, a: Tensors, b: Tensors) -> float:
        """⟨a, b⟩, the same number on every rank."""
        if not self.sharded:
            return dot(a, b)
        whole, shared = 0.0, 0.0
        for x, y, copies in zip(a, b, self._replicas, strict=True):
            if copies is None:
                whole += float(_product(x, y))
            else:
                shared += float(_product(x, y)) / copies
        return whole + float(present().sums(torch.tensor(shared, dtype=torch.float64)))

    @cached_property
    def _gathers(self) -> bool:
        """Whether vectors can be one tensor: a small model, whole, of one type and on one device."""
        kinds = {(p.dtype, p.device) for p in self.params}
        alike = len(kinds) == 1 and not self.sharded and self.params[0].dtype not in HALF
        return alike and len(self.params) > 1 and sum(p.numel() for p in self.params) <= SMALL

    def gathered(self, vector: list[Tensor]) -> list[Tensor]:
        """A vector as a list of fewer tensors, of one if the model is small: fewer and longer operations.

        >>> space = Space([torch.ones(2), torch.zeros(1, 1)])
        >>> one = space.gathered(space.params)
        >>> one, space.spread(one)
        ([tensor([1., 1., 0.])], [tensor([1., 1.]), tensor([[0.]])])
        """
        return [torch.cat([x.reshape(-1) for x in vector])] if self._gathers else vector

    def spread(self, vector: list[Tensor]) -> list[Tensor]:
        """A gathered vector with one tensor for each parameter again; these share its memory."""
        if not self._gathers:
            return vector
        parts = vector[0].split([p.numel() for p in self.params])
        return [x.view(p.shape) for x, p in zip(parts, self.params, strict=True)]

    def pulled(self, z: Tensor, v: Tensor, *, keep_graph: bool) -> list[Tensor | None]:
        """Jᵀv by autograd, added up over the rows of all ranks: this rank's part of it.

        ``None`` for parameters on which no target of this rank depends, if nobody needs zeros there.
        """
        if self.sharded:
            return self._through_shards(z, v, keep_graph)
        found = self.own(z, v, keep_graph=keep_graph)
        if present().size == 1 or all(g is None for g in found):
            return found
        return list(present().added([wide(g) for g in self.filled(found)]))

    def own(self, z: Tensor, v: Tensor, *, keep_graph: bool) -> list[Tensor | None]:
        """Jᵀv of this rank's rows, by autograd, of parameters that are whole."""
        return list(
            torch.autograd.grad(
                z, self.params, grad_outputs=v, retain_graph=keep_graph, allow_unused=True
            )
        )

    def check_whole(self, solver: str) -> None:
        """Refuse shards for a solver that needs Jacobians, through which FSDP2 cannot be differentiated."""
        if self.sharded:
            raise MissingCapability(
                f"{solver} needs the Jacobian of the forward. With parameters that are sharded over ranks (FSDP2) "
                "torch gives gradients only. Use LBFGS, Armijo, GradientDescent or Torch, or train a model that is "
                "whole on every rank (DDP)."
            )

    def filled(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Zeros where there is nothing."""
        pairs = zip(found, self.parts, strict=True)
        return [torch.zeros_like(p) if g is None else g for g, p in pairs]

    def _through_shards(self, z: Tensor, v: Tensor, keep_graph: bool) -> list[Tensor | None]:
        """FSDP2 hands gradients out in ``.grad`` alone: the mean over the ranks, scattered to their shards."""
        world = present()
        kept = [p.grad for p in self.params]
        try:
            for p in self.params:
                p.grad = None
            torch.autograd.backward(z, v * world.size, retain_graph=keep_graph)
            found = [None if p.grad is None else local(p.grad) for p in self.params]
        finally:
            for p, gradient in zip(self.params, kept, strict=True):
                p.grad = gradient
        if all(g is None for g in found):
            return found
        whole = [i for i, copies in enumerate(self._replicas) if copies is None]
        filled = self.filled(found)
        for i, g in zip(whole, world.added([filled[i] / world.size for i in whole]), strict=True):
            filled[i] = g
        return list(filled)

    def like_parameters(self, vector: Tensors) -> list[Tensor]:
        """A vector as tensors that may stand in the parameters' ``.grad``."""
        if not self.sharded:
            return list(vector)
        from torch.distributed.tensor import DTensor

        params: list[Any] = self.params
        return [
            part
            if copies is None
            else DTensor.from_local(
                part,
                p.device_mesh,
                p.placements,
                run_check=False,
                shape=p.shape,
                stride=p.stride(),
            )
            for part, p, copies in zip(vector, params, self._replicas, strict=True)
        ]
