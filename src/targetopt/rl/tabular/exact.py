"""Policy steps with exact advantages in a solved world: the same rule as with samples, without their noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from targetopt.distributions import Categorical
from targetopt.inner import LBFGS, Inner
from targetopt.optim import SSO
from targetopt.rl.oracle import PolicyOracle
from targetopt.rl.rule import PolicyStep
from targetopt.rl.tabular.mdp import MDP, Array
from targetopt.types import StepReport, positive_int


@dataclass(frozen=True)
class Solution:
    """What a run with exact advantages came to.

    Attributes:
        policy: π(a|s), shape ``(states, actions)``.
        values: J(π_t) before each step and after the last.
        reports: one for each step.
    """

    policy: Array
    values: Array
    reports: list[StepReport]


def exact_oracle(mdp: MDP, policy: Array) -> tuple[PolicyOracle, Tensor]:
    """The oracle of all state–action pairs, each with the weight d_π(s) π(a|s), and the states of its rows.

    The mean over its rows of what a surrogate says is then the expectation under the discounted occupancy.
    """
    occupancy, pairs = mdp.occupancy(policy), mdp.states * mdp.actions
    weights = (occupancy[:, None] * policy).ravel() * pairs
    advantages = mdp.advantages(policy).ravel()
    states = torch.arange(mdp.states).repeat_interleave(mdp.actions)
    actions = torch.arange(mdp.actions).repeat(mdp.states)
    oracle = PolicyOracle(
        Categorical(mdp.actions), actions, torch.from_numpy(advantages), torch.from_numpy(weights)
    )
    return oracle, states


def solve(
    mdp: MDP,
    rule: Callable[[Categorical], PolicyStep],
    *,
    iterations: int,
    inner: Inner | None = None,
    features: Array | None = None,
) -> Solution:
    """Policy steps with exact advantages, from the uniform policy.

    Args:
        mdp: the world.
        rule: makes the rule from the family of policies.
        iterations: steps.
        inner: the inner solver; L-BFGS to its end by default.
        features: shape ``(states, features)``: logits are ``features @ w``, one w for each action. The table of all
            logits by default.

    Example:
        >>> import targetopt as to
        >>> found = solve(
        ...     to.rl.deep_sea(3),
        ...     lambda family: to.rl.PolicyStep(
        ...         family,
        ...         to.rl.LogRatio(),
        ...         to.distributions.KLProximity(family),
        ...         to.rl.ConstantStep(1.0),
        ...     ),
        ...     iterations=30,
        ... )
        >>> bool(found.values[-1] > 0.9)  # the optimal value is 0.99
        True
    """
    positive_int("iterations", iterations)
    table = np.eye(mdp.states) if features is None else np.asarray(features, dtype=np.float64)
    inputs = torch.from_numpy(table)
    weights = torch.zeros(table.shape[1], mdp.actions, dtype=torch.float64, requires_grad=True)
    solver = LBFGS(max_steps=200) if inner is None else inner
    optimiser = SSO([weights], rule=rule(Categorical(mdp.actions)), inner=solver, warn=False)

    def policy() -> Array:
        return np.asarray((inputs @ weights).detach().softmax(dim=1).numpy())

    values, reports = [mdp.value(policy())], []
    for _ in range(iterations):
        oracle, states = exact_oracle(mdp, policy())
        rows = inputs[states]
        reports.append(optimiser.step(lambda rows=rows: rows @ weights, oracle))  # type: ignore[misc]
        values.append(mdp.value(policy()))
    return Solution(policy(), np.array(values), reports)
