"""The seam between the oracle's answer and the surrogate: a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from targetopt.surrogate import Quadratic, Surrogate
from targetopt.types import MissingCapability, State, TargetPoint


class Proposal(NamedTuple):
    """A rule's answer: the surrogate, its new state, the η it used, and how it remembers.

    An η of 0 means that nothing is to move; the inner solver is then not called (`nowhere`).
    ``losses_summed`` is how many losses the surrogate adds up (1, but t for FTRL): the weight decay
    belongs to each of them.
    """

    surrogate: Surrogate
    state: State
    eta: float
    memory: str = ""
    losses_summed: float = 1.0

    @classmethod
    def nowhere(cls, point: TargetPoint, state: State) -> Proposal:
        """No step at all: q is infinite but at z_t."""
        z = point.targets
        return cls(Quadratic(z, point.gradients, z.new_tensor(torch.inf), point.loss), state, 0.0)


@dataclass(frozen=True)
class Rule(ABC):
    """A target-space rule: called once per outer step, right after the oracle answered.

    A rule is a pure function: it reads the `TargetPoint` and its own state (``{}`` before the first
    step) and returns a `Proposal` with the state to keep *if the step succeeds*. It never changes
    what it was given, which is what makes a step atomic. A new rule is one file with one subclass.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the oracle must offer beyond losses and gradients: ``"value"``, ``"curvature"``."""

    monotone: ClassVar[bool] = False
    """Whether the full-batch loss never increases for η ≤ 1/L (the surrogate is an upper bound)."""

    natural_lr: ClassVar[float | None] = None
    """What ``lr=None`` means; ``None`` stands for 1/(2L)."""

    @abstractmethod
    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        """The surrogate at this point for the step ``lr · decay`` (decay: the schedule's)."""

    def step_size(self, point: TargetPoint, lr: float | None, decay: float) -> float:
        """η_t = lr · decay, with ``lr=None`` resolved."""
        if lr is None:
            lr = self.natural_lr
        if lr is None:
            if point.smoothness is None:
                raise MissingCapability(
                    f"lr=None means 1/(2L), but the oracle does not say its smoothness L, which "
                    f"{type(self).__name__} needs. Pass lr= to SSO, or use rule=to.LineSearch()."
                )
            lr = 1.0 / (2.0 * point.smoothness)
        return lr * decay

    def check(self, point: TargetPoint) -> None:
        """Refuse, before any work, an oracle that lacks what this rule needs."""
        remedy = {
            "value": "pass value= (a function from targets to losses), or use GradientStep with lr=",
            "curvature": "pass curvature=, use a loss that has one, or use GradientStep or AdaGrad",
        }
        for need in sorted(self.needs):
            if getattr(point, need, None) is None:
                way_out = remedy.get(need, "let its TargetPoint have one, or use another rule")
                raise MissingCapability(
                    f"{type(self).__name__} needs the oracle's {need}. This oracle offers none. "
                    f"Either {way_out}."
                )
