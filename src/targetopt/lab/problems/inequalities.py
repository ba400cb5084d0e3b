"""Variational inequalities: an operator F(z) stands where a loss would have its gradient, and there is no loss.

To solve one is to find targets z* of the model with ⟨F(z*), z − z*⟩ ≥ 0 for all others. A question gives F at the
present targets, and nothing else: rules that compare losses cannot be used, `GradientStep` and `AdaGradNorm` can, and
minimise ½‖z − (z_t − ηF(z_t))‖² over the model's parameters. ``loss`` is the squared distance from the solution, which
is known here and which no method is told.

    hidden-game       two players, each a network that gives a mixed strategy; the game is monotone in the
                      strategies, but not in the parameters
    td-evaluation     temporal differences, F(v) = D(v − r − γPv): a network learns the values of a policy's states

References: D'Orazio et al., *Solving hidden monotone variational inequalities with surrogate losses*, ICLR 2025;
Tsitsiklis, Van Roy, *An analysis of temporal-difference learning with function approximation*, 1997 (F is
monotone where D is the policy's own distribution).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from targetopt.lab.problems.base import Array, Problem, non_negative, rng_of, seeded
from targetopt.lab.problems.registry import register
from targetopt.oracle import Oracle
from targetopt.reference import Reference
from targetopt.types import BadArgument, Forward, TargetPoint

Size = Literal["smoke", "quick", "full"]


@dataclass(frozen=True)
class Operator:
    """F(z) = M z − b on the targets of all rows as one vector, in the mean convention: ⟨F, d⟩ is a mean over rows.

    Attributes:
        matrix: M, whose symmetric part is positive definite.
        shift: b.
        smoothness: the largest singular value of M, so that F is Lipschitz with it.
        noise: relative error of the answers, as of an F that is estimated from samples: a random vector of noise times
            the length of F is added. The same question always gets the same answer.
        seed: of the noise.
    """

    matrix: Tensor
    shift: Tensor
    smoothness: float
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        non_negative("noise", self.noise)

    def at(self, z: Tensor) -> Tensor:
        found: Tensor = self.matrix @ z.reshape(-1) - self.shift
        return found.view_as(z)

    def query(self, z: Tensor) -> TargetPoint:
        found = self.at(z)
        if self.noise:
            off = torch.from_numpy(rng_of(z.numpy(), self.seed).normal(size=z.shape))
            found = found + self.noise * found.norm() / z.numel() ** 0.5 * off
        return TargetPoint(
            targets=z.clone(), losses=None, gradients=found, smoothness=self.smoothness
        )


class Inequality(Problem):
    """A network whose outputs are to solve a variational inequality."""

    expensive = True
    answers_tell = False

    def __init__(
        self, label: str, operator: Operator, inputs: Tensor, solution: Tensor, weights: Tensor
    ) -> None:
        self.label = label
        self.operator = operator
        self.inputs = inputs
        self.solution = solution
        self.weights = weights

    @property
    def reveals(self) -> frozenset[str]:
        """Nothing beyond F: there are no losses."""
        return frozenset()

    def network(self) -> nn.Module:
        raise NotImplementedError

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, self.network)

    def forward(self, model: nn.Module, index: ArrayLike | Tensor | None = None) -> Forward:
        if index is not None:
            raise BadArgument(f"index={index!r}: F of {self.name!r} joins all rows; ask about all")
        return lambda: model(self.inputs)

    def oracle(self, index: ArrayLike | Tensor | None = None) -> Oracle:
        return self.operator

    def metrics(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            z = model(self.inputs)
            off = (self.weights * (z - self.solution).square()).sum()
            residual = self.operator.at(z).square().mean().sqrt()
        return {"loss": float(off), "residual": float(residual)}

    def reference(self) -> Reference:
        return Reference(0.0, 0.0, False, "the distance from the solution, which is known")


class Player(nn.Module):
    """A mixed strategy from a network without inputs of its own."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, actions), nn.Softmax(dim=-1)
        )

    def forward(self, x: Tensor) -> Tensor:
        strategy: Tensor = self.inside(x)
        return strategy


