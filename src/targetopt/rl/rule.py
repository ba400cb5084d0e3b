"""A policy step as a rule of the core: any surrogate, held by any divergence, with any step size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from targetopt.distributed.world import present
from targetopt.distributions import Family, KLProximity
from targetopt.divergence import Divergence
from targetopt.rl.steps import HeldKL, Landing, StepSize
from targetopt.rl.surrogates import Linear, PolicySurrogate, Reading, Term, Visits
from targetopt.rules.base import Proposal, Reconsidered, Rule
from targetopt.types import BadArgument, BadForward, MissingCapability, State, TargetPoint


@dataclass(frozen=True)
class PolicyStep(Rule):
    """q(z) = mean_i w_i [ term_i(z_i) + (1/η) D(z_i, z_t,i) − β H(π_{z_i}) ]; η by the step rule, which may refuse.

    This is one cell of the grid surrogate × divergence × step size; the inner solver of `SSO` is the fourth axis. After
    the inner solve the step rule looks at where it has landed. It may have it solved again with another η, without
    another interaction, or refuse the step: then the policy stays (``report.stop_reason`` is ``"refused"``). With
    ``opt.step(…, scales=s)`` row i is held by (1/ηs_i) D(z_i, z_t,i).

    Reports have in ``measures``: ``kl`` (mean KL(π_t ‖ π_{t+1})), ``entropy`` (of π_{t+1}), ``promised`` and ``earned``
    (see `Landing`), ``ratio_spread`` (the deviation of the importance ratio).

    Args:
        family: how targets are read as distributions over actions.
        term: what a step promises.
        divergence: D between targets; None for a term that bounds itself (`Clipped`).
        step: who chooses η.
        entropy: β.
        rescale: bring advantages to mean 0 and deviation 1 in every mini-batch of the inner solver, as most
            implementations of PPO do.

    Example:
        >>> import torch, targetopt as to
        >>> from targetopt.distributions import Categorical, KLProximity
        >>> family = Categorical(2)
        >>> rule = PolicyStep(
        ...     family, to.rl.LogRatio(), KLProximity(family), to.rl.ConstantStep(0.5)
        ... )
        >>> logits = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
        >>> opt = to.SSO([logits], rule=rule, inner=to.LBFGS(max_steps=50))
        >>> rewards = torch.tensor([1.0, -1.0], dtype=torch.float64)
        >>> oracle = to.rl.PolicyOracle(family, torch.tensor([0, 1]), rewards)
        >>> report = opt.step(
        ...     lambda: logits[[0, 0]], oracle
        ... )  # one state, in which both actions were tried
        >>> logits[0].softmax(0).detach()  # ∝ π_t (1 + ηA)
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """

    family: Family
    term: Term = field(default_factory=Linear)
    divergence: Divergence | None = None
    step: StepSize = field(default_factory=HeldKL)
    entropy: float = 0.0
    rescale: bool = False

    needs: ClassVar[frozenset[str]] = frozenset({"data"})
    uniform: ClassVar[bool] = False
    weighted: ClassVar[bool] = True
    scaled: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.term, Term):
            raise BadArgument(
                f"PolicyStep: term={self.term!r} must be a surrogate of policies such as to.rl.Ratio()"
            )
        if not isinstance(self.step, StepSize):
            raise BadArgument(
                f"PolicyStep: step={self.step!r} must be a step size such as to.rl.HeldKL(0.01)"
            )
        if not 0.0 <= self.entropy < math.inf:
            raise BadArgument(f"PolicyStep: entropy={self.entropy!r} must be ≥ 0 and finite")
        if self.divergence is None and self.step.needs_divergence:
            raise BadArgument(
                f"PolicyStep: {type(self.step).__name__} chooses η, which does nothing without a divergence. Pass one "
                "(to.rl.train: divergence='forward-kl'), or step=to.rl.ConstantStep()."
            )
        if self.divergence is None and isinstance(self.term, Linear):
            raise BadArgument(
                "PolicyStep: the linear surrogate falls for ever and must be held by a divergence. Pass one "
                "(to.rl.train: divergence='reverse-kl')."
            )

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        missing = {"actions", "advantages"} - set(point.data or ())
        if missing:
            raise MissingCapability(
                f"PolicyStep needs the {' and '.join(sorted(missing))} of every row in the answer's data, as "
                "to.rl.PolicyOracle gives them."
            )
        assert point.data is not None
        visits = Visits.of(
            self.family,
            point.targets,
            point.data["actions"],
            point.data["advantages"],
            point.weights,
        )
        eta = self.step.first(state) * decay * (1.0 if lr is None else lr)
        surrogate = PolicySurrogate(
            visits, self.term, self.divergence, point.etas(eta), self.entropy, self.rescale
        )
        return Proposal(surrogate, state, eta, provisional=True)

    def reconsider(
        self, point: TargetPoint, proposal: Proposal, landed: Tensor, tries: int
    ) -> Reconsidered:
        surrogate = proposal.surrogate
        assert isinstance(surrogate, PolicySurrogate)
        measures = self.measured(surrogate.visits, landed)
        seen = Landing(
            proposal.eta, tries, measures["kl"], measures["promised"], measures["earned"]
        )
        verdict = self.step.judge(seen, proposal.state)
        kept = proposal._replace(state=verdict.state, measures=measures)
        if verdict.eta is None:
            return Reconsidered(kept, again=False)
        other = point.etas(verdict.eta)
        again = replace(surrogate, eta=other) if verdict.eta else surrogate
        return Reconsidered(kept._replace(surrogate=again, eta=verdict.eta), again=True)

    def measured(self, visits: Visits, z: Tensor) -> dict[str, float]:
        """What became of the policy in the visited states."""
        world, at = present(), Reading(visits, z)
        weights = 1.0 if visits.weights is None else visits.weights
        away = at.ratio - 1.0

        def mean(entries: Tensor) -> float:
            return float(world.mean(weights * entries))

        step = z - visits.anchor
        return {
            "kl": mean(KLProximity(self.family).value(z, visits.anchor)),
            "entropy": mean(self.family.from_targets(z).entropy()),
            "promised": mean(visits.advantages * (visits.scores * step).sum(dim=1)),
            "earned": mean(visits.advantages * away),
            "ratio_spread": math.sqrt(mean(away.square())),
        }

    def check_targets(self, z: Tensor, index: Tensor | None, state: State) -> None:
        if z.ndim != 2 or z.shape[1] != self.family.size:
            raise BadForward(
                f"PolicyStep reads targets of shape (n, {self.family.size}), the {self.family.noun}; the forward "
                f"gives {tuple(z.shape)}"
            )

    def check_state(self, state: State) -> None:
        self.step.check_state(state)

    def _wants_smoothness(self, lr: float | None) -> bool:
        return False  # the step rule has an η

    def explain(self, state: State) -> str:
        held = "no divergence" if self.divergence is None else repr(self.divergence)
        return f"PolicyStep: {self.term!r} held by {held}, η by {self.step!r}, as given."
