"""The rule that fits what the oracle reveals, found from its first answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from targetopt.rules.adagrad_norm import AdaGradNorm
from targetopt.rules.base import Proposal, Reconsidered, Rule
from targetopt.rules.bought import Bought
from targetopt.rules.gradient_step import GradientStep
from targetopt.rules.proximal import Proximal
from targetopt.rules.secant import Secant
from targetopt.rules.tables import check_coverage
from targetopt.rules.trust_region import TrustRegion
from targetopt.types import BadArgument, MissingCapability, State, TargetPoint, check_entries


class Choice(NamedTuple):
    """A rule for oracles of one kind: taken when the answer has all that the rule needs.

    Attributes:
        name: what the saved state calls it.
        rule: the rule.
        why: what the oracle reveals, and why this rule makes the most of it; `opt.explain` says it.
        given: what must be known besides the rule's needs.
    """

    name: str
    rule: Rule
    why: str
    given: frozenset[str] = frozenset()

    def suits(self, point: TargetPoint) -> bool:
        """Whether the answer has what the rule needs, and the rule uses the targets of all data if they are there."""
        known = all(getattr(point, need) is not None for need in self.rule.needs | self.given)
        return known and (point.everything is None or self.rule.everywhere)


CHOICES = (
    Choice(
        "bought",
        Bought(),
        "the oracle reveals the loss itself (labels), and regularise_on= gives the targets of all data, so every label "
        "that was ever bought counts in each step.",
        frozenset({"everything"}),
    ),
    Choice(
        "proximal",
        Proximal(),
        "the oracle reveals the loss itself (labels), so nothing has to be linearised. The proximal term keeps one "
        "batch from pulling the model away from the others, and its weight follows what fresh rows say of the last "
        "step; where the same rows come again and again, it is left out.",
    ),
    Choice(
        "trust-region",
        TrustRegion(metric=Secant()),
        "all that is used of the oracle is its gradients. Each answer shows what the last step was worth: η grows or "
        "shrinks with it, steps that did not pay are taken back, and the metric is learned from past answers about the "
        "same rows.",
    ),
    Choice(
        "gradient-step",
        GradientStep(),
        "the oracle gives gradients and no losses, as a game or temporal differences do, so nothing tells what a step "
        "was worth. It says its L, and η is 1/(2L).",
        frozenset({"smoothness"}),
    ),
    Choice(
        "adagrad-norm",
        AdaGradNorm(),
        "the oracle gives gradients and no losses, as a game or temporal differences do, and no L. η is 1 over the "
        "root of the sum of all squared gradients so far.",
    ),
)
"""From the most that an oracle can reveal to the least; docs/choosing.md has the same table.

`Majoriser` is not among them: on the beams of the suite (smoke size, three seeds), whose oracle reveals an upper bound,
`TrustRegion` with `Secant` was lower after 7 and 14 solves with every seed. After 40 solves it was lower with two seeds
of three on the MBB beam, and `Majoriser` was lower, by 0.4 to 2 %, with all three on the cantilever."""


@dataclass(frozen=True)
class Automatic(Rule):
    """The default of `SSO`: looks at the first answer and takes the rule that uses all that it reveals.

    =========================  =====================  ==============================================
    the oracle reveals         rule                   η
    =========================  =====================  ==============================================
    labels, and all data given `Bought`               ∞: what was bought stays known
    the loss itself (labels)   `Proximal`             follows the agreement of fresh rows; ∞ on full batches
    gradients and losses       `TrustRegion(Secant)`  follows actual over predicted decrease, or the agreement
    gradients and L alone      `GradientStep`         1/(2L)
    gradients alone            `AdaGradNorm`          1/√(sum of squared gradients)
    =========================  =====================  ==============================================

    All data are given by ``step(..., index=rows, regularise_on=lambda: model(x_all))``; whether that pays depends on
    what a label costs, since each inner step then passes over all of them.

    Nothing needs to be chosen: no L, no step size. `SSO.explain` says what was taken and why. To set the rule by hand,
    pass ``rule=`` to `SSO`; with ``lr=`` alone the rule is `GradientStep`, the paper's.

    Example:
        >>> import torch, targetopt as to
        >>> w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
        >>> opt = to.SSO([w])
        >>> oracle = to.ScalarOracle(lambda z: torch.cosh(3 * z - 3).sum(), autograd=True)
        >>> reports = [opt.step(lambda: 1 * w, oracle) for _ in range(12)]
        >>> reports[-1].loss < 2.001  # the minimum is 2
        True
    """

    uniform: ClassVar[bool] = False
    searches: ClassVar[bool] = True
    looks_back: ClassVar[bool] = True
    everywhere: ClassVar[bool] = True

    def choice(self, state: State) -> Choice | None:
        """What was taken; None before the first answer."""
        return next((each for each in CHOICES if each.name == state.get("choice")), None)

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        suiting = (each for each in CHOICES if each.suits(point))
        taken = self.choice(state) or next(suiting, None)
        if taken is None:  # without regularise_on= the last choice would have done
            raise MissingCapability(
                "regularise_on= was given, and this oracle does not reveal the loss itself (labels), without which "
                "nothing is chosen automatically that uses all data. Leave regularise_on= out, or say "
                "rule=to.Memory() or rule=to.GradientStep() with lr=."
            )
        taken.rule.check(point, lr)
        proposal = taken.rule.propose(point, lr, decay, state.get("kept", {}))
        return proposal._replace(state={"choice": taken.name, "kept": proposal.state})

    def reconsider(
        self, point: TargetPoint, proposal: Proposal, landed: Tensor, tries: int
    ) -> Reconsidered:
        taken = self.choice(proposal.state)
        assert taken is not None  # `propose` has written it
        own = proposal._replace(state=proposal.state["kept"])
        thought = taken.rule.reconsider(point, own, landed, tries)
        kept = {**proposal.state, "kept": thought.proposal.state}
        return thought._replace(proposal=thought.proposal._replace(state=kept))

    def wants_everything(self, reveals: Collection[str], *, dear: bool) -> bool:
        return dear and "revealed" in reveals

    def check_everything(
        self, z: Tensor, everything: Tensor | None, index: Tensor | None, state: State
    ) -> None:
        taken = self.choice(state)
        if taken is not None and taken.rule.everywhere:
            taken.rule.check_everything(z, everything, index, state["kept"])
        elif everything is not None:
            if taken is not None:
                raise BadArgument(
                    "regularise_on= was not given in the first step, and the rule was chosen without it. Leave it "
                    "out, or use a second optimiser that has it from the beginning."
                )
            check_coverage("Automatic", z, everything, index, None)

    def explain(self, state: State) -> str:
        taken = self.choice(state)
        if taken is None:
            return "taken automatically when the oracle has answered for the first time."
        eta = state["kept"].get("used", state["kept"].get("eta"))
        step = "" if eta is None else f" The step in target space is now η = {eta:.3g}."
        return f"{type(taken.rule).__name__}, taken automatically because {taken.why}{step} rule= sets it by hand."

    def check_state(self, state: State) -> None:
        def known(name: Any) -> bool:
            return any(name == each.name for each in CHOICES)

        check_entries(
            "Automatic", state, choice=known, kept=lambda inside: isinstance(inside, dict)
        )
        taken = self.choice(state)
        if taken is not None:
            taken.rule.check_state(state.get("kept", {}))

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the rules that it takes find their own η