class Players(nn.Module):
    """Both of them; row i of the targets is the strategy of player i."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Player(actions, width), Player(actions, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.first(x[0]), self.second(x[1])])


class HiddenGame(Inequality):
    """A cyclic zero-sum game, as rock, paper and scissors, with ½τ‖·‖² for each player.

    Linear costs put the equilibrium where the first player prefers late actions and the second early ones. The payoffs
    have the norm 1, so that F is Lipschitz with √(1 + τ²) and strongly monotone with τ.
    """

    def __init__(self, actions: int, width: int, tau: float, noise: float, seed: int) -> None:
        wins = np.arange(actions)[:, None] - np.arange(actions)[None, :]
        beats = np.sign((wins % actions) * (actions - 2 * (wins % actions))).astype(np.float64)
        payoff = torch.from_numpy(beats / np.linalg.norm(beats, 2))  # of the first player: p·A q
        ranks = torch.arange(1.0, actions + 1, dtype=torch.float64)
        liked = torch.stack([ranks, ranks.flip(0)]) / ranks.sum()
        zero, one = torch.zeros_like(payoff), torch.eye(actions, dtype=torch.float64)
        game = torch.cat([torch.cat([zero, -payoff], 1), torch.cat([payoff.T, zero], 1)])
        matrix = game + tau * torch.block_diag(one, one)
        largest = float(torch.linalg.matrix_norm(matrix, ord=2))
        operator = Operator(matrix, matrix @ liked.reshape(-1), largest, noise, seed)
        inputs = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4)
        label = f"hidden game, {actions} actions"
        super().__init__(label, operator, inputs, liked, torch.ones(2, 1).double() / 2)
        self.actions, self.width = actions, width

    def network(self) -> nn.Module:
        return Players(self.actions, self.width)


class Evaluation(Inequality):
    """The values of the states of a random chain, from features of each state, by temporal differences."""

    def __init__(self, states: int, width: int, gamma: float, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        chances = _chain(states, rng)
        often = _stationary(chances)
        rewards = rng.normal(size=states)
        step = np.eye(states) - gamma * chances
        values = np.linalg.solve(step, rewards)
        scale = states * often[:, None]  # mean convention: ⟨F, d⟩ = (1/n) Σ F_i d_i
        matrix, shift = torch.from_numpy(scale * step), torch.from_numpy(scale[:, 0] * rewards)
        largest = float(torch.linalg.matrix_norm(matrix, ord=2))
        inputs = torch.from_numpy(rng.normal(size=(states, 8)))
        label = f"temporal differences, {states} states"
        super().__init__(
            label,
            Operator(matrix, shift, largest, noise, seed),
            inputs,
            torch.from_numpy(values),
            torch.from_numpy(often) / 2,
        )
        self.width = width

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(8, self.width), nn.Tanh(), nn.Linear(self.width, 1), nn.Flatten(0)
        )


def _chain(states: int, rng: np.random.Generator) -> Array:
    """Four successors for each state, and a ring through all of them, so that every state is visited."""
    chances = np.zeros((states, states))
    for state in range(states):
        next_ones = rng.choice(states, size=4, replace=False)
        chances[state, next_ones] = rng.dirichlet(np.ones(4))
    ring = np.roll(np.eye(states), 1, axis=1)
    return np.asarray(0.9 * chances + 0.1 * ring)


def _stationary(chances: Array) -> Array:
    """d with dP = d and the sum 1."""
    n = len(chances)
    system = np.vstack([chances.T - np.eye(n), np.ones(n)])
    return np.asarray(np.linalg.lstsq(system, np.eye(n + 1)[n], rcond=None)[0])


def _checked(size: str, low: float, name: str, value: float) -> None:
    if size not in ("smoke", "quick", "full"):
        raise BadArgument(f"size={size!r} is unknown. Use one of smoke, quick, full.")
    if not low < value < 1:
        raise BadArgument(f"{name}={value!r} must lie between {low:g} and 1")


@register("hidden-game", "two networks play a cyclic zero-sum game; the oracle gives F and no loss")
def hidden_game(
    size: Size = "quick", tau: float = 0.5, noise: float = 0.0, seed: int = 0
) -> HiddenGame:
    _checked(size, 0.0, "tau", tau)
    actions, width = {"smoke": (3, 8), "quick": (5, 16), "full": (11, 32)}[size]
    return HiddenGame(actions, width, tau, noise, seed)


@register("td-evaluation", "a network learns a policy's values by temporal differences; no loss")
def td_evaluation(
    size: Size = "quick", gamma: float = 0.9, noise: float = 0.0, seed: int = 0
) -> Evaluation:
    _checked(size, 0.0, "gamma", gamma)
    states, width = {"smoke": (20, 16), "quick": (60, 64), "full": (200, 256)}[size]
    return Evaluation(states, width, gamma, noise, seed)
