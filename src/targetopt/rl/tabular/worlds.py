"""Two worlds with known optimal values: a cliff to walk along, and a sea whose treasure lies deep."""

from __future__ import annotations

import numpy as np

from targetopt.rl.tabular.mdp import MDP
from targetopt.types import positive_int

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Up, right, down, left."""


def cliff_world(
    rows: int = 4, columns: int = 12, discount: float = 0.9, fall: float = 100.0
) -> MDP:
    """Walk from one corner to the other along a cliff; every step costs 1, a fall costs ``fall`` and leads back.

    The best way goes along the edge: ``columns + 1`` steps, so that the optimal value is
    −(1 − γ^(columns+1))/(1 − γ).

    Example:
        >>> world = cliff_world()
        >>> round(world.best_value(), 12) == round(-(1 - 0.9**13) / 0.1, 12)
        True

    Reference: Sutton, Barto, *Reinforcement Learning*, 2018, example 6.6.
    """
    positive_int("rows", rows), positive_int("columns", columns)
    states = rows * columns
    begin, goal = (rows - 1) * columns, states - 1
    transitions, rewards = np.zeros((states, 4, states)), np.full((states, 4), -1.0)
    for state in range(states):
        row, column = divmod(state, columns)
        for action, (down, right) in enumerate(MOVES):
            if state == goal:  # the episode is over; nobody is there
                rewards[state, action] = 0.0
                continue
            to_row = min(max(row + down, 0), rows - 1)
            to_column = min(max(column + right, 0), columns - 1)
            reached = to_row * columns + to_column
            if begin < reached < goal:
                rewards[state, action] = -fall
                reached = begin
            if reached != goal:
                transitions[state, action, reached] = 1.0
    start = np.zeros(states)
    start[begin] = 1.0
    return MDP(transitions, rewards, start, discount, "cliff world")


def deep_sea(depth: int = 8, discount: float = 1.0) -> MDP:
    """Dive ``depth`` rows deep, left or right in each; only going right always finds the treasure, and each costs.

    A step to the right costs 0.01/depth, and the last one earns 1: the optimal value is 0.99 at γ = 1, while a policy
    that goes right with probability ½ finds the treasure once in 2^depth dives.

    Example:
        >>> round(deep_sea(6).best_value(), 12)
        0.99

    Reference: Osband et al., *Behaviour suite for reinforcement learning*, ICLR 2020.
    """
    positive_int("depth", depth)
    states = depth * depth
    transitions, rewards = np.zeros((states, 2, states)), np.zeros((states, 2))
    for row in range(depth):
        for column in range(depth):
            state = row * depth + column
            rewards[state, 1] = -0.01 / depth
            if row == depth - 1:
                rewards[state, 1] += float(column == depth - 1)
                continue
            transitions[state, 0, (row + 1) * depth + max(column - 1, 0)] = 1.0
            transitions[state, 1, (row + 1) * depth + min(column + 1, depth - 1)] = 1.0
    start = np.zeros(states)
    start[0] = 1.0
    return MDP(transitions, rewards, start, discount, "deep sea")
