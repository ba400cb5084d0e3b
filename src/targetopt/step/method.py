"""What one step is made of, read from the optimiser and checked before anything is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from targetopt.inner import Inner
from targetopt.rules import Rule
from targetopt.schedules import Schedule, factor
from targetopt.types import BadArgument, as_number


@dataclass(frozen=True)
class Method:
    """What one step is made of: the rule, the inner solver, η = lr · decay and λ."""

    rule: Rule
    inner: Inner
    lr: float | None
    decay: float
    weight_decay: float

    @classmethod
    def of(
        cls, group: dict[str, Any], rule: Rule, inner: Inner, schedule: Schedule, step: int
    ) -> Method:
        """The parts of step number ``step``, checked: schedulers and users write to the parameter group."""
        lr, weight_decay = group["lr"], group["weight_decay"]
        check_lr(lr, zero_allowed=True, unbounded=rule.unbounded)
        check_weight_decay(weight_decay)
        if lr is None and "initial_lr" in group:  # torch's schedulers leave that behind
            raise BadArgument(
                "a torch scheduler cannot drive lr=None, which means 1/(2L) and is known only when the "
                "oracle has answered. Give lr=, or use schedule= (to.schedules, or any function of t)."
            )
        decay = factor(schedule, step)
        for device in {p.device.type for p in group["params"]}:
            if device == "meta":
                raise BadArgument(
                    "params are on the device 'meta', which hold no numbers. Give them some first, by "
                    "model.to_empty(device=...) and its initialisation, or by loading weights."
                )
            if torch.is_autocast_enabled(device):
                raise BadArgument(
                    f"SSO was called inside torch.autocast({device!r}), which would round the surrogate and "
                    "the inner solver too. Put it inside forward, around the model alone."
                )
        return cls(rule, inner, None if lr is None else float(lr), decay, float(weight_decay))

    @property
    def settings(self) -> str:
        """What all ranks must have alike, in words."""
        return (
            f"rule={type(self.rule).__name__}, inner={type(self.inner).__name__}, lr={self.lr!r}, schedule's factor "
            f"{self.decay!r}, weight_decay={self.weight_decay!r}"
        )

    @property
    def still(self) -> bool:
        """Whether a schedule or scheduler has brought η to nought, whatever lr=None stands for."""
        return (1.0 if self.lr is None else self.lr) * self.decay == 0.0


def check_lr(lr: Any, *, zero_allowed: bool, unbounded: bool) -> None:
    """η must be positive and finite; 0 and inf where they are allowed."""
    if lr is None:
        return
    value = as_number(lr)
    if unbounded and value == float("inf"):
        return
    if not (0.0 < value < float("inf") or (zero_allowed and value == 0.0)):
        raise BadArgument(
            f"lr={lr!r} must be positive and finite: it is η, the step in target space. Pass None for "
            "1/(2L)."
        )


def check_weight_decay(weight_decay: Any) -> None:
    """λ must be ≥ 0 and finite."""
    if not 0.0 <= as_number(weight_decay) < float("inf"):
        raise BadArgument(
            f"weight_decay={weight_decay!r} must be ≥ 0 and finite: it is λ. Pass 0 for none."
        )
