"""AdaGrad-Norm: one adaptive step size for all parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from targetopt.baselines.base import CountingOptimizer, checked_number
from targetopt.step.journal import Journal
from targetopt.types import BadArgument


class AdaGradNorm(CountingOptimizer):
    """SGD with the step lr/b, b growing with the gradients seen.

        b² ← b² + ‖g‖²,      θ ← θ − (lr/b)·g,      g = ∇f_B(θ) + weight_decay·θ

    ‖g‖ runs over all parameters of all groups: there is one b (groups may have their own ``lr`` and
    ``weight_decay``). No constant of the problem is needed: b settles near the smoothness when lr
    is too large, and grows like √t under noise. While every gradient has been zero nothing moves.

    Args:
        params: parameters, or parameter groups.
        lr: η.
        initial: b₀ ≥ 0; a large one damps the first steps.
        weight_decay: adds ½·weight_decay·‖θ‖² to the loss.

    Attributes:
        gradient_calls: gradients used, one per step.
        accumulated: b², a 0-d tensor.

    Example:
        >>> w = torch.tensor([3.0, 4.0], requires_grad=True)
        >>> opt = AdaGradNorm([w], lr=1.0)
        >>> (0.5 * w.square().sum()).backward()  # g = (3, 4), b = 5
        >>> opt.step()
        >>> w
        tensor([2.4000, 3.2000], requires_grad=True)

    Reference:
        Ward, Wu & Bottou, "AdaGrad stepsizes: sharp convergence over nonconvex landscapes", JMLR
        2020.
    """

    def __init__(
        self, params: ParamsT, lr: float = 1.0, *, initial: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "initial": initial, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        initial = param_group.get("initial", self.defaults["initial"])
        if checked_number("AdaGradNorm", "initial", initial, least=0.0) != self.defaults["initial"]:
            raise BadArgument(
                f"AdaGradNorm: initial={initial!r} of one group differs from the others' "
                f"{self.defaults['initial']!r}: there is one b for all parameters"
            )
        super().add_param_group(param_group)

    @property
    def accumulated(self) -> Tensor:
        found: Tensor | None = self._memory.get("accumulated")
        if found is not None:
            return found
        first: Tensor = self.param_groups[0]["params"][0]
        # In half precision a long sum would stop growing.
        dtype = torch.promote_types(first.dtype, torch.float32)
        return torch.tensor(self.defaults["initial"] ** 2, dtype=dtype, device=first.device)

    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict(state_dict)
        # torch has cast b² to the parameter's dtype; take the saved digits.
        saved = state_dict["state"].get(0, {}).get("accumulated")
        if saved is not None:
            self._memory["accumulated"] = saved.to(self._memory["accumulated"].device)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Use the gradients in ``.grad``.

        Args:
            closure: optional, torch's: clears, computes and back-propagates the loss.

        Returns:
            The closure's loss, if there is one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        journal = Journal()
        with journal, journal, journal, torch.no_grad():
            self._use_gradients(journal)
        return loss

    def _use_gradients(self, journal: Journal) -> None:
        updates: list[tuple[float, list[Tensor], list[Tensor]]] = []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            gradient = [p.grad for p in params]
            if any(g.is_sparse for g in gradient):
                raise BadArgument(
                    "AdaGradNorm: gradients must be dense; build embeddings with sparse=False"
                )
            if group["weight_decay"] and params:
                gradient = list(torch._foreach_add(gradient, params, alpha=group["weight_decay"]))
            updates.append((group["lr"], params, gradient))
        everything = [g for _, _, gradient in updates for g in gradient]
        if not everything:
            return
        before = self.accumulated
        total = before + torch.nn.utils.get_total_norm(everything).to(before).square()
        scale = torch.where(total > 0, total.rsqrt(), 0.0)
        moves = [
            partial(torch._foreach_add_, params, torch._foreach_mul(gradient, scale * -lr))
            for lr, params, gradient in updates
            if params
        ]
        journal.adopt(*moves, self._noted({"accumulated": total}, gradient_calls=1))
