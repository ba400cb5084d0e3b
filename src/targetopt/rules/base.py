"""The seam between the oracle's answer and the surrogate: a rule."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from targetopt.divergence import Divergence
from targetopt.surrogate import Quadratic, Surrogate
from targetopt.types import (
    BadArgument,
    MissingCapability,
    State,
    TargetPoint,
    check_entries,
)


class Proposal(NamedTuple):
    """A rule's answer: the surrogate, its new state, the η it used, and how it remembers.

    An η of 0 means that nothing is to move; the inner solver is then not called (`nowhere`).
    ``losses_summed`` is how many losses the surrogate adds up (1, but t for FTRL): the weight decay
    belongs to each of them. ``ratio`` is ρ, for rules that judge the last step. ``returned`` says that the
    surrogate is built at the last accepted point: the parameters go back there first (`Rule.returns`).
    ``measures`` are numbers for the report. ``provisional`` says that the rule wants to see where the inner solve has
    come to before the step is made (`Rule.reconsider`), at the price of one forward.
    """

    surrogate: Surrogate
    state: State
    eta: float
    memory: str = ""
    losses_summed: float = 1.0
    ratio: float = math.nan
    returned: bool = False
    measures: Mapping[str, float] = {}
    provisional: bool = False

    @classmethod
    def nowhere(cls, point: TargetPoint, state: State) -> Proposal:
        """No step at all: q is infinite but at z_t."""
        z = point.targets
        return cls(Quadratic(z, point.gradients, z.new_tensor(torch.inf), point.loss), state, 0.0)


class Reconsidered(NamedTuple):
    """What a rule thinks of the point that an inner solve has come to (`Rule.reconsider`).

    Attributes:
        proposal: as it was, with the state and the measures that the step is to leave behind; with ``again``, what is
            to be solved instead.
        again: whether to go back to θ_t and solve once more. A proposal with η = 0 then refuses the step: nothing
            moves, and its state is kept.
    """

    proposal: Proposal
    again: bool


@dataclass(frozen=True)
class Rule(ABC):
    """A target-space rule: called once per outer step, right after the oracle answered.

    A rule is a pure function: it reads the `TargetPoint` and its own state (``{}`` before the first
    step) and returns a `Proposal` with the state to keep *if the step succeeds*. It never changes
    what it was given, which is what makes a step atomic. A new rule is one file with one subclass.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the oracle must offer beyond gradients: ``"losses"``, ``"value"``, ``"curvature"``, ``"data"``, …."""

    monotone: ClassVar[bool] = False
    """Whether the full-batch loss never increases for η ≤ 1/L (the surrogate is an upper bound)."""

    natural_lr: ClassVar[float | None] = None
    """What ``lr=None`` means; ``None`` stands for 1/(2L)."""

    uniform: ClassVar[bool] = True
    """Whether the surrogate's metric is one number, which ``regularise_on=`` needs."""

    searches: ClassVar[bool] = False
    """Whether the rule looks for its η itself: an η at its limits then means something went wrong."""

    looks_back: ClassVar[bool] = False
    """Whether the rule judges its last step by this answer: a copy of the parameters at which that step
    began is kept, and ``point.earlier`` has the targets of this question's rows there, at the price of one
    forward. Only such a rule may refuse the point it was asked about and go back (``Proposal.returned``)."""

    everywhere: ClassVar[bool] = False
    """Whether the surrogate is of all data, whose targets ``regularise_on=`` gives (``point.everything``), and
    not of the batch alone."""

    unbounded: ClassVar[bool] = False
    """Whether ``lr=float("inf")`` means something: the surrogate then has no proximal term."""

    @property
    def weighted(self) -> bool:
        """Whether it knows what weights of the rows mean; answers that have some are refused otherwise."""
        return False

    @property
    def scaled(self) -> bool:
        """Whether it gives each row a step of its own, η·scales_i; questions with ``scales=`` are refused otherwise."""
        return False

    @abstractmethod
    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        """The surrogate at this point for the step ``lr · decay`` (decay: the schedule's)."""

    def reconsider(
        self, point: TargetPoint, proposal: Proposal, landed: Tensor, tries: int
    ) -> Reconsidered:
        """Keep what an inner solve has come to, have it solved again with another η, or refuse the step.

        It is called after the inner solve of every proposal that is ``provisional``; the oracle is not asked again. A
        rule must end this by itself, by counting ``tries``.

        Args:
            point: the oracle's answer.
            proposal: what was solved.
            landed: the targets at the new parameters.
            tries: solves of this step so far.
        """
        return Reconsidered(proposal, again=False)

    def resolved(self, lr: float | None, smoothness: float | None) -> float:
        """lr, with ``None`` resolved: the rule's natural step, else 1/(2L)."""
        if lr is None:
            lr = self.natural_lr
        if lr is not None:
            return lr
        self._check_smoothness(smoothness)
        return 1.0 / (2.0 * float(smoothness or math.nan))

    def measured_by(self, divergence: Divergence) -> Rule:
        """The rule where steps are measured by a problem's own divergence; the same rule if it measures none."""
        return self

    def step_size(self, point: TargetPoint, lr: float | None, decay: float) -> float:
        """η_t = lr · decay, with ``lr=None`` resolved; refused where ``1/η`` leaves the targets' type."""
        return self.representable(self.resolved(lr, point.smoothness) * decay, point)

    def representable(self, eta: float, point: TargetPoint) -> float:
        """``eta``, refused where the surrogate's metric 1/η is not a number of the targets' type."""
        limits = torch.finfo(point.targets.dtype)
        if not (eta > 0.0 and limits.tiny <= 1.0 / eta <= limits.max):
            raise BadArgument(
                f"{type(self).__name__}: the step η = {eta:g} cannot be used with {point.targets.dtype} targets, "
                f"whose surrogate has the metric 1/η: it must lie between {1 / limits.max:.1e} and "
                f"{1 / limits.tiny:.1e}. Change lr (or the schedule), scale the loss, or compute in float64."
            )
        return eta

    def check(self, source: object, lr: float | None, *, answered: bool = True) -> None:
        """Refuse an oracle, or an answer, that lacks what this rule needs.

        Args:
            source: the answer, or before it is asked for, the oracle.
            lr: the learning rate, ``None`` if the oracle's L must stand in for it.
            answered: whether it is the answer. An oracle may leave unsaid what it will offer.
        """
        remedy = {
            "losses": "let its TargetPoint have losses, or use a rule that needs gradients only, such as GradientStep, "
            "AdaGradNorm, AdaGrad or MirrorDescent, with lr=",
            "value": "pass value= (a function from targets to losses), or use GradientStep with lr=",
            "curvature": "pass curvature=, use a loss that has one, or use GradientStep or AdaGrad",
            "revealed": "use an oracle that knows the loss everywhere (to.LossOracle with labels), or "
            "use TrustRegion, which needs gradients only",
            "majoriser": "let its TargetPoint have majoriser= (a Surrogate that bounds the loss from above), or "
            "use TrustRegion, which needs gradients only",
        }
        unsaid = None if answered else NotImplemented
        for need in sorted(self.needs):
            if getattr(source, need, unsaid) is None:
                way_out = remedy.get(need, "let its TargetPoint have one, or use another rule")
                raise MissingCapability(
                    f"{type(self).__name__} needs the oracle's {need}. This oracle offers none. "
                    f"Either {way_out}."
                )
        if answered and getattr(source, "weights", None) is not None and not self.weighted:
            raise MissingCapability(
                f"{type(self).__name__} does not know weights of rows, and this answer has some. Use GradientStep or "
                "MirrorDescent(SquaredEuclidean()), or leave the weights out."
            )
        if answered and getattr(source, "scales", None) is not None:
            self.check_rows()
        if self._wants_smoothness(lr):
            self._check_smoothness(getattr(source, "smoothness", unsaid))

    def check_rows(self) -> None:
        """Refuse steps by rows (``scales=``) if this rule has one step for all."""
        if not self.scaled:
            raise MissingCapability(
                f"{type(self).__name__} has one step for all rows, and scales= wants one for each. Use GradientStep, "
                "MirrorDescent(SquaredEuclidean()) or to.rl.PolicyStep, or leave scales= out."
            )

    def check_targets(  # noqa: B027 (most have nothing to refuse)
        self, z: Tensor, index: Tensor | None, state: State
    ) -> None:
        """Refuse targets this rule cannot work on, before the oracle is asked about them."""

    def check_everything(  # noqa: B027 (for rules that are `everywhere`)
        self, z: Tensor, everything: Tensor | None, index: Tensor | None, state: State
    ) -> None:
        """Refuse, before the oracle is asked, all data's targets that this rule cannot work on."""

    def wants_everything(self, reveals: Collection[str], *, dear: bool) -> bool:
        """Whether ``regularise_on=`` is worth its passes over all data.

        Args:
            reveals: what the oracle's answers have besides gradients.
            dear: whether an answer costs more than passes through the model.
        """
        return self.everywhere

    def check_state(self, state: State) -> None:
        """Refuse a loaded state that this rule cannot have written."""
        check_entries(type(self).__name__, state)

    def explain(self, state: State) -> str:
        """Which rule this is, what its state says of the step, and why it is in use, in sentences."""
        return f"{type(self).__name__}, as given."

    def _wants_smoothness(self, lr: float | None) -> bool:
        return lr is None and self.natural_lr is None

    def _check_smoothness(self, smoothness: object) -> None:
        if smoothness is None:
            raise MissingCapability(
                f"lr=None means 1/(2L), but the loss or oracle does not say its smoothness L, which "
                f"{type(self).__name__} needs. Pass lr= to SSO, or use rule=to.LineSearch()."
            )
