"""SVRG: SGD whose noise is cancelled with the gradients at a snapshot of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from targetopt.baselines.base import Closure, ClosureOptimizer, differentiate, squared_norm
from targetopt.step.journal import Journal
from targetopt.types import BadAnswer, BadArgument, Diverged, finite_rows


class SVRG(ClosureOptimizer):
    """Stochastic variance-reduced gradient.

        v = ∇f_B(θ) − ∇f_B(θ̃) + ∇f(θ̃),      θ ← θ − lr·(v + weight_decay·θ)

    θ̃ is the snapshot, f the mean loss over all data, f_B over the batch. v averages over the batches
    to ∇f(θ), and its variance vanishes as θ and θ̃ approach the optimum, so a constant step
    converges linearly on strongly convex problems. A snapshot is taken by :meth:`snapshot` or
    :meth:`snapshot_over`, usually every epoch or two.

    A step costs two gradients, a snapshot one pass over the data; both are counted. If the closure
    raises, or the loss or gradient is not finite, nothing has changed.

    Args:
        params: parameters, one group.
        lr: step size; theory asks for a fraction of 1/L_max (see ``baselines.batch_smoothness``).
        weight_decay: adds ½·weight_decay·‖θ‖² to the loss; its gradient needs no snapshot.

    Attributes:
        gradient_calls: gradients computed: 2 per step, 1 per :meth:`snapshot`, 1 per batch of
            :meth:`snapshot_over`.
        full_passes: snapshots taken.
        steps_since_snapshot: steps made with the present snapshot.

    Example:
        >>> x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
        >>> w = torch.zeros(1, requires_grad=True)
        >>> def losses(rows):
        ...     return 0.5 * (x[rows] @ w - y[rows]).square()
        >>> opt = SVRG([w], lr=0.2)
        >>> for epoch in range(30):
        ...     full_loss = opt.snapshot_over(losses, [[0], [1]])
        ...     for rows in ([0], [1]):
        ...         loss = opt.step(lambda: losses(rows).mean())
        >>> w, opt.full_passes, opt.gradient_calls  # 30 · (2 batches + 2 steps · 2)
        (tensor([1.8000], requires_grad=True), 30, 180)

    Reference:
        Johnson & Zhang, "Accelerating Stochastic Gradient Descent using Predictive Variance
        Reduction", NeurIPS 2013.
    """

    def __init__(self, params: ParamsT, lr: float, *, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @property
    def full_passes(self) -> int:
        return self._count("full_passes")

    @property
    def steps_since_snapshot(self) -> int:
        return self._count("steps_since_snapshot")

    def snapshot(self, closure: Closure) -> Tensor:
        """Take θ̃ = θ, with the full gradient from one closure.

        Args:
            closure: returns the mean loss over *all* the data; no ``backward()`` in it.

        Returns:
            That loss.
        """
        params = self._trained()
        journal = Journal()
        with journal, journal, journal, torch.no_grad():
            frozen = self._frozen(closure, params, journal)
            loss, gradient = self._loss_and_gradient(frozen.first, params)
            self._remember(journal, params, gradient, gradient_calls=1)
        return loss

    def snapshot_over(self, losses: Callable[[Any], Tensor], loader: Iterable[Any]) -> Tensor:
        """Take θ̃ = θ, with the full gradient summed over the batches of a loader.

        Args:
            losses: gives the losses of one batch, *one per example* (``reduction="none"``), so
                that batches of unequal size are weighted as they must be.
            loader: all the data once, e.g. a DataLoader without ``drop_last``.

        Returns:
            The mean loss over the loader.
        """
        params = self._trained()
        gradient = [torch.zeros_like(p) for p in params]
        batches = 0

        def whole_pass() -> Tensor:
            nonlocal batches
            total, examples = torch.zeros(()), 0
            for batch in loader:
                with torch.enable_grad():
                    found = losses(batch)
                    _check_losses(found, batches)
                    total = total.to(found) + found.detach().sum()
                    torch._foreach_add_(gradient, differentiate("SVRG", found.sum(), params))
                examples += found.shape[0]
                batches += 1
            if not batches:
                raise BadArgument(
                    "SVRG: the loader gave no batch. An iterator is spent after one pass: give a "
                    "DataLoader or a list."
                )
            torch._foreach_div_(gradient, examples)
            return total / examples

        journal = Journal()
        with journal, journal, journal, torch.no_grad():
            loss = self._frozen(whole_pass, params, journal).first()
            self._remember(journal, params, gradient, gradient_calls=batches)
        return loss

    def step(self, closure: Closure) -> Tensor:  # type: ignore[override]
        """One step on a batch: the closure's gradient at θ and, on the same batch, at θ̃.

        Args:
            closure: returns the mean loss of the batch; no ``backward()`` in it. Called twice.

        Returns:
            The batch's loss before the step, without the weight-decay term.
        """
        params = self._trained()
        if any("snapshot" not in self.state[p] for p in params):
            raise BadArgument(
                "SVRG: take a snapshot before the first step (and after unfreezing parameters): "
                "opt.snapshot(full_loss) or opt.snapshot_over(losses, loader)"
            )
        group = self.param_groups[0]
        journal = Journal(params)
        with journal, journal, journal, torch.no_grad():
            frozen = self._frozen(closure, params, journal)
            loss, gradient = self._loss_and_gradient(frozen.first, params)
            torch._foreach_copy_(params, [self.state[p]["snapshot"] for p in params])
            _, stale = self._loss_and_gradient(frozen, params)
            journal.put_parameters_back()
            direction = torch._foreach_sub(gradient, stale)
            torch._foreach_add_(direction, [self.state[p]["full_gradient"] for p in params])
            if group["weight_decay"]:
                torch._foreach_add_(direction, params, alpha=group["weight_decay"])
            journal.adopt(
                partial(torch._foreach_add_, params, direction, alpha=-float(group["lr"])),
                self._noted(gradient_calls=2, steps_since_snapshot=1),
            )
        return loss

    def _remember(
        self,
        journal: Journal,
        params: list[Tensor],
        gradient: Sequence[Tensor],
        gradient_calls: int,
    ) -> None:
        if not squared_norm(gradient) < float("inf"):
            raise Diverged("SVRG: the full gradient is not finite; the snapshot was not taken")
        taken = [
            partial(self.state[p].update, snapshot=p.detach().clone(), full_gradient=g.clone())
            for p, g in zip(params, gradient, strict=True)
        ]
        count = self._noted(
            {"steps_since_snapshot": 0}, gradient_calls=gradient_calls, full_passes=1
        )
        journal.adopt(*taken, count)


def _check_losses(found: Any, batch: int) -> None:
    if not isinstance(found, Tensor) or found.ndim != 1 or not found.shape[0]:
        got = tuple(found.shape) if isinstance(found, Tensor) else repr(found)
        raise BadAnswer(
            f"SVRG: losses(batch) must return one loss per example, shape (batch,); got {got} for "
            f"batch {batch}. Did you forget reduction='none'?"
        )
    if not finite_rows(found).all():
        bad = (~finite_rows(found)).nonzero()[:5, 0].tolist()
        raise Diverged(
            f"SVRG: the losses of rows {bad} of batch {batch} are not finite; the snapshot was "
            "not taken"
        )
