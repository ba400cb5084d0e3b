"""A stiff beam designed by a neural field: the oracle is a finite element solver that gives one gradient per call.

A small network gives the density of every square of a beam, with the volume fixed inside the forward. The solver
says how much the beam gives way under its load, and the gradient of that: one sparse factorisation a call. SSO
takes thirty cheap inner steps on what each call tells; Adam takes one. Nothing is tuned for SSO; Adam gets
the best of four step sizes.

Run it with ``python examples/stiff_beam.py`` (about half a minute). It prints how stiff the beam is after some calls.
"""

from __future__ import annotations

import math

import torch
from torch import nn

import targetopt as to
from targetopt.lab.problems.physics.structures import Structure

CALLS, VOLUME = 40, 0.5
SHOWN = (1, 5, 10, 20, 40)
beam = Structure(30, 10, "mbb", radius=1.5)


class Field(nn.Module):
    """Densities of all squares, with the mean VOLUME: sigmoid(network + shift), the shift found by bisection."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        column, row = torch.meshgrid(
            torch.arange(beam.nelx) + 0.5, torch.arange(beam.nely) + 0.5, indexing="ij"
        )
        places = torch.stack([column, row], dim=-1).reshape(-1, 2).double() / beam.nely
        waves = places @ (6.0 * torch.randn(2, 32, dtype=torch.float64))
        self.features = torch.cat([waves.sin(), waves.cos()], dim=1)
        layers = [nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)]
        self.net = nn.Sequential(*layers).double()

    def forward(self) -> torch.Tensor:
        y = self.net(self.features)[:, 0]
        with torch.no_grad():
            low, high = -20 - y.max(), 20 - y.min()
            for _ in range(60):
                middle = 0.5 * (low + high)
                too_much = torch.sigmoid(y + middle).mean() > VOLUME
                low, high = (low, middle) if too_much else (middle, high)
            weights = torch.sigmoid(y + low) * torch.sigmoid(-y - low)
        # the shift moves with y such that the mean stays
        shift = low - (weights / weights.sum()) @ (y - y.detach())
        return torch.sigmoid(y + shift)


def solver(densities: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The compliance and its gradient: the expensive call."""
    solution = beam.solve(densities.numpy())
    return solution.compliance, torch.from_numpy(solution.gradient)


def with_sso(seed: int) -> list[float]:
    field = Field(seed)
    opt = to.SSO(field.parameters(), rule=to.TrustRegion(to.Secant()), inner=to.LBFGS(max_steps=30))
    return [opt.step(field, to.ScalarOracle(solver)).loss for _ in range(CALLS)]


def with_adam(seed: int, lr: float) -> list[float]:
    field, losses = Field(seed), []
    opt = torch.optim.Adam(field.parameters(), lr)
    for _ in range(CALLS):
        densities = field()
        loss, gradient = solver(densities.detach())
        losses.append(loss)
        opt.zero_grad()
        densities.backward(gradient)
        opt.step()
    return losses


def best_so_far(losses: list[float]) -> str:
    return "  ".join(f"{min(losses[:calls]):6.0f}" for calls in SHOWN)


def main(seed: int = 0) -> dict[str, float]:
    """Print the table; the best compliance of each method."""
    torch.set_num_threads(1)
    print("compliance after so many solves:  " + "  ".join(f"{calls:6d}" for calls in SHOWN))
    sso = with_sso(seed)
    print(f"{'SSO, nothing chosen':32s}  {best_so_far(sso)}")
    adam = min((with_adam(seed, lr) for lr in (1e-3, 3e-3, 1e-2, 3e-2)), key=min)
    print(f"{'Adam, best of four step sizes':32s}  {best_so_far(adam)}")
    reached = next((k for k, loss in enumerate(sso, 1) if loss <= min(adam)), math.inf)
    print(f"SSO needed {reached} solves to be where Adam is after {CALLS}.")
    return {"sso": min(sso), "adam": min(adam), "reached": reached}


if __name__ == "__main__":
    main()
