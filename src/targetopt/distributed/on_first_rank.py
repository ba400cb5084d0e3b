"""An oracle that one rank asks for all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from targetopt.distributed.world import present
from targetopt.errors import BadArgument
from targetopt.types import MissingCapability, TargetPoint


class OnFirstRank:
    """An oracle that rank 0 asks for all ranks: where one process holds the simulator, the key or the ledger.

    The targets of all ranks come to rank 0 below each other, in the order of the ranks, in one question; each rank gets
    the losses and gradients of its rows. What the oracle offers beside them (``value``, ``curvature``) is asked for in
    the same way.

    Args:
        oracle: the oracle on rank 0; other ranks may give ``None``.

    Example:
        >>> import torch, targetopt as to
        >>> inside = to.LossOracle(to.losses.Squared(torch.zeros(2)))
        >>> to.distributed.OnFirstRank(inside).query(
        ...     torch.tensor([1.0, 2.0])
        ... ).gradients  # one process
        tensor([1., 2.])
    """

    def __init__(self, oracle: Any) -> None:
        self.oracle = oracle

    def query(self, z: Tensor) -> TargetPoint:
        world = present()
        if world.size == 1:
            answer: TargetPoint = self._own().query(z)
            return answer
        whole = world.joined(z)
        begin = world.before(z.shape[0])
        mine = slice(begin, begin + z.shape[0])
        point, offers = None, [0.0, 0.0, -1.0, 0.0, 0.0]
        if world.rank == 0:
            point = self._own().query(whole)
            offers = [
                float(point.value is not None),
                float(point.curvature is not None),
                -1.0 if point.smoothness is None else float(point.smoothness),
                float(point.losses is not None),
                float(point.data is not None or point.weights is not None),
            ]
        offered = world.first(torch.tensor(offers, dtype=torch.float64)).tolist()

        if offered[4]:
            raise MissingCapability(
                "OnFirstRank spreads losses and gradients over the ranks; this oracle's answer has data or weights of "
                "its rows. Let every rank ask an oracle of its own."
            )

        def spread(tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor:
            given = (
                torch.empty(shape, dtype=z.dtype) if tensor is None else tensor.detach().to(z.dtype)
            )
            return world.first(given)[mine].to(z.device)

        def value(other: Tensor) -> Tensor:
            elsewhere = world.joined(other)
            found = point.value(elsewhere) if point is not None and point.value else None
            return spread(found, (whole.shape[0],))

        def curvature() -> Tensor:
            found = point.curvature() if point is not None and point.curvature else None
            axes = world.first(torch.tensor([0 if found is None else found.ndim])).item()
            shape = whole.shape if axes == whole.ndim else (*whole.shape, whole.shape[1])
            return spread(found, tuple(shape))

        return TargetPoint(
            targets=z,
            losses=spread(None if point is None else point.losses, (whole.shape[0],))
            if offered[3]
            else None,
            gradients=spread(None if point is None else point.gradients, tuple(whole.shape)),
            value=value if offered[0] else None,
            curvature=curvature if offered[1] else None,
            smoothness=None if offered[2] < 0 else offered[2],
        )

    def _own(self) -> Any:
        if self.oracle is None:
            raise BadArgument("OnFirstRank: oracle=None on rank 0, which must have the oracle")
        return self.oracle
