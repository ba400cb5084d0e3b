"""A stiff beam designed by a neural field: the oracle is a finite element solver that gives one gradient per call.

A small network gives the density of every square of a beam. The density filter and the volume are part of the
forward, so every question to the solver is about a beam of the right weight. The solver says how much the beam
gives way under its load, and the gradient of that: one sparse factorisation a call. SSO takes as many cheap
inner steps on what each call tells as are worth it; Adam takes one. Nothing is tuned for SSO; Adam gets the best of
four step sizes.

Run it with ``python examples/stiff_beam.py`` (about half a minute). It prints how stiff the beam is after some calls.
``examples/beam_film.py`` makes a film of the same comparison.
"""

from __future__ import annotations

import math

import torch
from torch import nn

import targetopt as to
from targetopt.lab.problems.physics.fields import Density, Fourier
from targetopt.lab.problems.physics.structures import Structure

CALLS, VOLUME = 40, 0.5
SHOWN = (1, 5, 10, 20, 40)
beam = Structure(30, 10, "mbb", radius=1.5)


def field(seed: int) -> nn.Module:
    """The network; called without arguments it gives a number for every square."""
    torch.manual_seed(seed)
    return Fourier((beam.nelx, beam.nely))


density = Density((beam.nelx, beam.nely), beam.kernel, VOLUME)
"""Turns the network's numbers into filtered densities with the mean VOLUME."""


def solver(densities: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The compliance and its gradient: the expensive call."""
    solution = beam.solve(densities.numpy())
    return solution.compliance, torch.from_numpy(solution.gradient)


def with_sso(seed: int) -> list[float]:
    net = field(seed)
    opt = to.SSO(net.parameters())
    return [opt.step(lambda: density(net()), to.ScalarOracle(solver)).loss for _ in range(CALLS)]


def with_adam(seed: int, lr: float) -> list[float]:
    net, losses = field(seed), []
    opt = torch.optim.Adam(net.parameters(), lr)
    for _ in range(CALLS):
        densities = density(net())
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
