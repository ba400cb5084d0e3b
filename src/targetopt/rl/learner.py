"""Actor and critic as two SSO problems: one step of each after every batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from targetopt.distributions import Family
from targetopt.inner import Inner, Torch
from targetopt.losses import Squared
from targetopt.optim import SSO
from targetopt.rl.advantages import advantages
from targetopt.rl.decision_aware import AdvantageCritic
from targetopt.rl.gathering import Batch
from targetopt.rl.networks import on_arrays
from targetopt.rl.normalise import Normaliser, RewardScale
from targetopt.rl.oracle import PolicyOracle
from targetopt.rl.recipes import Recipe
from targetopt.rl.stack.rows import Rows, Serve, alone
from targetopt.rules import GradientStep
from targetopt.types import StepReport

Array = NDArray[np.float64]

JUDGES = 1_000_003
"""What the seeds of networks and mini-batches that learn advantages are away from the policy's."""


@dataclass(frozen=True)
class Lesson:
    """A batch as the networks see it: scaled observations, actions, advantages, and what the critic should say.

    Attributes:
        states: shape ``(n, d)``.
        actions: one a row.
        advantages: of zero mean and unit deviation, shape ``(n,)``.
        returns: A + V, shape ``(n,)``.
        explained: the share of the returns' variance that the critic explained.
    """

    states: Tensor
    actions: Tensor
    advantages: Tensor
    returns: Tensor
    explained: float


def lesson(
    batch: Batch,
    critic: Any,
    normaliser: Normaliser,
    scale: RewardScale,
    recipe: Recipe,
) -> Lesson:
    """What a batch teaches: advantages by the critic as it is now."""
    steps, copies, size = batch.observations.shape
    seen = normaliser(batch.observations.reshape(-1, size))
    values = critic(seen).reshape(steps, copies)
    # the next row's value, but where an episode ended or the batch does
    ahead = np.concatenate([values[1:], np.zeros((1, copies))])
    own = batch.ended.copy()
    own[-1] = True
    ahead[own] = critic(normaliser(batch.last[own]))
    rewards = scale(batch.rewards, batch.ended)
    gains = advantages(
        rewards,
        values,
        ahead,
        batch.terminated,
        batch.ended,
        discount=recipe.discount,
        trace=recipe.trace,
    )
    returns = gains + values
    spread = float(returns.var())
    explained = 1.0 - float((returns - values).var()) / spread if spread > 0 else float("nan")
    plain = (gains - gains.mean()) / (gains.std() + 1e-8)
    kind = recipe.torch_dtype
    actions = torch.from_numpy(batch.actions.reshape(steps * copies, *batch.actions.shape[2:]))
    return Lesson(
        torch.from_numpy(seen).to(kind),
        actions,
        torch.from_numpy(plain.reshape(-1)).to(kind),
        torch.from_numpy(returns.reshape(-1)).to(kind),
        explained,
    )


class Learner:
    """The two networks and the optimisers that move them.

    The policy's update is one step of `SSO` with the recipe's rule and inner solver, and `PolicyOracle` as the oracle.
    The critic's is one with the squared loss: at η = 1 its surrogate is the loss itself, ½(v − R)².

    Args:
        actor: observations ↦ targets.
        critic: observations ↦ values.
        family: what the targets mean.
        recipe: of the run.
        seed: of the order of mini-batches.
        judge: observations ↦ one number for each action, if the recipe has advantages learned (`DecisionAware`).
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        family: Family,
        recipe: Recipe,
        seed: int,
        judge: nn.Module | None = None,
    ) -> None:
        self.actor, self.critic, self.family, self.recipe = actor, critic, family, recipe
        assert isinstance(recipe.inner, Inner)
        self.policy_step = SSO(
            actor.parameters(),
            rule=recipe.rule(family),
            inner=seeded(recipe.inner, seed),
            group=None,
            warn=False,
        )
        self.critic_step = SSO(
            critic.parameters(),
            lr=1.0,
            rule=GradientStep(),
            inner=seeded(recipe.value_solver, seed + 1),
            group=None,
            warn=False,
        )
        self.judge: AdvantageCritic | None = None
        if (learned := recipe.advantage_critic) is not None:
            assert judge is not None
            learned.check(family)
            self.judge = AdvantageCritic(judge, learned, seeded(learned.inner, JUDGES + seed))

    def values(self) -> Any:
        """Scaled observations ↦ values, with the networks as they are now."""
        return on_arrays(self.critic, self.recipe.torch_dtype)

    def update(self, taught: Lesson, serve: Serve = alone) -> tuple[StepReport, StepReport]:
        """One step of the policy, then one of the critic; ``serve`` does inner solves, perhaps beside others'."""
        gains = taught.advantages
        if self.judge is not None:
            with torch.no_grad():
                policy_now = self.actor(taught.states).softmax(dim=1)
            gains = self.judge.judged(taught.states, policy_now, taught.actions, gains, serve)
        oracle = PolicyOracle(
            self.family,
            taught.actions,
            gains,
            interactions=len(taught.states),
        )
        policy = self.policy_step.step(Rows(self.actor, taught.states, serve), oracle)
        seen = Rows(self.critic, taught.states, serve)
        critic = self.critic_step.step(seen, Squared(taught.returns))
        return policy, critic

    def state_dict(self) -> dict[str, Any]:
        judge = {} if self.judge is None else {"judge": self.judge.state_dict()}
        return {
            **judge,
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "policy_step": self.policy_step.state_dict(),
            "critic_step": self.critic_step.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.policy_step.load_state_dict(state["policy_step"])
        self.critic_step.load_state_dict(state["critic_step"])
        if self.judge is not None:
            self.judge.load_state_dict(state["judge"])


def seeded(inner: Inner, seed: int) -> Inner:
    """A solver that draws mini-batches, with this seed; any other as it is."""
    return replace(inner, seed=seed) if isinstance(inner, Torch) else inner
