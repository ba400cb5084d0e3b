"""Oracles that are black boxes: simulators, experts, services."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from targetopt.oracle.loss import as_answer
from targetopt.types import BadAnswer, BadArgument, TargetPoint


class GradientOracle:
    """An oracle from code outside autograd that returns losses and gradients itself.

    Args:
        function: ``z -> (losses, gradients)``: shape ``(n,)`` and shaped like ``z``; tensors or
            numpy arrays.
        value: ``z -> losses`` if a loss can be had without its gradient (for `LineSearch`).
        curvature: ``z -> ∂²ℓ_i/∂z_i²`` (for `Newton`).
        smoothness: L, if known (for ``lr=None``).

    Example:
        >>> import torch, targetopt as to
        >>> def simulator(z):
        ...     error = z.numpy() - 3.0
        ...     return 0.5 * error**2, error
        >>> to.GradientOracle(simulator).query(torch.tensor([1.0, 5.0])).gradients
        tensor([-2.,  2.])
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[object, object]],
        *,
        value: Callable[[Tensor], Tensor] | None = None,
        curvature: Callable[[Tensor], Tensor] | None = None,
        smoothness: float | None = None,
    ) -> None:
        if not callable(function):
            raise BadArgument(f"GradientOracle: function={function!r} must be callable")
        if smoothness is not None and not 0 < smoothness < float("inf"):
            raise BadArgument(
                f"GradientOracle: smoothness={smoothness!r} must be positive and finite"
            )
        self.function = function
        self.value = value
        self.curvature = curvature
        self.smoothness = smoothness

    def query(self, z: Tensor) -> TargetPoint:
        answers: list[object] = []
        try:
            # one call into C: an interrupt finds either no answer yet, or the answer in the list
            answers.extend(map(self.function, (z.clone(),)))
            return self._point(z, answers[0])
        except BaseException as error:
            if answers and not isinstance(error, Exception):  # interrupted with the answer in hand
                error.answer = self._point(z, answers[0])  # type: ignore[attr-defined]
            raise

    def _point(self, z: Tensor, answer: object) -> TargetPoint:
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(
                f"GradientOracle: the function must return (losses, gradients); got {type(answer).__name__}"
            )
        losses, gradients = (
            as_answer(f"GradientOracle: {name}", part, z).detach().clone()
            for name, part in zip(("losses", "gradients"), answer, strict=True)
        )
        curvature = self.curvature
        asked = z.clone()  # whatever the function does to the one it is given
        return TargetPoint(
            targets=asked,
            losses=losses,
            gradients=gradients,
            curvature=None
            if curvature is None
            else (lambda: as_answer("GradientOracle: curvature", curvature(asked.clone()), z)),
            value=self.value,
            smoothness=self.smoothness,
        )
