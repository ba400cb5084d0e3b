"""The decision-aware critic: advantages learned by what their errors cost the policy step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from targetopt.distributed.world import present
from targetopt.distributions import Categorical, Family
from targetopt.inner import Inner
from targetopt.optim import SSO
from targetopt.rl.adam import minibatch_adam
from targetopt.rl.stack.rows import Rows, Serve, alone
from targetopt.rules import Majoriser
from targetopt.surrogate import Surrogate
from targetopt.types import BadArgument, MissingCapability, TargetPoint

NEAR = 0.95
"""Where ψ, whose slope is infinite at 1, is followed by the parabola that touches it."""


@dataclass(frozen=True)
class DecisionAware:
    """Advantages Â for policy steps in logits that are held by KL(π_t ‖ π), learned by ψ(c(A − Â))/c.

    With rewards ≥ 0 and 1/η ≥ max V_t, every policy π with logits z earns at least ::

        J(π) − J(π_t) ≥ Σ_s d(s) [ ⟨π_t Â, z − z_t⟩ − (1/η + 1/c) KL(π_t ‖ π) − (1/c) Σ_a π_t(a|s) ψ(c(A − Â)) ]

        ψ(u) = (1 − u) log(1 − u) + u

    for every Â with Σ_a π_t Â = 0, and c > 0 with c(A − Â) ≤ 1. The first two terms are the actor's: the linear or the
    log-ratio surrogate with the forward KL, whose η is (1/η + 1/c)⁻¹ here, so below c. The last is the critic's: the
    Bregman divergence of the negative entropy, the conjugate of log Σ exp, between π_t(1 − c(A − Â)) and π_t. It is
    cδ²/2 for small δ = A − Â, and dearer where the critic says too little of an action than where it says too much.

    A second network has one output for each action, h(s), and says Â(s, a) = h_a − Σ_b π_t(b|s) h_b. After each batch
    it makes one step of `SSO` on the mean of ψ(c(A − Â))/c over the visited rows, with A by generalised advantage
    estimation, in units of its deviation. The policy step then has Â instead of A. Beyond cδ = 0.95 a parabola stands
    for ψ. As A is an estimate from one episode, whose noise ψ does not weigh evenly, the minimiser is not quite its
    mean.

    Args:
        c: how much an error may cost; towards 0 this is the squared loss.
        inner: how Â is learned.
        values: how the values are learned that advantages are estimated with, in squared loss.

    Example:
        >>> import targetopt as to
        >>> options = {"steps": 256, "batch": 128, "progress": False}
        >>> result = to.rl.train("CartPole-v1", preset="fma-pg", critic="decision-aware", **options)
        >>> len(result.history)
        2

    Reference: Vaswani, Kazemi, Babanezhad, Le Roux, *Decision-aware actor–critic with function approximation and
    theoretical guarantees*, NeurIPS 2023 (the softmax representation).
    """

    c: float = 0.2
    inner: Inner = field(default_factory=minibatch_adam)
    values: Inner = field(default_factory=minibatch_adam)

    def __post_init__(self) -> None:
        if not 0.0 < self.c < float("inf"):
            raise BadArgument(f"DecisionAware: c={self.c!r} must be positive and finite")
        for name in ("inner", "values"):
            if not isinstance(getattr(self, name), Inner):
                raise BadArgument(
                    f"DecisionAware: {name}={getattr(self, name)!r} must be an inner solver such as "
                    "to.rl.minibatch_adam()"
                )

    def check(self, family: Family) -> None:
        """Refuse policies whose targets are not the logits of one choice."""
        if not isinstance(family, Categorical):
            raise MissingCapability(
                f"critic='decision-aware' knows policies over one choice of several (Discrete actions), and this one "
                f"is over {family!r}. Use critic='squared'."
            )


def psi(u: Tensor) -> Tensor:
    """ψ(u) = (1 − u) log(1 − u) + u, and beyond `NEAR` the parabola that touches it there."""
    inside = u.clamp(max=NEAR)
    beyond = u - inside
    slope, bend = -torch.log1p(-inside), 1.0 / (1.0 - inside)
    return inside - (1.0 - inside) * slope + beyond * (slope + 0.5 * bend * beyond)


@dataclass(frozen=True)
class AdvantageLoss(Surrogate):
    """q(h) = mean_i ψ(c(A_i − v_i·h_i))/c, with v_i = e_{a_i} − π_t,i, so that v_i·h_i is Â(s_i, a_i)."""

    anchor: Tensor
    directions: Tensor
    gains: Tensor
    c: float

    def _errors(self, z: Tensor) -> Tensor:
        return self.c * (self.gains - (self.directions * z).sum(dim=1))

    def entries(self, z: Tensor) -> Tensor:
        """Row by row, shape ``(n,)``."""
        return psi(self._errors(z)) / self.c

    def value(self, z: Tensor) -> Tensor:
        return present().mean(self.entries(z))

    def gradient(self, z: Tensor) -> Tensor:
        u = self._errors(z)
        inside = u.clamp(max=NEAR)
        slope = -torch.log1p(-inside) + (u - inside) / (1.0 - inside)
        return -slope.unsqueeze(1) * self.directions

    def change(self, before: Tensor, after: Tensor, gradient_before: Tensor) -> Tensor:
        return present().mean(self.entries(after) - self.entries(before))

    def curvature_product(self, z: Tensor, v: Tensor) -> Tensor:
        bend = self.c / (1.0 - self._errors(z).clamp(max=NEAR))
        return (bend * (self.directions * v).sum(dim=1)).unsqueeze(1) * self.directions

    def minimiser(self) -> Tensor:
        """The nearest one: every row's error becomes 0."""
        size = self.directions.square().sum(dim=1)
        missing = self._errors(self.anchor) / self.c
        step = torch.where(size > 0, missing / size.clamp_min(1e-300), 0.0)
        return self.anchor + step.unsqueeze(1) * self.directions

    def beside(self, others: Sequence[Surrogate]) -> AdvantageLoss | None:
        every = [self, *(q for q in others if isinstance(q, AdvantageLoss) and q.c == self.c)]
        if len(every) <= len(others):
            return None
        return AdvantageLoss(
            torch.cat([q.anchor for q in every]),
            torch.cat([q.directions for q in every]),
            torch.cat([q.gains for q in every]),
            self.c,
        )

    def rows(self, index: Tensor | slice) -> AdvantageLoss:
        return replace(
            self,
            anchor=self.anchor[index],
            directions=self.directions[index],
            gains=self.gains[index],
        )


