"""The user's forward, checked: what the model gives for a batch, as targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from targetopt.step.calls import found_from
from targetopt.types import HALF, BadArgument, BadForward, Forward


class Targets:
    """The user's forward, checked; with ``regularise_on``, its rows below the batch's.

    (The analysis surrogate q̃ takes its gradient on the batch and its regulariser on all data.)
    """

    def __init__(
        self, forward: Forward, params: Sequence[Tensor], regularise_on: Forward | None
    ) -> None:
        for name, function in (("forward", forward), ("regularise_on", regularise_on)):
            if not callable(function) and not (function is None and name == "regularise_on"):
                raise BadArgument(
                    f"{name}={type(function).__name__} must be a function without arguments, lambda: "
                    "model(x): SSO evaluates it again as the parameters move"
                )
        if not params:
            raise BadArgument("no parameter requires a gradient: there is nothing to train")
        self.forward = forward
        self.params = params
        self.regularise_on = regularise_on
        self.batch = 0
        self.computed_in: torch.dtype | None = None
        self._shards = _sharding_modules(forward, regularise_on, params)

    @property
    def passes(self) -> int:
        """Calls of the user's code (and backward passes through it) that one evaluation takes."""
        return 1 if self.regularise_on is None else 2

    def everything_of(self, z: Tensor) -> Tensor | None:
        """The targets of all data among the stacked ones, if there are any."""
        return None if self.regularise_on is None else z.detach()[self.batch :]

    def __call__(self) -> Tensor:
        raw = self.forward()
        for module in self._shards:
            module.reshard()
        z = self._usable(raw)
        self.batch, self.computed_in = z.shape[0], raw.dtype
        if self.regularise_on is None:
            return z
        everything = self._usable(self.regularise_on())
        if everything.shape[1:] != z.shape[1:] or everything.dtype != z.dtype:
            raise BadForward(
                f"regularise_on() must give targets like forward()'s, one row per example of all data; got "
                f"{everything.dtype} of shape {tuple(everything.shape)} against {z.dtype} of shape {tuple(z.shape)}"
            )
        return torch.cat([z, everything])

    def rows(self, index: Tensor) -> Tensor:
        """The targets of some rows of the batch, if the user's forward can be asked for them."""
        offered = getattr(self.forward, "rows", None)
        if offered is None or self.regularise_on is not None:
            raise BadForward(
                "mini-batches inside the inner loop (batch_size=) need a forward that can be evaluated on some of its "
                "rows. Pass to.ByRows(model, x) instead of lambda: model(x)"
                + ("." if offered is None else ", and leave regularise_on= out.")
            )
        return self._usable(offered(index)())

    def _usable(self, z: Tensor) -> Tensor:
        if not isinstance(z, Tensor):
            raise BadForward(
                f"forward() must return a tensor of targets; it returned {type(z).__name__}"
            )
        if not z.is_floating_point():
            raise BadForward(
                f"forward() must return floating-point targets; got {z.dtype}. Return the logits or "
                "means, not the predicted classes."
            )
        if z.layout is not torch.strided or z.is_nested:
            raise BadForward(
                f"forward() must return dense targets; got the layout {z.layout}. Return z.to_dense(), or for "
                "nested tensors torch.nested.to_padded_tensor(z, 0.0)."
            )
        if z.is_meta:
            raise BadForward(
                "forward() returned targets on the device 'meta', which hold no numbers. Build the model on a "
                "real device, or give it memory and weights: model.to_empty(device='cpu'), then load_state_dict."
            )
        if z.ndim == 0:
            raise BadForward(
                "forward() must return one row of targets per example; it returned a single number. "
                "Return the model's outputs: the loss belongs in the oracle."
            )
        if z.shape[0] == 0:
            raise BadForward("forward() returned no rows: the batch is empty")
        detached = z.grad_fn is None and not any(z is p for p in self.params)
        if detached and torch.is_grad_enabled():
            raise BadForward(
                "forward() returned targets that do not depend on the parameters through autograd. "
                "Remove detach(), no_grad() or .numpy() from it, and give SSO the parameters it uses."
            )
        # Half precision is for the model; differences of targets need more digits.
        if z.dtype in HALF:
            return z.float()
        # Targets that are a parameter, or a view of one, must not move with it.
        base = z if z._base is None else z._base
        return z.clone() if any(base is p for p in self.params) else z


def _sharding_modules(
    forward: Forward, regularise_on: Forward | None, params: Sequence[Tensor]
) -> list[Any]:
    """The modules of FSDP2 that a forward calls, if the parameters are sharded.

    They keep what they have put together until a backward comes. Inner solvers move the parameters without one
    (a refused trial), and the next forward would compute with the old values.
    """
    if not any(hasattr(p, "to_local") for p in params):
        return []
    held = [m for f in (forward, regularise_on) for m in found_from(f)[0]]
    found = {id(child): child for m in held for child in m.modules() if hasattr(child, "reshard")}
    if not found:
        raise BadForward(
            "the parameters are sharded (DTensor), and no module that fully_shard has prepared can be found from the "
            "forward. Let it name the model itself: lambda: model(x)."
        )
    return list(found.values())
