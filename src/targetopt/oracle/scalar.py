"""Oracles with one loss for all targets together: a compliance, a misfit, the cost of a plan."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from targetopt.oracle.loss import as_answer
from targetopt.types import BadAnswer, BadArgument, TargetPoint


class ScalarOracle:
    """An oracle whose loss is one number ℓ(z) of all targets, not a mean over examples.

    This is the oracle of simulators and solvers: the targets are a field or a plan as a whole, of any
    shape, and the solver says what it costs. In the convention of this package every row then has
    the loss ℓ(z), and the gradient of row i is n · ∂ℓ/∂z_i, so that the means over rows are ℓ and its
    gradient, whatever n is.

    Args:
        function: ``z -> (loss, gradient)``, a number and an array shaped like ``z``, computed outside
            autograd; with ``autograd=True`` ``z -> loss``, one number that autograd can follow.
        value: ``z -> loss`` if the loss alone is cheaper to have (for `LineSearch`).
        autograd: whether torch differentiates the function.

    Example:
        >>> import torch, targetopt as to
        >>> def solver(z):  # 0.5 · ‖z − 3‖², with its gradient
        ...     error = z.numpy() - 3.0
        ...     return 0.5 * (error**2).sum(), error
        >>> point = to.ScalarOracle(solver).query(torch.tensor([1.0, 5.0]))
        >>> float(point.loss), point.gradients  # the gradient of each row is n times ∂ℓ/∂z_i
        (4.0, tensor([-4.,  4.]))
        >>> square = to.ScalarOracle(lambda z: z.square().sum(), autograd=True)
        >>> square.query(torch.tensor([1.0, 5.0])).gradients
        tensor([ 4., 20.])
    """

    def __init__(
        self,
        function: Callable[[Tensor], object],
        *,
        value: Callable[[Tensor], object] | None = None,
        autograd: bool = False,
    ) -> None:
        for name, given in (("function", function), ("value", value)):
            if not callable(given) and not (given is None and name == "value"):
                raise BadArgument(f"ScalarOracle: {name}={given!r} must be callable")
        self.function = function
        self.value = value
        self.autograd = autograd

    def query(self, z: Tensor) -> TargetPoint:
        n = z.shape[0]
        loss, gradient = self._differentiated(z) if self.autograd else self._answered(z)
        value = self._value
        return TargetPoint(
            targets=z,
            losses=loss.expand(n),
            gradients=n * gradient,
            value=None if value is None else (lambda other: _number(value(other), other).expand(n)),
        )

    @property
    def _value(self) -> Callable[[Tensor], object] | None:
        if self.value is None and self.autograd:
            return torch.no_grad()(self.function)
        return self.value

    def _answered(self, z: Tensor) -> tuple[Tensor, Tensor]:
        answer = self.function(z)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise BadAnswer(
                "ScalarOracle: the function must return (loss, gradient), a number and an array shaped like "
                f"the targets; got {type(answer).__name__}. If torch is to differentiate it, pass autograd=True."
            )
        gradient = as_answer("ScalarOracle: the gradient", answer[1], z).detach()
        if gradient.shape != z.shape:
            raise BadAnswer(
                f"ScalarOracle: the gradient must be shaped like the targets, {tuple(z.shape)}; got "
                f"{tuple(gradient.shape)}"
            )
        return _number(answer[0], z), gradient

    def _differentiated(self, z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = z.detach().clone().requires_grad_()
            loss = self.function(leaf)
            gradient = None
            if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
                (gradient,) = torch.autograd.grad(loss.reshape(()), leaf, allow_unused=True)
        if gradient is None:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise BadAnswer(
                "ScalarOracle: with autograd=True the function must return one number that depends on the "
                f"targets through autograd; got {shape}. Remove detach(), no_grad() or .numpy() from it, sum "
                "over the targets, or return (loss, gradient) without autograd=True."
            )
        return _number(loss, z), gradient.detach()


def _number(answer: object, z: Tensor) -> Tensor:
    """One number as a 0-d tensor of the targets' type."""
    number = as_answer("ScalarOracle: the loss", answer, z).detach()
    if number.numel() != 1:
        raise BadAnswer(
            f"ScalarOracle: the loss must be one number for all targets; got shape {tuple(number.shape)}. For one "
            "loss per example use to.GradientOracle or to.LossOracle."
        )
    return number.reshape(())
