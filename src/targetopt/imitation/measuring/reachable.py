"""The best loss a policy class can reach on labelled states: exact for linear means, else estimated."""

from __future__ import annotations

import copy

import numpy as np
import torch

from targetopt.imitation.measuring.measure import mean_loss
from targetopt.imitation.policies.base import Policy
from targetopt.imitation.policies.network import Array
from targetopt.imitation.policies.policy import GaussianPolicy
from targetopt.reference import Reference
from targetopt.types import positive_int

BATCH = 256
LARGEST_STEP = 1e-3


def best_loss(
    policy: Policy, states: Array, labels: Array, *, steps: int = 20_000, seed: int = 0
) -> Reference:
    """inf_θ of the policy loss on these states, over the class that ``policy`` belongs to.

    A linear mean is fitted in closed form, by least squares. For a network nobody knows the infimum:
    what is returned is the loss after a long training of a fresh network, an *estimate from above*
    (``gap`` is all of it, as the loss may be as small as 0).

    Args:
        policy: says the class (linear or network, its widths, std); its weights do not matter.
        states: shape ``(n, d)``.
        labels: the expert's mean actions there, ``(n, k)``.
        steps: of Adam, for a network: batches of 256, cosine decay from 1e-3 to 0.
        seed: of the fresh network and its batches.

    Example:
        >>> states = np.linspace(-1, 1, 50)[:, None]
        >>> policy = GaussianPolicy(1, 1, mean="linear")
        >>> best = best_loss(policy, states, 3 * states + 1)
        >>> best.value < 1e-20, best.certificate
        (True, 'least squares in closed form')
    """
    if (
        isinstance(policy, GaussianPolicy)
        and policy.linear_layer is not None
        and policy.is_quadratic
    ):
        return _least_squares(policy, states, labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of all that is drawn: weights, batches, dropout
        return _long_training(policy, states, labels, positive_int("steps", steps), seed)


def _least_squares(policy: GaussianPolicy, states: Array, labels: Array) -> Reference:
    rows = np.column_stack([states, np.ones(len(states))])
    # std weighs whole outputs, which are fitted one by one: it does not move the solution
    solution: Array = np.linalg.lstsq(rows, labels)[0].astype(np.float64, copy=False)
    loss = policy.loss(labels).value(torch.from_numpy(rows @ solution))
    value = float(loss.mean())
    return Reference(value, 0.0, True, "least squares in closed form", solution.T.ravel())


def _long_training(
    policy: Policy, states: Array, labels: Array, steps: int, seed: int
) -> Reference:
    fresh = _fresh(policy)
    loss = policy.loss(labels)
    optimizer = torch.optim.Adam(fresh.parameters(), lr=LARGEST_STEP)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(states), (min(BATCH, len(states)),), generator=generator)
        optimizer.zero_grad()
        inputs = policy.inputs(states[rows.numpy()])
        loss.rows(rows).value(fresh(inputs)).mean().backward()
        optimizer.step()
        schedule.step()
    value = mean_loss(fresh, states, labels)
    how = f"estimate from above: {steps} steps of Adam on a fresh network"
    return Reference(value, value, True, how)


def _fresh(policy: Policy) -> Policy:
    """A copy with new initial weights, wherever its modules know how to draw them."""
    fresh = copy.deepcopy(policy)
    for module in fresh.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return fresh