class AdvantageOracle:
    """Knows the loss of Â everywhere, and says so: the answer is the loss itself (`Majoriser` takes it as it is).

    Args:
        policy: π_t(·|s_i) of the rows, shape ``(n, actions)``.
        actions: what was done, shape ``(n,)``.
        gains: A_i, shape ``(n,)``.
        c: see `DecisionAware`.
    """

    def __init__(self, policy: Tensor, actions: Tensor, gains: Tensor, c: float) -> None:
        chosen = nn.functional.one_hot(actions.long(), policy.shape[1]).to(policy)
        self.directions, self.gains, self.c = chosen - policy, gains.to(policy), c

    def query(self, z: Tensor) -> TargetPoint:
        loss = AdvantageLoss(z, self.directions, self.gains, self.c)
        return TargetPoint(z, loss.entries(z), loss.gradient(z), majoriser=loss)

    def estimates(self, z: Tensor) -> Tensor:
        """Â(s_i, a_i) where the network says ``z``."""
        return (self.directions * z).sum(dim=1)


class AdvantageCritic:
    """The network of Â and the optimiser that moves it.

    Args:
        network: observations ↦ h(s), one number for each action.
        settings: of the critic.
        inner: its solver, with the seed of its mini-batches.
    """

    def __init__(self, network: nn.Module, settings: DecisionAware, inner: Inner) -> None:
        self.network, self.settings = network, settings
        self.step = SSO(network.parameters(), rule=Majoriser(), inner=inner, group=None, warn=False)

    def judged(
        self, states: Tensor, policy: Tensor, actions: Tensor, gains: Tensor, serve: Serve = alone
    ) -> Tensor:
        """Learn from these rows, and say Â of them."""
        oracle = AdvantageOracle(policy, actions, gains, self.settings.c)
        self.step.step(Rows(self.network, states, serve), oracle)
        with torch.no_grad():
            return oracle.estimates(self.network(states))

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "step": self.step.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.step.load_state_dict(state["step"])
