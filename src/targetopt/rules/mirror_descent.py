"""Mirror descent in target space, for any divergence."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from targetopt.divergence import Divergence, SquaredEuclidean
from targetopt.rules.base import Proposal, Rule
from targetopt.types import BadArgument, State, TargetPoint


@dataclass(frozen=True)
class MirrorDescent(Rule):
    """q(z) = ℓ(z_t) + ⟨g, z − z_t⟩ + (1/η) mean D(z_i, z_t,i) (paper App. B.2).

    Args:
        divergence: `SquaredEuclidean` (then it is GradientStep) or `NegativeEntropy` for models
            whose targets are probabilities.

    Example:
        >>> import torch, targetopt as to
        >>> rule = to.MirrorDescent(to.NegativeEntropy())
        >>> logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
        >>> nll = lambda p: -p[:, 0].log()
        >>> opt = to.SSO([logits], lr=0.1, rule=rule, inner=to.LBFGS(max_steps=50))
        >>> _ = opt.step(lambda: logits.softmax(1), nll)
        >>> logits.softmax(1).detach()  # ∝ (½·exp(0.1·2), ½)
        tensor([[0.5498, 0.4502]], dtype=torch.float64)

    Reference: Beck, Teboulle, *Mirror descent and nonlinear projected subgradient methods*, 2003.
    """

    divergence: Divergence = field(default_factory=SquaredEuclidean)

    monotone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.divergence, Divergence):
            raise BadArgument(
                f"MirrorDescent: divergence={self.divergence!r} must be a divergence such as "
                "to.NegativeEntropy() (with its parentheses)"
            )

    def measured_by(self, divergence: Divergence) -> MirrorDescent:
        return replace(self, divergence=divergence)

    @property
    def weighted(self) -> bool:
        return self.divergence.weighted

    @property
    def scaled(self) -> bool:
        return self.divergence.scaled

    def propose(self, point: TargetPoint, lr: float | None, decay: float, state: State) -> Proposal:
        eta = self.step_size(point, lr, decay)
        return Proposal(self.divergence.surrogate(point, eta), state, eta)

    def check_targets(self, z: Tensor, index: Tensor | None, state: State) -> None:
        self.divergence.check(z)
