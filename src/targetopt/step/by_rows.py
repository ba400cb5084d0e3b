"""A forward that can be evaluated on some of its rows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from targetopt.types import BadArgument


class ByRows:
    """``model(*inputs)`` as a forward that mini-batches inside the inner loop can be taken from.

    ``lambda: model(x)`` gives the targets of a whole batch and nothing else. This gives those of any of its rows as
    well: ``forward.rows(index)`` is a forward too. Each row of the targets must depend on the same row of the inputs
    alone, so that dropout and batch norm (in training mode) are refused where mini-batches are asked for.

    Args:
        model: a module, or a function of the inputs.
        inputs: tensors with one row per example.

    Example:
        >>> import torch, targetopt as to
        >>> forward = to.ByRows(torch.nn.Linear(3, 2), torch.zeros(5, 3))
        >>> forward().shape, forward.rows(torch.tensor([0, 4]))().shape
        (torch.Size([5, 2]), torch.Size([2, 2]))
    """

    def __init__(self, model: Callable[..., Tensor], *inputs: Tensor) -> None:
        if not callable(model):
            raise BadArgument(
                f"ByRows: model={type(model).__name__} must be a module, or a function of the inputs"
            )
        for place, each in enumerate(inputs):
            if not isinstance(each, Tensor) or each.ndim == 0:
                raise BadArgument(
                    f"ByRows: input {place} must be a tensor with one row per example; got "
                    f"{tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__}"
                )
        counts = {each.shape[0] for each in inputs}
        if len(counts) != 1:
            raise BadArgument(
                f"ByRows: all inputs must have the same number of rows, and there must be one; got {sorted(counts)}"
            )
        self.model, self.inputs = model, inputs

    def __call__(self) -> Tensor:
        return self.model(*self.inputs)

    def rows(self, index: Tensor) -> ByRows:
        """The forward of some rows."""
        return ByRows(self.model, *(each[index] for each in self.inputs))
