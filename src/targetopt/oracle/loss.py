"""Oracles made from losses: closed form, or any function through autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from targetopt.losses import Loss
from targetopt.types import BadAnswer, BadArgument, TargetPoint


class LossOracle:
    """An oracle from a `Loss`, or from any function ``z -> losses`` that autograd can follow.

    Args:
        loss: a `targetopt.losses` loss (values, gradients and curvature in closed form, L known), or
            a function of the targets that returns one loss per example, shape ``(n,)``.

    Example:
        >>> import torch, targetopt as to
        >>> z = torch.tensor([0.5, 2.0])
        >>> to.LossOracle(to.losses.Squared(torch.zeros(2))).query(z).gradients
        tensor([0.5000, 2.0000])
        >>> to.LossOracle(lambda z: z**4).query(z).gradients
        tensor([ 0.5000, 32.0000])
    """

    def __init__(self, loss: Loss | Callable[[Tensor], Tensor]) -> None:
        if not isinstance(loss, Loss) and not callable(loss):
            raise BadArgument(
                f"LossOracle: loss={loss!r} must be a targetopt loss or a function of the targets"
            )
        self.loss = loss

    def query(self, z: Tensor) -> TargetPoint:
        if isinstance(self.loss, Loss):
            return self._closed_form(self.loss, z)
        return self._autograd(self.loss, z)

    @staticmethod
    def _closed_form(loss: Loss, z: Tensor) -> TargetPoint:
        has_curvature = type(loss).curvature is not Loss.curvature
        return TargetPoint(
            targets=z,
            losses=loss.value(z),
            gradients=loss.gradient(z),
            curvature=(lambda: loss.curvature(z)) if has_curvature else None,
            value=loss.value,
            smoothness=loss.smoothness,
        )

    @staticmethod
    def _autograd(function: Callable[[Tensor], Tensor], z: Tensor) -> TargetPoint:
        with torch.enable_grad():
            leaf = z.detach().requires_grad_()
            losses = function(leaf)
            check_losses(losses, z)
            gradients = None
            if losses.requires_grad:
                (gradients,) = torch.autograd.grad(losses.sum(), leaf, allow_unused=True)
            if gradients is None:
                raise BadAnswer(
                    "the losses do not depend on the targets through autograd. Remove detach(), no_grad() "
                    "or .numpy() from the loss, or return gradients yourself with to.GradientOracle."
                )

        def value(other: Tensor) -> Tensor:
            with torch.no_grad():
                return function(other)

        return TargetPoint(targets=z, losses=losses.detach(), gradients=gradients, value=value)


def as_answer(name: str, answer: object, z: Tensor) -> Tensor:
    """A part of an answer from outside autograd, as a tensor of the targets' type and device."""
    try:
        return torch.as_tensor(answer, dtype=z.dtype, device=z.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadAnswer(
            f"{name} must be a tensor, an array or a list of numbers; got {type(answer).__name__} ({error})"
        ) from error


def check_losses(losses: object, z: Tensor) -> None:
    """One finite-or-not loss per example, as a tensor; anything else is refused."""
    n = z.shape[0]
    if not isinstance(losses, Tensor):
        raise BadAnswer(f"losses must be a tensor of shape ({n},); got {type(losses).__name__}")
    if losses.shape != (n,):
        hint = (
            " Did you forget reduction='none'?"
            if losses.ndim == 0
            else " Sum over the outputs of each example."
        )
        raise BadAnswer(
            f"losses(z) must return one loss per example, shape ({n},); got {tuple(losses.shape)}.{hint}"
        )
