"""The oracle of reinforcement learning: interactions with an environment, answered in policy gradients."""

from __future__ import annotations

from torch import Tensor

from targetopt.distributions import Family
from targetopt.types import BadArgument, TargetPoint


class PolicyOracle:
    """Says ∂ℓ_i/∂z_i = −A_i ∇ log π_z(a_i) of the states that the policy has visited, and nothing of their losses.

    What a policy loses is not known, and no state was visited by any other policy: the answer has gradients, and the
    actions and advantages of its rows as ``data``, which is all that a surrogate of policies needs.

    Args:
        family: how targets are read as distributions over actions.
        actions: what was done in each row.
        advantages: how much better that was than expected, shape ``(n,)``.
        weights: how much each row counts, shape ``(n,)``; all alike by default.
        interactions: steps of the environment that this batch has cost.

    Example:
        >>> import torch
        >>> from targetopt.distributions import Categorical
        >>> oracle = PolicyOracle(Categorical(2), torch.tensor([1]), torch.tensor([2.0]))
        >>> oracle.query(torch.zeros(1, 2)).gradients  # −2 (e₁ − ½)
        tensor([[ 1., -1.]])

    Reference: Sutton et al., *Policy gradient methods for reinforcement learning with function approximation*, 2000.
    """

    losses = None
    value = None
    curvature = None
    smoothness = None
    revealed = None
    majoriser = None

    def __init__(
        self,
        family: Family,
        actions: Tensor,
        advantages: Tensor,
        weights: Tensor | None = None,
        interactions: int = 0,
    ) -> None:
        if len(actions) != len(advantages):
            raise BadArgument(
                f"PolicyOracle: there are {len(actions)} actions and {len(advantages)} advantages; each row needs both"
            )
        self.family = family
        self.actions, self.advantages, self.weights = actions, advantages, weights
        self.interactions = interactions

    def query(self, z: Tensor) -> TargetPoint:
        known = self.family.moments(self.actions).to(z)
        score = -self.family.cross_entropy_gradient(z, known)
        return TargetPoint(
            targets=z,
            losses=None,
            gradients=-self.advantages.to(z).unsqueeze(1) * score,
            data={"actions": self.actions, "advantages": self.advantages},
            weights=self.weights,
            interactions=self.interactions,
        )
