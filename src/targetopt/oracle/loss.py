"""Oracles made from losses: closed form, or any function through autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from targetopt.losses import Loss
from targetopt.surrogate import Quadratic, Surrogate
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

    @property
    def value(self) -> Callable[[Tensor], Tensor]:
        """Losses elsewhere: every loss can be evaluated at other targets."""
        return self.loss.value if isinstance(self.loss, Loss) else self._values

    @property
    def curvature(self) -> Callable[[Tensor], Tensor] | None:
        """∂²ℓ_i/∂z_i² as a function of the targets, for losses that have it in closed form."""
        known = isinstance(self.loss, Loss) and type(self.loss).curvature is not Loss.curvature
        return self.loss.curvature if known else None  # type: ignore[union-attr]

    @property
    def revealed(self) -> Loss | None:
        """The loss itself, where labels make it known everywhere (for `Proximal`)."""
        return self.loss if isinstance(self.loss, Loss) else None

    @property
    def majoriser(self) -> type[Surrogate] | None:
        """The kind of upper bound that answers hold (for `Majoriser`): quadratic, where L is known."""
        return None if self.smoothness is None else Quadratic

    @property
    def smoothness(self) -> float | None:
        """L, if the loss knows it."""
        return self.loss.smoothness if isinstance(self.loss, Loss) else None

    def query(self, z: Tensor) -> TargetPoint:
        if isinstance(self.loss, Loss):
            losses, gradients = self.loss.value(z.clone()), self.loss.gradient(z.clone())
        else:
            losses, gradients = self._autograd(self.loss, z)
        curvature, asked = self.curvature, z.clone()  # losses of the user's may work in place
        known = self.smoothness
        bound = None
        if known is not None:
            check_losses(losses, z)
            bound = Quadratic(asked, gradients, z.new_tensor(known), losses.to(z))
        return TargetPoint(
            targets=asked,
            losses=losses,
            gradients=gradients,
            curvature=None if curvature is None else (lambda: curvature(asked.clone())),
            value=self.value,
            smoothness=self.smoothness,
            revealed=self.revealed,
            majoriser=bound,
        )

    @torch.no_grad()
    def _values(self, z: Tensor) -> Tensor:
        values: Tensor = self.loss(z)  # type: ignore[operator]
        return values

    @staticmethod
    def _autograd(function: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = z.detach().clone().requires_grad_()
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
        return losses.detach(), gradients


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
            " Did you forget reduction='none'? If there is one loss for all targets together, wrap the function: "
            "to.ScalarOracle(function, autograd=True)."
            if losses.ndim == 0
            else " Sum over the outputs of each example."
        )
        raise BadAnswer(
            f"losses(z) must return one loss per example, shape ({n},); got {tuple(losses.shape)}.{hint}"
        )
